"""Plans: what an experiment expands to, what is refused or remarked, and plans made in the background."""

import importlib.util
from pathlib import Path

import pytest

from fedcore import config
from fedcore.base.errors import FedLensError
from fedcore.clip import encodings, tags
from fedcore.clip.specs import backbone_spec
from fedcore.config import BackboneConfig, DataConfig, Experiment, MethodEntry, expand
from fedcore.config.identity import group_hash
from fedcore.data.images import ImageSet
from fedcore.engine import plan as planner
from fedcore.engine.plan import Plan, Planner, plan, storage_warnings
from fedcore.engine.prepare import read_images
from fedcore.methods import registry
from fedcore.papers.experiments import preset
from tests.support.web.pictures import image_folder

MINI = backbone_spec("mini-vit")


def _experiment(extra: str = "", method: str = 'name = "fedot"', data: str = 'name = "rotated-digits"'):
    return config.loads(f'name = "t"\nrounds = 1\n{extra}\n[data]\n{data}\n[[methods]]\n{method}\n')


def test_a_plan_writes_every_hyper_parameter_out_and_shows_who_gets_what():
    found = plan(_experiment())
    (run,) = found.runs
    assert run.method.config["blocks"] == 1 and run.method.config["momentum"] == 0.9
    assert run.method.label == "FedOT"
    assert len(found.clients) == 6 and found.counts.shape == (6, 10)
    assert found.counts.sum() == pytest.approx(0.6 * 1797, abs=60)


def test_a_plan_says_how_far_apart_its_clients_are_and_how_mixed_their_labels():
    alike = plan(_experiment('[partition]\nkind = "iid"\nclients = 4'))
    apart = plan(_experiment('[partition]\nkind = "pathological"\nclients = 10\nclasses_per_client = 1'))
    assert alike.heterogeneity < 0.15 and apart.heterogeneity == pytest.approx(1)
    assert alike.max_entropy == pytest.approx(3.3219, abs=1e-3) and alike.entropy > 3.2
    assert apart.entropy == 0


def test_leave_one_domain_out_plans_a_run_per_domain():
    found = plan(_experiment('held_out = ["each"]'))
    assert [r.held_out for r in found.runs] == list(found.domains)
    assert len(found.clients) == len(found.domains) - 1


def _with(section: str):
    return config.loads(f'name = "t"\n{section}\n[[methods]]\nname = "fedot"\n')


@pytest.mark.parametrize(
    ("given", "field", "message"),
    [
        (_experiment(method='name = "fedott"'), "methods.0.name", "did you mean 'fedot'"),
        (
            _experiment(method='name = "fedot"\nconfig = { blocks = 7 }'),
            "methods.0.config.blocks",
            "do not divide",
        ),
        (
            _experiment('[[transfer]]\nname = "shapes"', 'name = "fedot"\nconfig = { blocks = 7 }'),
            "methods.0.config.blocks",
            "do not divide",
        ),
        (_experiment(data='name = "rotated-digit"'), "data.name", "rotated-digits"),
        (_experiment('held_out = ["mars"]'), "held_out", "no domain 'mars'"),
        (_with('[backbone]\nname = "ViT-B-32"'), "backbone.pretrained", "give an open_clip tag"),
        (
            _with('[backbone]\nname = "ViT-B-32"\npretrained = "/none/w.pt"'),
            "backbone.pretrained",
            "no weights file",
        ),
        (_with('[backbone]\nname = "ViT-B-33"'), "backbone.name", "did you mean"),
        (_with('[partition]\nkind = "iid"\nclients = 5000'), "partition.clients", "samples"),
        (_with('[[transfer]]\nname = "no-such-set"'), "transfer.0", "no-such-set"),
        (
            _experiment(method='name = "fedot"\nlabel = "  "'),
            "methods.0.label",
            "a label of spaces cannot",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_would_stop_a_run_is_refused_with_its_field(given, field, message):
    with pytest.raises(FedLensError) as caught:
        plan(given)
    assert caught.value.field == field and message in str(caught.value)


def test_an_edited_method_file_is_another_group_and_is_refused_by_runs_planned_before(tmp_path):
    file = tmp_path / "shift.py"
    file.write_text(Path("examples/text_shift.py").read_text().replace('"text-shift"', '"edited-shift"'))
    try:
        registry.load_file(file)
        (before,) = plan(_experiment(method=f'name = "edited-shift"\nfile = "{file}"')).runs
        file.write_text(file.read_text() + "\n# another line\n")
        registry.load_file(file)
        (after,) = plan(_experiment(method=f'name = "edited-shift"\nfile = "{file}"')).runs
        assert group_hash(before) != group_hash(after)
        with pytest.raises(FedLensError, match=r"shift\.py has changed since this run was planned"):
            registry.load_agreed(before.method.file, before.method.sha256)
        registry.load_agreed(after.method.file, after.method.sha256)
    finally:
        registry._METHODS.pop("edited-shift", None)
        registry._FILES.pop("edited-shift", None)


@pytest.mark.parametrize("leftover", ["drop", "spread"])
def test_samples_of_nobody_are_said(leftover):
    found = plan(
        _experiment(
            '[partition]\nkind = "pathological"\nclients = 3\n'
            f'classes_per_client = 3\nleftover = "{leftover}"'
        )
    )
    said = [w for w in found.warnings if "belong to no client" in w]
    assert len(said) == (leftover == "drop")
    assert (found.counts.sum(0) == 0).sum() == (leftover == "drop")
    if said:
        assert "leftover = last, even or spread" in said[0]


@pytest.mark.parametrize(
    ("described", "class_text", "said"),
    [
        (
            None,
            "description",
            "FedAlign: with class_text = description, 2 of 2 classes have no written description (cat, fire",
        ),
        (
            {"fire_engine": ["a red van."]},
            "description",
            "FedAlign: with class_text = description, 1 of 2 classes have no written description (cat)",
        ),
        ({"fire engine": ["a red van."], "cat": ["a pet."]}, "description", None),
        (None, "template", None),
    ],
)
def test_classes_that_nobody_described_are_named_before_launch(tmp_path, described, class_text, said):
    """A class without a description (FedAlign's GT) uses the prompt, and the plan says so."""
    entry = f'name = "fedalign"\nconfig = {{ class_text = "{class_text}" }}'
    iid = '[partition]\nkind = "iid"\nclients = 2'
    warnings = plan(_experiment(iid, entry, image_folder(tmp_path, described))).warnings
    found = [w for w in warnings if "descriptions.json" in w]
    assert len(found) == (said is not None)
    assert said is None or (found[0].startswith(said) and "(class_text = template)" in found[0])


def test_embedded_data_are_described_and_other_methods_need_no_descriptions(tmp_path):
    assert not [w for w in plan(_experiment(method='name = "fedalign"')).warnings if "description" in w]
    iid = '[partition]\nkind = "iid"\nclients = 2'
    found = plan(_experiment(iid, data=image_folder(tmp_path)))
    assert not [w for w in found.warnings if "description" in w]


def test_descriptions_of_another_form_are_refused_before_launch(tmp_path):
    iid = '[partition]\nkind = "iid"\nclients = 2'
    with pytest.raises(FedLensError, match=r"descriptions\.json: expected") as caught:
        plan(_experiment(iid, 'name = "fedalign"', image_folder(tmp_path, {"cat": "one sentence"})))
    assert caught.value.field == "data.root"


def runs(method: str, **backbone: str) -> list:
    return expand(Experiment(methods=(MethodEntry(name=method),), backbone=BackboneConfig(**backbone)))


def test_a_download_is_announced_once_and_only_where_it_happens(monkeypatch):
    asked = runs("zero-shot", name="ViT-B-32", pretrained="openai") * 3
    monkeypatch.setattr(tags, "cached", lambda name, tag: None)
    (note,) = storage_warnings(asked, 100, MINI)
    assert note.startswith("the weights 'openai' of ViT-B-32 are downloaded from huggingface.co/timm/")
    monkeypatch.setattr(tags, "cached", lambda name, tag: Path("/here"))
    assert storage_warnings(asked, 100, MINI) == []


def test_large_encodings_are_announced_with_their_size(tmp_path):
    (tmp_path / "w.pt").write_bytes(b"w")
    asked = runs("fedavg-lora", name="ViT-B-32", pretrained=str(tmp_path / "w.pt"))
    (note,) = storage_warnings(asked, 40_000, MINI)
    assert "encoding 40,000 images with ViT-B-32 ('layer:" in note and "writes 3.1 GB" in note
    assert storage_warnings(asked, 1_000, MINI) == []


def test_an_encoding_over_the_limit_stops_the_plan(monkeypatch):
    monkeypatch.setenv(encodings.LIMIT, "0.00001")
    with pytest.raises(FedLensError, match=f"the limit is 1e-05 GB.*set {encodings.LIMIT} higher") as caught:
        plan(Experiment(methods=(MethodEntry(name="zero-shot"),)))
    assert caught.value.field == "backbone.name"


def test_the_demo_needs_nothing_from_elsewhere():
    demo = preset("demo")
    assert not [w for w in plan(demo).warnings if "download" in w or "GB" in w]


@pytest.mark.parametrize(
    ("method", "title", "backbone", "why"),
    [
        ("pfedmma", "pFedMMA", "coca_ViT-B-32", "coca_ViT-B-32 has no ViT tokens to encode"),
        ("fedalign", "FedAlign", "convnext_base", "convnext_base has no ViT tokens to encode"),
    ],
)
def test_a_backbone_that_does_not_fit_is_refused_by_name_of_method_and_model(
    tmp_path, method, title, backbone, why
):
    (tmp_path / "w.pt").write_bytes(b"w")
    given = BackboneConfig(name=backbone, pretrained=str(tmp_path / "w.pt"))
    with pytest.raises(FedLensError, match=why) as caught:
        plan(Experiment(methods=(MethodEntry(name="zero-shot"), MethodEntry(name=method)), backbone=given))
    assert title in str(caught.value) and backbone in str(caught.value)


def test_a_model_that_needs_a_library_says_which(monkeypatch):
    real = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name: None if name == "transformers" else real(name)
    )
    asked = BackboneConfig(name="ViT-B-16-SigLIP", pretrained="webli")
    with pytest.raises(FedLensError, match="Hugging Face tokenizer .*pip install transformers") as caught:
        plan(Experiment(methods=(MethodEntry(name="zero-shot"),), backbone=asked))
    assert caught.value.field == "backbone.name"


def _shapes(rounds: int = 1, data: str = "shapes") -> Experiment:
    return Experiment(methods=(MethodEntry(name="zero-shot"),), rounds=rounds, data=DataConfig(name=data))


def test_equal_requests_share_a_plan_until_the_texts_change():
    made = Planner()
    first = made.request(_shapes())
    assert made.request(_shapes()) is first
    other = made.request(_shapes(), "another file of descriptions")
    assert other is not first
    for future in (first, other):  # neither thread outlives its test
        assert isinstance(future.result(60).answer, Plan)


def test_an_error_is_an_answer_that_holds_for_seconds(monkeypatch):
    made = Planner()
    first = made.request(_shapes(data="nothing"))
    assert isinstance(first.result(60).answer, FedLensError)
    assert made.request(_shapes(data="nothing")) is first
    monkeypatch.setattr(planner, "ERROR_SECONDS", 0.0)
    again = made.request(_shapes(data="nothing"))
    assert again is not first
    assert isinstance(again.result(60).answer, FedLensError)  # its thread must not outlive this test


def test_a_data_set_that_takes_long_to_read_is_read_once(monkeypatch):
    reads = []

    def read(data: DataConfig, side: int) -> tuple[ImageSet, list[str]]:
        reads.append(data.name)
        return read_images(data, side)

    monkeypatch.setattr(planner, "read_images", read)
    monkeypatch.setattr(planner, "SLOW_SECONDS", 0.0)
    made = Planner()
    for rounds in (1, 2):
        assert isinstance(made.request(_shapes(rounds)).result(60).answer, Plan)
    assert reads == ["shapes"]


def test_training_images_are_not_tested_as_those_of_another_data_set() -> None:
    """Another split of the data set that is trained on tests some of its training images."""
    data = {"name": "rotated-digits", "domains": ["rot0", "rot45"], "shots": 2}
    given = {"methods": [{"name": "zero-shot"}], "data": data, "rounds": 1}
    transfer = {"name": "rotated-digits", "split": "80/20"}
    with pytest.raises(
        FedLensError, match=r"train on this data set with split 60/20/20, .* give split ="
    ) as caught:
        plan(config.parse(given | {"transfer": [transfer]}))
    assert caught.value.field == "transfer.0"
    assert plan(config.parse(given | {"transfer": [transfer | {"split": "60/20/20"}]})).runs
