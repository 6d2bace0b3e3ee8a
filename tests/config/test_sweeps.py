"""Sweeps: what combinations there are, what is refused, and that a run needs nothing but its own config."""

import pytest

from fedcore import config
from fedcore.base.errors import FedLensError
from fedcore.config import expand
from fedcore.config.identity import group_hash
from fedcore.engine.plan import plan
from fedcore.papers.experiments import preset

BASE = """
name = "t"
rounds = 1
[data]
name = "shapes"
domains = ["photo"]
[partition]
kind = "dirichlet"
clients = 3
[[methods]]
name = "fedot"
label = "FedOT v1.5"
[[methods]]
name = "promptfl"
[[methods]]
name = "zero-shot"
[sweep]
"partition.alpha" = [1.0]
"""


def of(sweep: str, base: str = BASE) -> config.Experiment:
    return config.loads(base + sweep)


def values(run: config.RunConfig, *names: str) -> tuple:
    return tuple(run.method.config.get(name) for name in names)


def test_every_combination_is_run_and_no_method_is_repeated_for_values_of_others():
    found = expand(of('"methods.fedot.blocks" = [1, 2, 4]\nrounds = [5, 2]\n"methods.*.lr" = [0.1, 0.01]'))
    by_method = {m: [r for r in found if r.method.name == m] for m in ("fedot", "promptfl", "zero-shot")}
    assert [(r.rounds, *values(r, "blocks", "lr")) for r in by_method["fedot"]] == [
        (rounds, blocks, lr) for rounds in (5, 2) for blocks in (1, 2, 4) for lr in (0.1, 0.01)
    ]
    assert [(r.rounds, *values(r, "lr")) for r in by_method["promptfl"]] == [
        (5, 0.1),
        (5, 0.01),
        (2, 0.1),
        (2, 0.01),
    ]
    assert [r.rounds for r in by_method["zero-shot"]] == [5, 2]


def test_seeds_and_held_out_domains_multiply_the_combinations():
    text = BASE.replace("rounds = 1", 'rounds = 1\nseeds = [1, 2]\nheld_out = ["each"]')
    found = expand(of('"methods.fedot.blocks" = [1, 2]', text), ("a", "b", "c"))
    assert len(found) == 3 * 2 * (2 + 1 + 1)
    assert len({(group_hash(r), r.seed, r.held_out) for r in found}) == len(found)
    assert {(r.seed, r.held_out) for r in found} == {(s, d) for s in (1, 2) for d in ("a", "b", "c")}


def test_a_method_is_named_by_name_by_label_or_all_at_once():
    for path in ("methods.fedot.tau", '"methods.FedOT v1.5.tau"', '"methods.*.tau"'):
        assert [values(r, "tau") for r in expand(of(f"{path} = [3.0, 4.0]"))[:2]] == [(3.0,), (4.0,)]


def test_labels_name_the_values_so_that_runs_can_be_told_apart():
    found = plan(of('"methods.fedot.blocks" = [1, 2]\n"methods.*.local_epochs" = [1, 4]')).runs
    assert [r.method.label for r in found] == [
        "FedOT v1.5 (Dirichlet alpha 1, blocks 1, local epochs 1)",
        "FedOT v1.5 (Dirichlet alpha 1, blocks 1, local epochs 4)",
        "FedOT v1.5 (Dirichlet alpha 1, blocks 2, local epochs 1)",
        "FedOT v1.5 (Dirichlet alpha 1, blocks 2, local epochs 4)",
        "PromptFL (Dirichlet alpha 1, local epochs 1)",
        "PromptFL (Dirichlet alpha 1, local epochs 4)",
        "Zero-shot CLIP (Dirichlet alpha 1)",
    ]


def test_a_swept_run_is_the_run_that_its_values_alone_describe():
    """Nothing of the sweep is left in a run: written by hand, the config gives the same group."""
    swept = plan(of('"methods.fedot.blocks" = [1, 4]')).runs[1]
    text = BASE.replace("clients = 3", "clients = 3\nalpha = 1.0").split("[sweep]")[0]
    by_hand = plan(config.loads(text.replace('"FedOT v1.5"', '"x"\nconfig = { blocks = 4 }'))).runs[0]
    assert group_hash(swept) == group_hash(by_hand)
    assert config.RunConfig.model_validate_json(swept.model_dump_json()) == swept
    assert "sweep" not in swept.model_dump()


def test_every_setting_is_planned_with_its_own_clients():
    """blocks is checked against the swept backbone, alpha and clients against the samples there are."""
    found = plan(of('"partition.clients" = [2, 5]\n"partition.kind" = ["iid", "dirichlet"]')).runs
    assert {(r.partition.clients, r.partition.kind) for r in found} == {
        (2, "iid"),
        (2, "dirichlet"),
        (5, "iid"),
        (5, "dirichlet"),
    }


def test_toml_round_trip_with_dotted_and_quoted_paths():
    experiment = of('methods.fedot.blocks = [1, 2]\n"methods.*.lr" = [1, 0.5]\nparticipation = [1, 0.5]')
    assert list(experiment.sweep) == [
        "partition.alpha",
        "methods.fedot.blocks",
        "methods.*.lr",
        "participation",
    ]
    again = config.loads(config.dumps(experiment))
    assert again == experiment and list(again.sweep) == list(experiment.sweep)
    assert "sweep" not in config.dumps(preset("demo"))


@pytest.mark.parametrize(
    "partition", [{"kind": "dirichlet", "clients": 3}, {"kind": "dirichlet", "clients": 3, "alpha": None}]
)
def test_a_field_that_only_the_sweep_gives_needs_no_value_besides(partition):
    experiment = config.parse(
        {"methods": [{"name": "fedot"}], "partition": partition, "sweep": {"partition.alpha": [0.5, 2]}}
    )
    assert experiment.partition.alpha == 0.5
    assert [r.partition.alpha for r in expand(experiment)] == [0.5, 2]


def test_a_method_is_checked_in_the_setting_that_it_is_swept_into():
    text = BASE.replace('name = "promptfl"', 'name = "fedalign"')
    with pytest.raises(
        FedLensError, match=r"mini-rn has no ViT tokens.*\(with Dirichlet alpha 1, CLIP backbone mini-rn\)"
    ) as caught:
        plan(of('backbone.name = ["mini-vit", "mini-rn"]', text))
    assert caught.value.field == "sweep.backbone.name"


@pytest.mark.parametrize(
    ("cohort", "path"),
    [
        ("backbone = { name = 'mini-vit' }", "backbone.name"),
        ("local_epochs = 2", "methods.*.local_epochs"),
        ("batch_size = 8", "methods.fedot.batch_size"),
    ],
)
def test_what_every_cohort_sets_for_itself_is_not_swept(cohort, path):
    values = "['mini-vit', 'mini-rn']" if path == "backbone.name" else "[1, 2]"
    cohorts = f"[[cohorts]]\nclients = 1\n{cohort}\n[[cohorts]]\nclients = 2\n"
    with pytest.raises(FedLensError, match="would never be used") as caught:
        expand(of(f"'{path}' = {values}", cohorts_before_methods(cohorts + cohort)))
    assert caught.value.field == f"sweep.{path}"
    assert len(expand(of(f"'{path}' = {values}", cohorts_before_methods(cohorts)))) > 3, "one cohort is open"


def cohorts_before_methods(cohorts: str) -> str:
    return BASE.replace("[[methods]]", f"{cohorts}\n[[methods]]", 1)


@pytest.mark.parametrize(
    ("line", "field", "message"),
    [
        ("seeds = [1, 2]", "seeds", "no such field to sweep"),
        ("partition.beta = [1]", "partition.beta", "no such field to sweep"),
        ("data.name = ['a', 'b']", "data.name", "the same for a whole experiment"),
        ("methods.fedot = [1]", "methods.fedot", "name the field too"),
        ("rounds = []", "rounds", "the list is empty"),
        ("rounds = 5", "rounds", "give a list of values, e.g. [5]"),
        (f"rounds = '{'x' * 5000}'", "rounds", f"e.g. [{'x' * 100}…]"),
        ("rounds = [[5]]", "rounds", "not list"),
        ("rounds = [5, 5]", "rounds", "5 is named twice"),
        ("participation = [1, 1.0]", "participation", "1 is named twice"),
        ("'methods.*.lr' = [0.1, 0.1]", "methods.*.lr", "0.1 is named twice"),
        ("'methods.*.lr' = [1, 1.0]", "methods.*.lr", "1 is named twice"),
        ("rounds = [true, 2]", "rounds", "true is not a number"),
        ("rounds = [5, -1]", "rounds", "greater than or equal to 0 (got -1)"),
        ("partition.kind = ['idd']", "partition.kind", "'domain', 'iid'"),
        ("data.shots = ['few']", "data.shots", "whole number"),
        ("data.shots = ['4']", "data.shots", "a text is not a number"),
        ("rounds = [5]\n'rounds' = [6]", None, "Cannot overwrite"),
        ("partition.clients = [2]\n'partition.clients' = [3]", "partition.clients", "swept twice"),
    ],
)
def test_a_sweep_that_is_wrong_by_itself_is_refused_when_it_is_read(line, field, message):
    with pytest.raises(FedLensError) as caught:
        of("", BASE.replace('"partition.alpha" = [1.0]', '"partition.min_samples" = [1]') + line)
    assert caught.value.field == (field and f"sweep.{field}")
    assert message in str(caught.value) and "\n" not in caught.value.line()


@pytest.mark.parametrize(
    ("line", "field", "message"),
    [
        ("methods.x.lr = [1]", "methods.x.lr", "this experiment has no method 'x'; choose from FedOT"),
        ("'methods.*.blok' = [1]", "methods.*.blok", "no method of this experiment has a field 'blok'"),
        ("methods.promptfl.blocks = [1]", "methods.promptfl.blocks", "promptfl does not have a field"),
        (
            "'methods.*.lr' = [1]\nmethods.fedot.lr = [2]",
            "methods.fedot.lr",
            "FedOT v1.5 is swept over 'lr' by methods.*.lr already",
        ),
        (
            "methods.fedot.blocks = [1, 7]",
            "methods.fedot.blocks",
            "embedding width 192; use 6 or 8 (with Dirichlet alpha 1, blocks 7)",
        ),
        ("data.template = ['a photo']", "data.template", "exactly one {}"),
        ("backbone.name = ['mini-vit', 'ViT-B-33']", "backbone.name", "did you mean"),
        ("partition.clients = [3, 5000]", "partition.clients", "samples"),
        ("partition.kind = ['dirichlet', 'pathological']", "partition.kind", "needs classes_per_client"),
        ("partition.classes_per_client = [1, 2]", "partition.classes_per_client", "does not use"),
        ("data.shots = [" + ",".join(map(str, range(1, 4001))) + "]", None, "12,000 combinations"),
    ],
)
def test_a_sweep_that_does_not_fit_the_experiment_is_refused_when_it_is_planned(line, field, message):
    with pytest.raises(FedLensError) as caught:
        plan(of(line))
    assert caught.value.field == (f"sweep.{field}" if field else "sweep")
    assert message in str(caught.value)


def test_the_example_has_as_many_runs_as_its_guide_says():
    assert len(plan(config.load("examples/sweep.toml")).runs) == 3 * 2 * 2 + 2 * 2
