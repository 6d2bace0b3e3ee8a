"""A filter over runs in words keeps the runs it says, and refuses what it cannot read in one line."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcore.base.errors import FedLensError
from fedcore.config import parse as experiment
from fedcore.results.comparison import compare
from fedcore.results.run_filter import Condition, parse, run_records, select
from fedcore.store import Store
from tests.support import fill

RECORDS = {
    1: {"method": "fedot", "label": "FedOT", "partition.alpha": 0.1, "tags": ("a b", "c"), "data.drop": True},
    2: {"method": "fedot", "label": "FedOT", "partition.alpha": 0.5, "tags": (), "data.drop": False},
    3: {"method": "zero-shot", "label": "Zero-shot CLIP", "partition.alpha": None, "tags": ("c",)},
}


@pytest.mark.parametrize(
    ("text", "chosen"),
    [
        ("", {1, 2, 3}),
        ("method = fedot and partition.alpha < 0.5", {1}),
        ("method = FEDOT or partition.alpha = none", {1, 2, 3}),
        ("alpha <= .5", {1, 2}),
        ("not alpha <= 0.1", {2, 3}),
        ("alpha != 0.1", {2}),
        ("label = Zero-shot CLIP and not (tags = c and alpha > 0)", {3}),
        ("label contains shot", {3}),
        ("method in (fedot, 'zero-shot') and alpha not in (0.1, 1e3)", {2, 3}),
        ("tags = 'a b'", {1}),
        ("tags = none", {2}),
        ("not " * 494 + "tags = none", {2}),
        ("drop = true or drop = no", {1, 2}),
        ("method=fedot and alpha=0.10", {1}),
        ("method = zero-shot or method = fedot and alpha == 0.5", {2, 3}),
    ],
)
def test_runs_are_kept_as_the_words_say(text: str, chosen: set[int]) -> None:
    assert select(text, RECORDS) == chosen


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "data.alpha < 0.5",
            "no run has the field 'data.alpha' of the filter; did you mean 'partition.alpha'?",
        ),
        ("methd = fedot", "did you mean 'method'?"),
        ("alpha < small", "'alpha <' needs a number, not 'small'"),
        ("method < 3", "'method' with <, but it holds no numbers, such as 'fedot'"),
        ("method fedot", "there is no condition at method; write conditions such as method = fedot"),
        ("method =", "there is no condition at method"),
        ("seed = 1 (seed = 2)", "its brackets or a word such as 'and' are in the wrong place"),
        ("seed = 1 and ()", "its brackets or a word such as 'and' are in the wrong place"),
        ("(method = fedot", "its brackets or a word such as 'and' are in the wrong place"),
        ("method = fedot)", "are in the wrong place; write conditions such as method = fedot"),
        ("seed = 1 or or seed = 2", "are in the wrong place"),
        ("seed = 1 method = 2", "there is no condition at ="),
        ("method = 'fedot", "there is no condition at method"),
        ("c0 and seed = 1", "there is no condition at c0"),
        ("and", "are in the wrong place"),
        ("method in fedot", "there is no condition at method"),
        ("not", "are in the wrong place"),
        ("(" * 400, "are in the wrong place"),
        ("x" * 3000, "longer than 2000 characters"),
    ],
)
def test_what_cannot_be_read_is_said_in_one_line(text: str, said: str) -> None:
    with pytest.raises(FedLensError) as refused:
        select(text, RECORDS)
    assert said in str(refused.value) and refused.value.field == "where"
    assert "\n" not in str(refused.value)


def test_the_end_of_a_name_must_name_one_field() -> None:
    records = {1: {"data.name": "digits", "backbone.name": "mini-vit"}}
    with pytest.raises(FedLensError, match=r"'name' may be data\.name, backbone\.name"):
        select("name = digits", records)


WORDS = st.sampled_from(["fedot", "a b", "0.5", "x'y", "none", "and", "(", "Zero-shot CLIP", "1e3", "true"])
CONDITIONS = st.tuples(
    st.sampled_from(["method", "label", "alpha", "tags", "partition.alpha", "data.drop"]),
    st.sampled_from(["=", "!=", "contains"]),
    WORDS,
) | st.tuples(st.just("alpha"), st.sampled_from(["<", "<=", ">", ">="]), st.just("0.5"))


@settings(max_examples=100, deadline=None, database=None)
@given(st.tuples(CONDITIONS, CONDITIONS, CONDITIONS))
def test_words_join_conditions_as_they_say(conditions: tuple[tuple[str, str, str], ...]) -> None:
    a, b, c = (" ".join([*x[:2], f'"{x[2]}"' if "'" in x[2] else f"'{x[2]}'"]) for x in conditions)
    read = parse(f"{a} and {b}")[1]
    assert read == tuple(Condition(field, operator, (value,)) for field, operator, value in conditions[:2])
    chosen, also, third = (select(text, RECORDS) for text in (a, b, c))
    assert select(f"not {a}", RECORDS) == set(RECORDS) - chosen
    assert select(f"{a} and {b} or {c}", RECORDS) == chosen & also | third
    assert select(f"{a} AND not ({b} or {c})", RECORDS) == chosen - (also | third)


@settings(max_examples=200, deadline=None, database=None)
@given(st.text(alphabet="abm.=<>!()',\" \n0-9éandornti", max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    refused = ""
    try:
        chosen = select(text, RECORDS)
    except FedLensError as error:
        chosen, refused = set(), f"{error.field}: {error}"
    assert chosen <= set(RECORDS) and "\n" not in refused
    assert not refused or refused.startswith("where: ")


def test_a_comparison_of_filtered_runs(tmp_path: Path) -> None:
    store = Store(tmp_path / "runs.db")
    plain = fill.an_experiment(methods=("fedot", "promptfl"), seeds=(1, 2), rounds=1).model_dump()
    fill.done(store.path, experiment({**plain, "sweep": {"methods.fedot.blocks": [1, 2]}}))
    filtered = compare(store, [1], where="blocks = 2 and seed = 1 or method = promptfl")
    assert {(g.method, len(g.runs)) for g in filtered.rows} == {("fedot", 1), ("promptfl", 2)}
    assert any("3 runs are left out by the filter" in note for note in filtered.notes)
    runs = store.runs.of_experiments([1])
    records = run_records(runs, store.runs.configs([r.id for r in runs]))
    assert {records[r.id]["seed"] for r in runs} == {1, 2}
    assert {records[r.id].get("method.config.blocks") for r in runs} == {1, 2, None}


def test_fields_are_known_by_the_titles_of_the_tab_config() -> None:
    records = {
        1: {"partition.alpha": 0.1, "label": "a"},
        2: {"partition.alpha": 0.5, "label": "dirichlet alpha = 1"},
    }
    assert select("Dirichlet alpha < 0.3", records) == {1}
    assert select("not (dirichlet alpha in (0.1, 1))", records) == {2}
    assert select("label = 'dirichlet alpha = 1'", records) == {2}
