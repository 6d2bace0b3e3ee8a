import subprocess
import sys
from pathlib import Path

import pytest

from fedcore import config
from fedcore.config.grouping import group_hash
from fedcore.engine.plan import plan
from fedcore.errors import FedLensError
from tests.support.web.pictures import image_folder


def _experiment(extra: str = "", method: str = 'name = "fedot"', data: str = 'name = "rotated-digits"'):
    return config.loads(f'name = "t"\nrounds = 1\n{extra}\n[data]\n{data}\n[[methods]]\n{method}\n')


def test_a_plan_writes_every_hyper_parameter_out_and_shows_who_gets_what():
    found = plan(_experiment())
    (run,) = found.runs
    assert run.method.config["blocks"] == 1 and run.method.config["momentum"] == 0.9
    assert run.method.label == "FedOT"
    assert len(found.clients) == 6 and found.counts.shape == (6, 10)
    assert found.counts.sum() == pytest.approx(0.6 * 1797, abs=60)


def test_a_plan_says_how_far_apart_its_clients_are():
    alike = plan(_experiment('[partition]\nkind = "iid"\nclients = 4')).heterogeneity
    apart = plan(_experiment('[partition]\nkind = "pathological"\nclients = 5\nclasses_per_client = 2'))
    assert alike < 0.15
    assert apart.heterogeneity == pytest.approx(1)


def test_leave_one_domain_out_plans_a_run_per_domain():
    found = plan(_experiment('held_out = ["each"]'))
    assert [r.held_out for r in found.runs] == list(found.domains)
    assert len(found.clients) == len(found.domains) - 1


@pytest.mark.parametrize(
    ("kwargs", "field", "message"),
    [
        ({"method": 'name = "fedott"'}, "methods.0.name", "did you mean 'fedot'"),
        ({"method": 'name = "fedot"\nconfig = { blocks = 7 }'}, "methods.0.config.blocks", "do not divide"),
        (
            {"method": 'name = "fedot"\nconfig = { lr = -1 }'},
            "methods.0.config.lr",
            "greater than or equal to 0",
        ),
        ({"method": 'name = "fedot"\nconfig = { blok = 1 }'}, "methods.0.config.blok", "no such field"),
        ({"data": 'name = "rotated-digit"'}, "data.name", "rotated-digits"),
        ({"extra": 'held_out = ["mars"]'}, "held_out", "no domain 'mars'"),
    ],
)
def test_what_would_stop_a_run_is_refused_with_its_field(kwargs, field, message):
    with pytest.raises(FedLensError) as caught:
        plan(_experiment(**kwargs))
    assert caught.value.field == field and message in str(caught.value)


def _with(section: str):
    return config.loads(f'name = "t"\n{section}\n[[methods]]\nname = "fedot"\n')


@pytest.mark.parametrize(
    ("section", "field", "message"),
    [
        ('[backbone]\nname = "ViT-B-32"', "backbone.pretrained", "give an open_clip tag"),
        (
            '[backbone]\nname = "ViT-B-32"\npretrained = "/none/w.pt"',
            "backbone.pretrained",
            "no weights file",
        ),
        ('[backbone]\nname = "ViT-B-33"', "backbone.name", "did you mean"),
        ('[partition]\nkind = "iid"\nclients = 5000', "partition.clients", "samples"),
    ],
)
def test_impossible_backbones_and_partitions_are_refused(section, field, message):
    with pytest.raises(FedLensError) as caught:
        plan(_with(section))
    assert caught.value.field == field and message in str(caught.value)


def test_planning_never_imports_torch():
    code = (
        "import sys; from fedcore.papers.experiments import preset; from fedcore.engine.plan import plan; "
        "plan(preset('demo')); assert 'torch._C' not in sys.modules; print('ok')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "ok", done.stderr[-2000:]


def test_an_edited_method_file_is_another_group_and_is_refused_by_runs_planned_before(tmp_path):

    from fedcore.methods import registry

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


def test_where_the_data_lie_does_not_split_a_group():
    run = plan(_experiment()).runs[0]
    there = run.model_copy(update={"data": run.data.model_copy(update={"root": "/elsewhere"})})
    assert group_hash(run) == group_hash(there)


def test_a_plan_says_how_mixed_its_clients_labels_are():
    one_class = _experiment('[partition]\nkind = "pathological"\nclients = 10\nclasses_per_client = 1')
    assert plan(one_class).entropy == 0
    iid = plan(_experiment('[partition]\nkind = "iid"\nclients = 4'))
    assert iid.max_entropy == pytest.approx(3.3219, abs=1e-3) and iid.entropy > 3.2


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
            "FedAlign, class_text = description: 2 of 2 classes have no written description (cat, fire",
        ),
        (
            {"fire_engine": ["a red van."]},
            "description",
            "FedAlign, class_text = description: 1 of 2 classes have no written description (cat)",
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


def test_the_log_repeats_which_classes_take_the_prompt(tmp_path):
    """So that a run that was started long ago still says which classes were not described."""
    from fedcore.engine.setup import set_up
    from fedcore.records.events import Notice

    (tmp_path / "data").mkdir()
    iid = '[partition]\nkind = "iid"\nclients = 2'
    (run,) = plan(
        _experiment(iid, 'name = "fedalign"', image_folder(tmp_path / "data", {"cat": ["a pet."]}))
    ).runs
    said = [e.message for e in set_up(run, tmp_path, "cpu") if isinstance(e, Notice)]
    assert [line for line in said if "1 of 2 classes have no written description (fire engine)" in line]


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
