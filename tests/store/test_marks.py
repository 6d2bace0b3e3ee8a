"""Stars, tags and notes of runs go wherever the runs go; saved views stay in their database."""

import json
import shutil
from pathlib import Path

import pytest

from fedcore.base.errors import FedLensError
from fedcore.results.comparison import compare
from fedcore.store import Store
from tests.support import fill

NOTE = 'seed 2 "diverged" 😀'


@pytest.fixture(scope="module")
def marked_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    store = Store(tmp_path_factory.mktemp("marks") / "theirs.db")
    fill.done(store.path, fill.an_experiment(methods=("fedot", "promptfl"), seeds=(1, 2), rounds=1))
    assert store.runs.mark([1, 2, 99], starred=True, tags=[" ablation ", "two  words", "ablation", ""]) == [
        1,
        2,
    ]
    assert store.runs.mark([2], notes=f" {NOTE}\n") == [2]
    return store.path


@pytest.fixture
def marked(marked_once: Path, tmp_path: Path) -> Store:
    return Store(shutil.copy(marked_once, tmp_path / "theirs.db"))


def marks(store: Store) -> list[tuple[bool, tuple[str, ...], str]]:
    return [(r.starred, r.tags, r.notes) for r in store.runs.get([1, 2, 3, 4])]


EXPECTED = [
    (True, ("ablation", "two words"), ""),
    (True, ("ablation", "two words"), NOTE),
    (False, (), ""),
    (False, (), ""),
]


def test_marks_are_kept_and_changed_one_by_one(marked: Store) -> None:
    assert marks(marked) == EXPECTED
    assert marked.runs.mark([1], starred=False) == [1]
    assert marks(marked)[0] == (False, ("ablation", "two words"), "")
    assert marked.runs.mark([1]) == []


def test_marks_come_over_with_json_and_merge(marked: Store, tmp_path: Path) -> None:
    text = marked.experiments.to_json([1])
    file = tmp_path / "experiment.json"
    file.write_text(text, encoding="utf-8")
    for name in ("json", "database"):
        ours = Store(tmp_path / f"{name}.db")
        getattr(ours.imports, name)(file if name == "json" else marked.path)
        assert marks(ours) == EXPECTED, name
        assert ours.experiments.to_json([1]) == text, name


def test_marks_that_no_fedlens_has_written_are_refused(marked: Store, tmp_path: Path) -> None:
    text, file = marked.experiments.to_json([1]), tmp_path / "bad.json"
    for change in ({"tags": "ablation"}, {"tags": [1]}, {"starred": 2}, {"notes": 3}):
        content = json.loads(text)
        content["experiments"][0]["runs"][0].update(change)
        file.write_text(json.dumps(content), encoding="utf-8")
        with pytest.raises(FedLensError, match="nothing was recorded"):
            Store(tmp_path / "ours.db").imports.json(file)


def test_runs_are_filtered_by_their_marks(marked: Store) -> None:
    where = "starred = yes and tags = 'two words' and notes contains diverged"
    assert [r.run.id for g in compare(marked, [1], where=where).rows for r in g.runs] == [2]
    rest = compare(marked, [1], where="tags = none and notes = none").rows
    assert {r.run.id for g in rest for r in g.runs} == {3, 4}


def test_views_are_saved_replaced_and_deleted(marked: Store) -> None:
    views = marked.saved_views
    views.save("compare", " Table  1 ", "ids=1&by=Worst+client")
    views.save("compare", "Table 1", "ids=1")
    views.save("live", "Table 1", "id=1")
    (view,) = views.of_page("compare")
    assert (view.name, view.query) == ("Table 1", "ids=1")
    views.delete(view.id)
    views.delete(view.id)
    assert views.of_page("compare") == [] and len(views.of_page("live")) == 1
    for name, query in ((" ", "ids=1"), ("n" * 201, "ids=1"), ("long", "ids=1&" * 9999)):
        with pytest.raises(FedLensError) as refused:
            views.save("compare", name, query)
        assert refused.value.field == "name"
