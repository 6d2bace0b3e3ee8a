from collections.abc import Iterator
from pathlib import Path

import pytest

from fedcore.base.errors import FedLensError
from fedcore.base.events import RoundFinished, Started
from fedcore.base.files import PROJECT
from fedcore.cli.experiments import train_in_process
from fedcore.config import Experiment, MethodEntry, expand, parse
from fedcore.config.identity import group_hash
from fedcore.config.tuning import contains, space_of
from fedcore.jobs import process, supervisor
from fedcore.jobs.tuning import advance, problem_of, propose
from fedcore.methods import registry
from fedcore.share.checked import checked_comparison
from fedcore.share.recipe import recipe_of
from fedcore.share.rerun import trainable
from fedcore.store import Store
from fedcore.store.database import writing
from fedcore.store.liveness import let_go
from fedcore.store.writer import RunWriter, set_config
from tests.support import fake_engine, fill


def search(draws: int = 4, **changes: object) -> Experiment:
    content = {"methods": [{"name": "fedot"}, {"name": "zero-shot"}], "rounds": 1, "seeds": [1, 2]}
    return parse({"name": "tuned", "tuning": {"draws": draws}, **content, **changes})


def end_draw(writer: RunWriter, validation: int, test: int = 30) -> None:
    """Record one round of a claimed run: ``validation`` and ``test`` of 60 samples correct."""
    writer.started(Started(entities=fill.entities(("a",), ("a",)), rounds_total=1, environment={}))
    cells = (fill.cell(1, 1, validation, 60, split=1), fill.cell(1, 1, test, 60))
    seconds = {"seconds_train": 2.0, "seconds_aggregate": 0.5, "seconds_evaluate": 9.0}
    writer.write_round(RoundFinished(round=1, bytes_up=40, bytes_down=60, cells=cells, **seconds))
    writer.claim.finish("done")


def ended(db: Path, validation: list[int | None], test: list[int] | None = None, **changes: object) -> int:
    """A search whose draws of FedOT have these validation counts; None has failed. Returns its number."""
    created, writers = fill.start(db, search(len(validation), **changes))
    for i, (writer, count) in enumerate(zip(writers, [*validation, 20], strict=True)):
        if count is None:
            writer.claim.finish("failed", "it diverged")
        else:
            end_draw(writer, count, 30 if test is None or i == len(validation) else test[i])
    let_go(db, writers[0].claim.owner)
    return created.experiment_id


def final_of(store: Store, number: int):
    identity = store.experiments.get(number).config.tuning.final
    return store.experiments.get(store.searches.by_uuid(identity))


@pytest.mark.parametrize("test", [[60, 0, 0, 0], [0, 0, 60, 0], [0, 0, 0, 0]])
def test_validation_samples_decide_and_no_test_count_changes_the_choice(db, test):
    store, number = Store(db), ended(db, [10, 40, 30, 40], test)
    assert advance(store, number) is not None
    fedot, zero_shot = final_of(store, number).config.methods
    assert fedot.tuned.draw == 2, "the first of equals"
    assert fedot.tuned.validation == pytest.approx(40 / 60)
    assert zero_shot.tuned is None


@pytest.mark.parametrize("tuning", [{}, {"tuning": {"draws": 8, "sampler": "tpe"}}])
@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE scores SET personal_mean=personal_mean+0.5 WHERE split=1 AND run_id=1",
        "UPDATE rounds SET bytes_up=bytes_up*2 WHERE run_id=3",
    ],
)
def test_a_damaged_number_selects_nothing(db, tuning, damage):
    """One flipped bit of a validation score chose another draw, which was trained and exported."""
    store, number = Store(db), ended(db, [10, 40, 30, 20], **tuning)
    fill.alter(db, damage)
    with pytest.raises(
        FedLensError, match=r"run [13], round 1 differs .* nothing is selected in experiment 1"
    ):
        advance(store, number)
    assert store.searches.waiting() == [number] and len(store.experiments.all()) == 1


def test_a_damaged_search_is_not_checked_at_every_step(db, monkeypatch, step_until):
    """The check of a large database takes seconds."""
    number, checks = ended(db, [10, 20]), []
    fill.alter(db, "UPDATE rounds SET bytes_up=bytes_up*2 WHERE run_id=1")

    def counted(store: Store, search: int) -> object:
        checks.append(search)
        return advance(store, search)

    monkeypatch.setattr(supervisor, "advance", counted)
    monkeypatch.setattr(supervisor, "SHARE", 1e-9)
    step_until(lambda: checks)
    for _ in range(5):
        step_until()
    assert checks == [number]


def test_what_follows_a_search_has_its_place_in_the_queue(db):
    store, number = Store(db), ended(db, [10, 20])
    with writing(db) as database:
        database.execute("UPDATE runs SET priority=3 WHERE id=1")
    advance(store, number)
    (other,) = store.experiments.create(
        search(2, tuning=None, methods=[{"name": "fedot"}], seeds=[5])
    ).run_ids
    final = [run.id for run in final_of(store, number).runs]
    with writing(db) as database:
        database.execute("UPDATE runs SET priority=2 WHERE id=?", [other])
    assert store.queue.ids() == [*final, other]


def test_final_runs_hold_the_values_and_their_origin_and_have_seeds_of_their_own(db):
    store, number = Store(db), ended(db, [10, 20, 40, None])
    advance(store, number)
    final = final_of(store, number)
    draws, runs = store.searches.draws(number)["FedOT"], store.runs.configs([r.id for r in final.runs])
    assert [(r.label, r.seed, r.status) for r in final.runs] == [
        ("FedOT", 1, "queued"),
        ("Zero-shot CLIP", 1, "queued"),
        ("FedOT", 2, "queued"),
        ("Zero-shot CLIP", 2, "queued"),
    ]
    assert final.name == "tuned" and store.experiments.get(number).name == "Search: tuned"
    tuned = next(iter(runs.values())).method
    assert tuned.config == draws[2].config.method.config != draws[0].config.method.config
    origin = tuned.tuned
    assert origin.search == store.experiments.get(number).uuid
    assert (origin.draw, origin.draws, origin.failed, origin.data) == (3, 4, 1, "rotated-digits")
    assert (origin.rounds, origin.bytes, origin.seconds) == (3, 300, 7.5), "all draws are charged"
    alone = expand(final.config)[0]
    changed = {"lr": tuned.config["lr"]}
    assert alone.method.config == changed, "the experiment alone, without its search, gives the same values"


def test_deleted_draws_change_neither_the_selected_values_nor_the_number_of_draws(db):
    store, number = Store(db), ended(db, [10, 40, 30])
    first, second, third = store.searches.draws(number)["FedOT"]
    store.runs.delete([first.run_id, third.run_id])
    advance(store, number)
    entry = final_of(store, number).config.methods[0]
    assert entry.config == {"lr": second.config.method.config["lr"]}
    assert (entry.tuned.draws, entry.tuned.draw) == (3, 2)


def test_a_method_whose_draws_were_deleted_is_named(db):
    store, number = Store(db), ended(db, [10, 40])
    store.runs.delete([draw.run_id for draw in store.searches.draws(number)["FedOT"]])
    advance(store, number)
    assert "FedOT: no draw of the search succeeded" in final_of(store, number).notes


def test_a_search_with_the_longest_name_can_be_read_elsewhere(db, tmp_path):
    store, number = Store(db), ended(db, [10, 20], name="n" * 500)
    file = tmp_path / "search.json"
    file.write_text(store.experiments.to_json([number]))
    Store(tmp_path / "other.db").imports.json(file)
    (search,) = Store(tmp_path / "other.db").experiments.all()
    assert search.name == f"Search: {'n' * 492}" and search.config.name == "n" * 500
    assert Store(tmp_path / "other.db").searches.waiting() == [], "the draws were not trained there"


def test_draws_of_different_code_are_noted(db):
    store, number = Store(db), ended(db, [10, 20])
    draw = store.searches.draws(number)["FedOT"][1]
    method = draw.config.method.model_copy(update={"sha256": "a" * 64})
    with writing(db) as database:
        set_config(database, draw.run_id, draw.config.model_copy(update={"method": method}))
    advance(store, number)
    assert final_of(store, number).notes.startswith("FedOT: its file was changed during the search")


def test_what_follows_a_search_is_made_once_even_after_it_was_deleted(db):
    store, number = Store(db), ended(db, [10, 20])
    assert store.searches.waiting() == [number]
    followed = advance(store, number)
    assert advance(store, number) is None and store.searches.waiting() == []
    store.experiments.delete(followed.experiment_id)
    assert advance(store, number) is None and store.searches.waiting() == []
    assert [e.id for e in store.experiments.all()] == [number]


def test_two_processes_that_follow_a_search_at_once_make_one_final_experiment(db):
    store, number = Store(db), ended(db, [10, 20])
    row = store.experiments.get(number)
    runs = expand(row.config.model_copy(update={"tuning": None}))
    results = [store.searches.conclude(number, row.config, runs) for _ in range(2)]
    assert [result is None for result in results] == [False, True]


def test_a_worker_goes_on_where_a_killed_one_left_the_search(db, step_until):
    store, number = Store(db), ended(db, [10, 20])
    step_until(lambda: store.experiments.get(number).config.tuning.final)
    assert {r.status for r in final_of(store, number).runs} <= {"queued", "running", "done"}
    assert len(store.experiments.all()) == 2


def test_a_search_that_cannot_go_on_is_reported_and_holds_nothing_up(db, monkeypatch, step_until, caplog):
    held, number = ended(db, [10, 20]), ended(db, [10, 20])

    def fails_once(store: Store, search: int) -> object:
        if search == held:
            raise FedLensError("its method's file is gone", "methods")
        return advance(store, search)

    monkeypatch.setattr(supervisor, "advance", fails_once)
    store = Store(db)
    step_until(lambda: store.experiments.get(number).config.tuning.final)
    step_until(lambda: {r.status for r in final_of(store, number).runs} == {"done"})
    assert store.searches.waiting() == [held]
    assert caplog.text.count(f"the search of experiment {held} cannot go on: ") == 1
    assert [problem_of(store, search) for search in (held, number)] == ["its method's file is gone", None]


def test_a_waiting_search_starts_a_worker(db, monkeypatch):
    started = []
    monkeypatch.setattr(supervisor, "_start_detached", lambda *_: started.append(1))
    monkeypatch.setattr(supervisor, "_STARTED", {})
    ended(db, [10, 20])
    assert supervisor.ensure_worker(Store(db)) and started


def test_a_stopped_draw_holds_the_search_until_it_is_resumed(db):
    created, writers = fill.start(db, search(2))
    for writer in writers[1:]:
        end_draw(writer, 20)
    writers[0].claim.finish("stopped", "as asked")
    store = Store(db)
    assert store.searches.waiting() == [] and advance(store, created.experiment_id) is None


def test_a_method_whose_draws_all_failed_is_named_and_a_search_without_any_is_an_error(db):
    store, number = Store(db), ended(db, [None, None])
    advance(store, number)
    assert [m.name for m in final_of(store, number).config.methods] == ["zero-shot"]
    assert "FedOT: no draw of the search succeeded" in final_of(store, number).notes
    created, writers = fill.start(db, search(2))
    for writer in writers:
        writer.claim.finish("failed", "it diverged")
    assert store.searches.waiting() == []
    with pytest.raises(FedLensError, match="all 3 draws of the search in experiment"):
        advance(store, created.experiment_id)


def test_another_method_s_search_of_equal_values_is_another_row(db):
    store = Store(db)
    numbers = [ended(db, [40, 20]), ended(db, [40, 20])]
    for number in numbers:
        advance(store, number)
    hashes = {r.group_hash for n in numbers for r in final_of(store, n).runs if r.method == "fedot"}
    untuned = group_hash(expand(parse({"name": "x", "methods": [{"name": "fedot"}], "rounds": 1}))[0])
    assert len(hashes) == 2 and untuned not in hashes


@pytest.fixture
def text_shift() -> Iterator[MethodEntry]:
    """A method of the user's own, which the test may forget."""
    file = PROJECT / "examples" / "text_shift.py"
    (name,) = registry.load_file(file)
    yield MethodEntry(name=name, file=str(file))
    forget(name)


def forget(name: str) -> None:
    del registry._METHODS[name], registry._FILES[name]


def test_a_worker_that_has_not_loaded_a_user_s_method_follows_its_search(db, text_shift):
    methods = [text_shift.model_dump(), {"name": "zero-shot"}]
    store, number = Store(db), ended(db, [10, 30], methods=methods)
    forget(text_shift.name)
    advance(store, number)
    (run, *_) = store.runs.configs([r.id for r in final_of(store, number).runs]).values()
    assert run.method.label == "Text shift" and run.method.tuned.draw == 2
    assert run.method.config["lr"] != 0.02


def test_a_table_for_all_methods_is_read_before_each_user_s_method_is_loaded(text_shift):
    methods = [{"name": "fedot"}, text_shift.model_dump() | {"label": "Mine"}]
    space = {"*": {"lr": {"low": 0.1, "high": 0.2}}}
    config = search(methods=methods, tuning={"draws": 2, "space": space})
    forget(text_shift.name)
    assert list(space_of(config, 0)) == ["lr"]


def test_the_draws_of_a_bundle_are_repeated_and_nothing_follows_them(db):
    number = ended(db, [10, 20])
    with checked_comparison(Store(db), [number]) as checked:
        (part,) = trainable(recipe_of(checked), {})
    again, outcomes = process.run_local(
        Store(db), part.config, [run.config for run in part.runs], device="cpu", handler=fake_engine.training
    )
    assert len(outcomes) == 3 and Store(db).experiments.get(again).name == "Search: tuned"
    assert Store(db).searches.waiting() == [number]


def test_one_process_trains_the_search_and_what_follows_and_says_what_was_selected(db, capsys):
    experiment = search(3)
    outcomes, _ = train_in_process(
        Store(db), experiment, expand(experiment), "cpu", fake_engine.training, False
    )
    final = final_of(Store(db), 1)
    assert final.config.tuning is None and len(final.runs) == 4
    assert set(outcomes.values()) == {"done"} and len(outcomes) == 4 + 4
    lines = capsys.readouterr().err.splitlines()
    assert any(line.startswith("search: experiment 1: FedOT: draw ") for line in lines)
    assert lines[-1] == f"note: experiment {final.id} in {db}"


def test_tpe_proposes_batches_that_follow_from_the_recorded_draws(db):
    pytest.importorskip("optuna")
    tuning = {"draws": 6, "sampler": "tpe"}
    created, writers = fill.start(db, search(4, tuning=tuning))
    assert len(writers) == 5, "the first batch is random, and zero-shot has nothing to search"
    for i, writer in enumerate(writers):
        end_draw(writer, 20 + i)
    store, number = Store(db), created.experiment_id
    config = store.experiments.get(number).config
    draws, space = store.searches.draws(number)["FedOT"], space_of(config, 0)
    first = propose(config.tuning, "fedot", space, draws, 2)
    assert first == propose(config.tuning, "fedot", space, draws, 2)
    followed = advance(store, number)
    added = store.runs.configs(followed.run_ids).values()
    assert [run.method.draw for run in added] == [5, 6]
    assert [{"lr": run.method.config["lr"]} for run in added] == first
    assert all(contains(space["lr"], run.method.config["lr"]) for run in added)
    assert advance(store, number) is None, "these have not ended"
    with writing(db) as database:
        database.execute("UPDATE runs SET status='failed', owner='x' WHERE status='queued'")
    assert advance(store, number) is not None
    assert final_of(store, number).config.methods[0].tuned.draws == 6
