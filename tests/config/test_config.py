import pytest

from fedcore import config
from fedcore.config import expand
from fedcore.config.grouping import group_hash
from fedcore.errors import FedLensError
from fedcore.papers.experiments import preset

TEXT = """
name = "A \\"quoted\\" name, 50 % = ünïcode 🦉"
rounds = 3
seeds = [1, 2]
held_out = ["each"]
tags = ["a", "b"]
[data]
name = "shapes"
[partition]
kind = "dirichlet"
clients = 4
alpha = 0.3
[[methods]]
name = "fedot"
config = { blocks = 2, lr = 1e-4 }
[[methods]]
name = "promptfl"
label = "PromptFL (short)"
"""


def test_toml_round_trip_is_the_same_experiment():
    experiment = config.loads(TEXT)
    assert config.loads(config.dumps(experiment)) == experiment
    demo = preset("demo")
    assert config.loads(config.dumps(demo)) == demo


def test_expansion_is_one_run_per_method_seed_and_held_out_domain():
    runs = expand(config.loads(TEXT), ("photo", "sketch", "night"))
    assert len(runs) == 2 * 2 * 3
    assert {(r.method.name, r.seed, r.held_out) for r in runs} == {
        (m, s, d) for m in ("fedot", "promptfl") for s in (1, 2) for d in ("photo", "sketch", "night")
    }


def test_runs_of_one_group_differ_by_seed_and_held_out_domain_only():
    runs = expand(config.loads(TEXT), ("photo", "sketch"))
    fedot = {group_hash(r) for r in runs if r.method.name == "fedot"}
    promptfl = {group_hash(r) for r in runs if r.method.name == "promptfl"}
    assert len(fedot) == len(promptfl) == 1 and fedot != promptfl
    longer = expand(config.loads(TEXT.replace("rounds = 3", "rounds = 4")))
    assert {group_hash(r) for r in longer}.isdisjoint(fedot | promptfl)


def test_a_stored_run_reads_back_equal():
    run = expand(config.loads(TEXT), ("photo",))[0]
    assert config.RunConfig.model_validate_json(run.model_dump_json()) == run


@pytest.mark.parametrize(
    ("old", "new", "field", "message"),
    [
        ("rounds = 3", "rounds = -1", "rounds", "greater than or equal to 0"),
        ("rounds = 3", "rounds = 'x'", "rounds", "whole number"),
        ("rounds = 3", "round = 3", "round", "no such field"),
        ("seeds = [1, 2]", "seeds = [1, 1]", "seeds", "named twice"),
        ("seeds = [1, 2]", "seeds = []", "seeds", "at least 1"),
        ("seeds = [1, 2]", "seeds = [-4]", "seeds", "from 0"),
        ("alpha = 0.3", "", "partition", "needs alpha"),
        ("clients = 4", "", "partition", "needs clients"),
        ("clients = 4", "clients = 0", "partition.clients", "greater than or equal to 1"),
        ("alpha = 0.3", "alpha = 0", "partition.alpha", "greater than 0"),
        ('kind = "dirichlet"', 'kind = "dirichlett"', "partition.kind", "'domain', 'iid'"),
        ('kind = "dirichlet"', 'kind = "pathological"', "partition", "needs classes_per_client"),
        ('name = "shapes"', 'name = "shapes"\ntemplate = "a photo"', "data.template", "exactly one {}"),
        ('name = "shapes"', 'name = "shapes"\nshots = 0', "data.shots", "greater than or equal to 1"),
    ],
)
def test_a_wrong_field_is_named_with_what_is_allowed(old, new, field, message):
    with pytest.raises(FedLensError) as caught:
        config.loads(TEXT.replace(old, new))
    assert caught.value.field == field
    assert message in str(caught.value) and "\n" not in caught.value.line()


def test_what_is_not_toml_and_what_is_not_there_get_one_line(tmp_path):
    with pytest.raises(FedLensError, match="not valid TOML"):
        config.loads("name = ")
    with pytest.raises(FedLensError, match=r"cannot read .*none\.toml"):
        config.load(tmp_path / "none.toml")
