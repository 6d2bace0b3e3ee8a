"""Experiments as TOML files: read, expanded, and refused with the field that is wrong or unknown."""

import time

import pytest

from fedcore import config
from fedcore.base.errors import FedLensError
from fedcore.config import expand, experiment
from fedcore.config.identity import group_hash
from fedcore.methods import registry

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


@pytest.mark.parametrize("table", ["methods", "cohorts", "transfer"])
def test_a_table_in_one_bracket_is_told_to_have_two(table):
    methods = "" if table == "methods" else '[[methods]]\nname = "fedot"\n'
    with pytest.raises(FedLensError, match=rf"begin with \[\[{table}\]\], in two brackets") as refused:
        config.loads(f'{methods}[{table}]\nname = "fedot"')
    assert refused.value.field == table


def test_runs_of_one_group_differ_by_seed_and_held_out_domain_only():
    runs = expand(config.loads(TEXT), ("photo", "sketch"))
    fedot = {group_hash(r) for r in runs if r.method.name == "fedot"}
    promptfl = {group_hash(r) for r in runs if r.method.name == "promptfl"}
    assert len(fedot) == len(promptfl) == 1 and fedot != promptfl
    longer = expand(config.loads(TEXT.replace("rounds = 3", "rounds = 4")))
    assert {group_hash(r) for r in longer}.isdisjoint(fedot | promptfl)


@pytest.mark.parametrize(
    ("old", "new", "field", "message"),
    [
        ("rounds = 3", "rounds = -1", "rounds", "greater than or equal to 0"),
        ("rounds = 3", "rounds = 'x'", "rounds", "whole number"),
        ("rounds = 3", "rounds = '3'", "rounds", "a text is not a number"),
        ("rounds = 3", "rounds = true", "rounds", "true is not a number"),
        ("rounds = 3", "round = 3", "round", "no such field"),
        ("seeds = [1, 2]", "seeds = [1, 1]", "seeds", "named twice"),
        ("seeds = [1, 2]", "seeds = [-4]", "seeds", "from 0"),
        ("seeds = [1, 2]", "seeds = [2, true]", "seeds", "true is not a number"),
        ("seeds = [1, 2]", "seeds = [2, '3']", "seeds", "a text is not a number"),
        ("alpha = 0.3", "", "partition", "needs alpha"),
        ("clients = 4", "", "partition", "needs clients"),
        ('kind = "dirichlet"', 'kind = "dirichlett"', "partition.kind", "'domain', 'iid'"),
        ('kind = "dirichlet"', 'kind = "pathological"', "partition", "needs classes_per_client"),
        ('name = "shapes"', 'name = "shapes"\ntemplate = "a photo"', "data.template", "exactly one {}"),
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


METHOD = 'methods = [{ name = "fedot" }]\n'
UNKNOWN = {
    "misspelled at the top": ("seed = [1]", "seed: no such field; did you mean 'seeds'?"),
    "misspelled in a table": ("[data]\nshot = 3", "data.shot: no such field; did you mean 'shots'?"),
    "misspelled in a cohort": (
        "[[cohorts]]\nclients = 2\nbackbone = { nam = 'x' }",
        "cohorts.0.backbone.nam: no such field; did you mean 'name'?",
    ),
    "of a table, at the top": ("alpha = 0.3", "alpha: no such field; 'alpha' belongs in [partition]"),
    "of another table": ("[data]\nalpha = 0.3", "data.alpha: no such field; 'alpha' belongs in [partition]"),
    "of the top, in a table": (
        "[partition]\nrounds = 3",
        "partition.rounds: no such field; 'rounds' belongs at the top of the file, before the first table",
    ),
    "of a method": ("[data]\nblocks = 2", "'blocks' belongs in the config of a method that has it (fedot)"),
    "swept, without its table": ("[sweep]\nalpha = [1]", "did you mean 'partition.alpha'?"),
    "swept, misspelled": ("[sweep]\n'partition.alhpa' = [1]", "did you mean 'partition.alpha'?"),
    "swept, of a method": ("[sweep]\n'methods.fedot.block' = [1]", "did you mean 'blocks'?"),
}


def test_a_hyper_parameter_outside_the_config_belongs_to_the_method_of_its_entry() -> None:
    text = "[[methods]]\nname = 'fedot'\n[[methods]]\nname = 'promptfl'\nlr = 0.002"
    with pytest.raises(FedLensError) as caught:
        experiment.loads(text)
    assert caught.value.line() == (
        "methods.1.lr: no such field; 'lr' belongs in promptfl's config: "
        "config = { lr = ... }, or [methods.config]"
    )


@pytest.mark.parametrize("name", UNKNOWN)
def test_an_unknown_field_says_where_it_belongs_or_what_is_nearest(name: str) -> None:
    text, said = UNKNOWN[name]
    with pytest.raises(FedLensError) as caught:
        experiment.expand(experiment.loads(METHOD + text))
    assert said in caught.value.line()


@pytest.mark.parametrize(
    ("field", "said"),
    [
        ("rounds = 3", "config.rounds: no such field; 'rounds' belongs at the top of the file"),
        ("shots = 1", "config.shots: no such field; 'shots' belongs in [data]"),
        ("block = 3", "config.block: no such field; did you mean 'blocks'?"),
        ("blocks = true", "methods.0.config.blocks: true is not a number"),
        ("blocks = '3'", "methods.0.config.blocks: a text is not a number"),
    ],
)
def test_a_hyper_parameter_that_is_none_says_so_too(field: str, said: str) -> None:
    def read() -> None:
        entry = experiment.loads(f"methods = [{{ name = 'fedot', config = {{ {field} }} }}]").methods[0]
        registry.build_config(entry.name, entry.config, "methods.0.config")

    with pytest.raises(FedLensError) as caught:
        read()
    assert said in caught.value.line()


@pytest.mark.parametrize(
    "before", ["", "[sweep]\n", "["], ids=["a key", "a key of the sweep", "the name of a table"]
)
def test_a_key_of_thousands_of_parts_is_refused_at_once(before: str) -> None:
    key = ".".join(["a"] * 20_000)
    started = time.process_time()
    with pytest.raises(FedLensError, match="a key has 100 parts or more"):
        experiment.loads(f"{METHOD}{before}{key}{']' if before == '[' else '= [1]'}")
    assert time.process_time() - started < 1, "tomllib alone takes 9 s for the first of them"


def test_dotted_texts_are_no_keys() -> None:
    notes = "v1.2.3 ... " * 500 + ". " * 500
    assert experiment.loads(f"notes = '{notes}'\n{METHOD}").notes == notes


def test_an_experiment_has_no_more_runs_than_a_sweep_may_have() -> None:
    many = experiment.loads(f"seeds = {list(range(3001))}\nmethods = [{{ name = 'fedot' }}]")
    assert len(experiment.expand(many)) == 3001
    with pytest.raises(FedLensError, match=r"12,004 runs, more than 10,000; name fewer seeds") as caught:
        experiment.expand(many.model_copy(update={"held_out": ("a", "b", "c", "d")}))
    assert caught.value.field == "seeds"
