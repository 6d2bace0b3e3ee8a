"""Written descriptions of classes: checked, kept with a run when it is planned, drawn by seed."""

import json
from dataclasses import replace

import pytest

from fedcore import config
from fedcore.base.errors import FedLensError
from fedcore.base.events import Notice
from fedcore.clip.specs import backbone_spec
from fedcore.config import MethodEntry
from fedcore.config.identity import group_hash, stable_config
from fedcore.engine.plan import plan
from fedcore.engine.train import set_up
from fedcore.methods import class_texts, registry
from fedcore.methods.base import RunContext
from fedcore.papers.mini import rehearsal
from tests.support.against import build
from tests.support.tiny import tiny_federation
from tests.support.web.pictures import image_folder
from tests.support.work import collect

CLASSES = ("cat", "fire_engine")
WHOLE = {"cat": ["a pet.", "a small tiger."], "fire engine": ["a red van."]}
ODD = ("a.b", "q\"u'o", "😀 ünï", "back\\slash", "x]y = 1", "tab\tname", "\x7f", "{} # no")


def run_context(
    descriptions: dict[str, list[str]], embedded: bool = False, classes: tuple[str, ...] = CLASSES
) -> RunContext:
    return RunContext(
        backbone_spec("mini-vit"), classes, 2, ("photo",), "a {}.", None, descriptions, embedded
    )


def experiment(folder: str, texts: object = None, class_text: str = "description", name: str = "fedalign"):
    descriptions = {} if texts is None else {"descriptions": texts}
    data, partition = (
        {k: json.loads(v) for k, _, v in (line.partition(" = ") for line in part.splitlines())}
        for part in (folder, 'kind = "iid"\nclients = 2')
    )
    entry = MethodEntry(name=name, config={"class_text": class_text, **descriptions})
    return config.Experiment(data=data, partition=partition, rounds=1, methods=(entry,))


@pytest.mark.parametrize("name", ["fedalign", "zero-shot"])
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("a pet.", "give every class a list of texts"),
        ({"cat": "a pet."}, "class 'cat': give a list of texts, not str"),
        ({"cat": ["a pet.", 3]}, "class 'cat': its text 2 is of type int"),
        ({"cat": ["a pet.", " \n"]}, "class 'cat': its text 2 is empty"),
        ({" ": ["a pet."]}, "' ' is not a class name"),
        ({"fire engine": ["a van."], "fire_engine": ["a van."]}, "are one class; name it once"),
    ],
)
def test_what_is_no_table_of_texts_is_refused_by_its_field(name, given, message):
    with pytest.raises(FedLensError) as caught:
        registry.build_config(name, {"descriptions": given}, "methods.0.config")
    assert caught.value.field == "methods.0.config.descriptions" and message in str(caught.value)


def test_a_class_that_the_data_set_has_not_is_refused_at_planning(tmp_path):
    pictures, texts = image_folder(tmp_path), {"catt": ["a pet."]}
    with pytest.raises(FedLensError, match="no class 'catt'; did you mean 'cat'") as caught:
        plan(experiment(pictures, texts))
    assert caught.value.field == "methods.0.config.descriptions"
    assert plan(experiment(pictures, texts, class_text="template")).runs, "idle there"


def test_a_plan_keeps_the_texts_of_the_folder_whatever_becomes_of_the_file(tmp_path):
    (run,) = plan(experiment(image_folder(tmp_path / "data", {"fire_engine": ["a  red\nvan."]}))).runs
    texts = {"cat": [], "fire engine": ["a red van."]}
    assert run.method.config["descriptions"] == texts, "in the data set's spelling, () for a class without"
    assert stable_config(run)["method"]["config"]["descriptions"] == texts, "part of a checkpoint's identity"
    again = config.RunConfig.model_validate_json(run.model_dump_json())
    for content in ("{", json.dumps({"cat": ["other."]}), None):
        path = tmp_path / "data" / "descriptions.json"
        path.unlink() if content is None else path.write_text(content)
        steps, setup = collect(set_up(again, tmp_path / "x", "cpu"))
        assert setup.method.texts == ["a picture of a cat.", "a red van."]
        said = [e.message for e in steps if isinstance(e, Notice)]
        assert any("1 of 2 classes have no written description (cat)" in line for line in said)
        assert any("drew one text per class" in s and 'fire engine: "a red van."' in s for s in said)


def test_a_run_planned_before_texts_were_kept_still_reads_the_file(tmp_path):
    (run,) = plan(experiment(image_folder(tmp_path / "data", WHOLE))).runs
    old = {k: v for k, v in run.method.config.items() if k != "descriptions"}
    older = run.model_copy(update={"method": run.method.model_copy(update={"config": old})})
    assert "descriptions" not in stable_config(older)["method"]["config"], "its checkpoint's identity"
    _, setup = collect(set_up(older, tmp_path / "x", "cpu"))
    assert setup.method.texts[1] == "a red van."


def test_given_texts_are_the_whole_truth(tmp_path):
    (tmp_path / "descriptions.json").write_text("not json at all")
    (run,) = plan(experiment(image_folder(tmp_path), {"fire_engine": ["a van."]})).runs
    assert run.method.config["descriptions"] == {"cat": [], "fire engine": ["a van."]}


def test_embedded_texts_are_not_written_out_unless_they_were_edited():
    def planned(**fields: object) -> config.RunConfig:
        entry = MethodEntry(name="fedalign", config=fields)
        return plan(config.Experiment(data={"name": "shapes"}, methods=(entry,))).runs[0]

    plain, edited = planned(), planned(descriptions={"cup": ["a mug."]})
    assert plain.method.config["descriptions"] is None
    assert "descriptions" not in stable_config(plain)["method"]["config"]
    written = edited.method.config["descriptions"]
    assert written["cup"] == ["a mug."] and written["heart"] == [] and len(written) == 10
    hashes = {group_hash(plain), group_hash(edited), group_hash(planned(descriptions={"cup": ["a jug."]}))}
    assert len(hashes) == 3, "other texts are another group"
    idle = planned(class_text="template", descriptions={"cup": ["a mug."]})
    assert group_hash(idle) == group_hash(planned(class_text="template")), "the template does not use them"


def test_idle_texts_are_told(tmp_path):
    found = plan(experiment(image_folder(tmp_path), {"cat": ["a pet."]}, class_text="template"))
    assert "FedAlign: descriptions are not used with class_text = template" in found.warnings


@pytest.mark.parametrize("long", ["word " * 80, "antidisestablishmentarianism " * 14])
def test_a_text_that_would_be_cut_off_is_refused_at_planning(tmp_path, long):
    (tmp_path / "descriptions.json").write_text(json.dumps({"cat": ["a pet.", long]}))
    with pytest.raises(FedLensError, match="needs 8[26] tokens, mini-vit reads 77") as caught:
        plan(experiment(image_folder(tmp_path)))
    assert caught.value.field == "methods.0.config.descriptions"


@pytest.mark.parametrize("name", ["fedalign", "zero-shot"])
def test_a_text_that_would_be_cut_off_stops_the_run_whether_it_is_drawn_or_not(name):
    reads = "layer:1" if name == "fedalign" else "embedding"
    long = "antidisestablishmentarianism " * 30  # few words, many tokens
    for seed in range(4):
        federation = tiny_federation(reads=reads, descriptions={"cat": ["a pet.", long]})
        federation = replace(federation, problem=replace(federation.problem, seed=seed))
        with pytest.raises(FedLensError, match=r"class 'cat': the description .* tokens, tiny-vit reads 77"):
            build(name, federation, class_text="description")


def test_a_caveat_counts_classes_that_took_the_prompt():
    def caveat(embedded: bool = False, name: str = "fedalign", **fields: object) -> str:
        return registry.get(name).result_caveat(registry.build_config(name, fields), embedded)

    assert (
        caveat(embedded=True)
        == caveat(class_text="template")
        == caveat(descriptions={"cat": ["a pet."]})
        == ""
    )
    assert "not known" in caveat()
    assert caveat(descriptions={"cat": [], "dog": ["x."]}) == (
        "1 of 2 classes had no written description and used the prompt"
    )
    assert caveat(name="zero-shot") == "" != caveat(name="zero-shot", class_text="description")


def test_zero_shot_and_fedalign_draw_the_same_texts():
    written = {"cat": ["a pet.", "a tiger."], "snow owl": ["a bird."]}
    federation = tiny_federation(descriptions=written)
    aligned_federation = tiny_federation(reads="layer:1", descriptions=written)
    aligned = build("fedalign", aligned_federation)
    described = build("zero-shot", federation, class_text="description")
    plain_text = build("zero-shot", federation)
    assert described.texts == aligned.texts == build("fedalign", aligned_federation).texts
    assert described.texts[1:] == ["a bird.", "a photo of a fire engine."], (
        "the prompt where nothing is written"
    )
    problems = [replace(federation.problem, seed=seed) for seed in range(20)]
    assert {type(described)(described.config, p).texts[0] for p in problems} == set(written["cat"])
    plain = build("zero-shot", tiny_federation())
    assert (described.text[2] == plain.text[2]).all() and not (described.text[1] == plain.text[1]).all()
    assert (plain_text.text == plain.text).all()


def test_any_class_name_survives_toml_and_a_plan():
    texts = {name: [f"{name}!", 'with "quotes" and\\ 😀'] for name in ODD}
    first = config.Experiment(
        methods=(MethodEntry(name="fedalign", config={"lr": 0.5, "descriptions": texts}),)
    )
    assert config.loads(config.dumps(first)) == first
    read = config.loads(config.dumps(first)).methods[0].config["descriptions"]
    stored = class_texts.with_texts(
        registry.build_config("fedalign", {"descriptions": read}), run_context({}, classes=ODD)
    )
    assert {n: [" ".join(t.split()) for t in v] for n, v in texts.items()} == {
        n: list(v) for n, v in stored.descriptions.items()
    }


def test_texts_are_short_in_a_table_and_other_texts_read_otherwise():
    first, second = class_texts.summary(WHOLE), class_texts.summary({**WHOLE, "cat": ["a pet.", "a tiger."]})
    assert first.startswith("3 texts for 2 of 2 classes (") and first != second
    assert class_texts.summary({"cat": ("a.",), "dog": ()}).startswith("1 text for 1 of 2 classes (")


def test_the_small_form_of_an_experiment_leaves_texts_of_other_classes_out():
    entry = MethodEntry(name="fedalign", config={"descriptions": {"cat": ["a pet."]}})
    small = rehearsal(config.Experiment(data={"name": "cifar10", "root": "/none"}, methods=(entry,)))
    assert "descriptions" not in small.methods[0].config
    assert plan(small).runs
