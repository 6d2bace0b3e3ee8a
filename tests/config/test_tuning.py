import math

import pytest

from fedcore.base.errors import FedLensError
from fedcore.config import Experiment, dumps, expand, loads, parse, tuning
from fedcore.config.identity import group_hash
from fedcore.engine.plan import plan
from fedcore.methods import registry
from fedcore.methods.hyperparameters import MethodConfig
from fedcore.results.settings import row_key

TUNED = {
    "draws": 2,
    "sampler": "random",
    "search": "5" * 32,
    "seed": 0,
    "draw": 1,
    "validation": 0.5,
    "rounds": 2,
}


def experiment(**changes: object) -> Experiment:
    content = {"methods": [{"name": "fedot"}], "seeds": [1, 2], "tuning": {"draws": 6}} | changes
    return parse({"name": "tuned", **content})


def values(found: Experiment, method: str = "fedot") -> list[dict[str, object]]:
    return [run.method.config for run in expand(found) if run.method.name == method]


def test_draws_follow_from_the_seed_and_more_draws_or_methods_change_none_of_them():
    first = values(experiment())
    assert first == values(experiment()) and len(first) == 6
    assert values(experiment(tuning={"draws": 9}))[:6] == first
    assert values(experiment(methods=[{"name": "promptfl"}, {"name": "fedot"}])) == first
    assert values(experiment(tuning={"draws": 6, "seed": 7}))[1:] != first[1:]


def test_the_first_draw_is_the_method_as_written_and_the_others_lie_around_its_learning_rate():
    found = experiment(methods=[{"name": "fedot", "config": {"lr": 0.01}}], tuning={"draws": 200})
    first, *others = (run.method for run in expand(found))
    assert (first.config, first.label, first.draw) == ({"lr": 0.01}, "FedOT (draw 1)", 1)
    logs = sorted(math.log10(m.config["lr"] / 0.01) for m in others)
    assert logs[0] >= -1 and logs[-1] <= 1
    assert abs(sum(logs) / len(logs)) < 0.15 and logs[49] == pytest.approx(-0.5, abs=0.15)
    assert len({m.config["lr"] for m in others}) > 190
    assert {run.seed for run in expand(found)} == {0}


def test_whole_numbers_and_choices_are_drawn_evenly_and_a_special_table_wins():
    space = {
        "*": {"batch_size": {"low": 1, "high": 4}, "lr": {"low": 0.5, "high": 0.6}},
        "fedot": {"lr": {"low": 1, "high": 2}, "init": {"choices": ["random", "text"]}},
    }
    drawn = values(experiment(tuning={"draws": 401, "space": space}))[1:]
    for name, expected in (("batch_size", [1, 2, 3, 4]), ("init", ["random", "text"])):
        counts = [sum(one[name] == value for one in drawn) for value in expected]
        assert sum(counts) == 400 and min(counts) > 400 / len(expected) * 0.75
    rates = [one["lr"] for one in drawn]
    assert min(rates) >= 1 and max(rates) <= 2 and any(rate != int(rate) for rate in rates)


@pytest.mark.parametrize(
    ("changes", "field", "words"),
    [
        ({"tuning": {"draws": 0}}, "tuning.draws", "greater than or equal to 2"),
        ({"tuning": {"drws": 3}}, "tuning.drws", "did you mean 'draws'"),
        ({"tuning": {"seed": 2}}, "tuning.seed", "seeds that the search has not seen"),
        ({"methods": [{"name": "fedot", "tuned": TUNED | {"seed": 2}}]}, "seeds", "leave that seed out"),
        ({"sweep": {"rounds": [1, 2]}}, "tuning", "remove the sweep"),
        ({"held_out": ["0°"]}, "tuning", "held-out domain"),
        ({"methods": [{"name": "zero-shot"}]}, "tuning", "none of these methods"),
        ({"methods": [{"name": "fedot"}, {"name": "fedot"}]}, "methods", "each its own label"),
        (
            {"tuning": {"space": {"fedot": {"lr": {"low": 0, "high": 1, "log": True}}}}},
            "tuning.space.fedot.lr",
            "begins above 0",
        ),
        ({"tuning": {"space": {"fedot": {"lr": {"low": 1}}}}}, "tuning.space.fedot.lr", "low and high"),
        (
            {"tuning": {"space": {"fedot": {"lr": {"low": 0.01, "high": True}}}}},
            "tuning.space.fedot.lr.high",
            "true is not a number",
        ),
        (
            {"tuning": {"space": {"fedot": {"lr": {"low": 1, "high": 900}}}}},
            "tuning.space.fedot.lr",
            "900 cannot be tried",
        ),
        (
            {"tuning": {"space": {"fedot": {"blocs": {"choices": [1]}}}}},
            "tuning.space.fedot.blocs",
            "did you mean 'blocks'",
        ),
        (
            {"tuning": {"space": {"sdfed": {"lr": {"low": 1, "high": 2}}}}},
            "tuning.space.sdfed",
            "no method 'sdfed'",
        ),
    ],
)
def test_an_invalid_search_names_the_field_and_the_remedy(changes, field, words):
    with pytest.raises(FedLensError, match=words) as caught:
        expand(experiment(**changes))
    assert caught.value.field == field


def test_the_plan_names_what_final_runs_hold_back_and_the_search_may_have_used():
    partition = {"kind": "dirichlet", "alpha": 1, "clients": 4, "unseen": 0.25}
    warnings = plan(experiment(partition=partition)).warnings
    assert sum("drawn anew for each seed" in warning for warning in warnings) == 2
    warnings = plan(experiment(partition=partition, tuning=None)).warnings
    assert not any("drawn anew for each seed" in warning for warning in warnings)


def test_a_swept_hyper_parameter_was_not_selected_by_a_search():
    found = experiment(methods=[{"name": "fedot", "tuned": TUNED}], tuning=None)
    for path, tuned in (("methods.fedot.lr", False), ("rounds", True)):
        swept = found.model_copy(update={"sweep": {path: (1, 2)}})
        assert [run.method.tuned is not None for run in expand(swept)] == [tuned] * 4


def test_tpe_without_optuna_names_the_command_that_installs_it(monkeypatch):
    monkeypatch.setattr(tuning.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(FedLensError, match=r"pip install 'fedlens\[tune\]'"):
        expand(experiment(tuning={"sampler": "tpe"}))


def test_a_search_is_written_to_toml_and_read_again_without_its_result():
    space = {"fedot": {"lr": {"factor": 3}, "blocks": {"choices": [1, 2]}}}
    found = experiment(tuning={"draws": 5, "seed": 9, "space": space})
    assert loads(dumps(found)) == found
    ended = found.tuning.model_copy(update={"final": "f" * 32})
    assert loads(dumps(found.model_copy(update={"tuning": ended}))) == found


def test_every_built_in_method_that_trains_has_a_space_that_it_accepts():
    methods = registry.load_all()
    entries = [{"name": name} for name in methods]
    found = experiment(methods=entries)
    for i, name in enumerate(methods):
        space = tuning.space_of(found, i)
        assert ("lr" in space) == issubclass(methods[name].Config, MethodConfig), name
        for number in (2, 3):
            registry.build_config(name, tuning.drawn(found.tuning, found.methods[i], space, number))


def test_the_fields_of_a_search_change_no_row_of_runs_without_one():
    (run,) = expand(parse({"name": "x", "methods": [{"name": "fedot"}]}))
    assert (group_hash(run), row_key(run)) == ("d382c0f607cae19d", "47e8ce23fde5e3a6")
