"""Published experiments cut to a few methods, and made-up runs of them in a store."""

import shutil
from pathlib import Path

import numpy as np

from fedcore import config
from fedcore.base.events import Diagnostic, Entity, RoundFinished, Started
from fedcore.base.seeds import numpy_generator
from fedcore.config import Experiment
from fedcore.engine.plan import plan
from fedcore.papers import choices, experiments, pasted, published
from fedcore.papers.cells import Availability, Filling, TableCell, fillings
from fedcore.papers.choices import Multiverse
from fedcore.papers.published import PublishedValue
from fedcore.store import Created, Store
from fedcore.store.liveness import new_owner
from fedcore.store.writer import RunWriter
from tests.support import fill

PACS = ("art_painting", "cartoon", "photo", "sketch")
TOTAL, ROUNDS = 200, 3


def value_of(paper: str, **fields: str) -> PublishedValue:
    """The one published value with these fields."""
    (found,) = [f for f in published.load(paper) if all(getattr(f, k) == v for k, v in fields.items())]
    return found


PAPER = 'title = "Mine"\ncitation = "Me, 2026"\nlicence = "facts"\nkind = "paper"\n'
HEAD = "table,dataset,setting,backbone,method,target,metric,value,std\n"


def paper_folder(place: Path, **files: str | None) -> Path:
    """Write the files of a paper's folder, each by its name without its ending."""
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    for name, text in ({"paper": PAPER} | files).items():
        if text is not None:
            suffix = "toml" if name in ("paper", "runs", "choices") else "csv"
            (place / f"{name}.{suffix}").write_text(text, encoding="utf-8")
    return place


def reading(text: str, **common: str) -> pasted.Reading:
    """The values of a text with one pasted table, with its columns as they are guessed."""
    (grid,) = pasted.read(text)
    return pasted.values(grid, pasted.guess(grid), {"table": "1", **common}, "mine")


def queue(store: Store, filling: Filling) -> Created:
    """Queue the missing runs of an experiment, as the page does."""
    runs = filling.reduced(plan(filling.experiment)).runs
    return store.experiments.create(filling.experiment, runs)


def share(method: str, seed: int, round_: int, model: str, test_set: str) -> float:
    """A made-up accuracy, a whole number of TOTAL samples."""
    rng = numpy_generator(seed, "published", method, round_, model, test_set)
    return int(rng.integers(1, TOTAL)) / TOTAL


def finished(run: config.RunConfig, round_: int, clients: list[str]) -> RoundFinished:
    """A round with a full matrix; validation says that round 2 is the best."""
    models = ["global", *clients]
    tests = [
        *((c, 1 + i) for i, c in enumerate(clients)),
        *((d, 1 + len(clients) + i) for i, d in enumerate(PACS)),
    ]
    cells = []
    for code, model in enumerate(models):
        for test_set, test_code in tests:
            kind = "client" if test_code <= len(clients) else "domain"
            hits = round(
                share(f"{run.method.label}/{run.held_out}", run.seed, round_, model, f"{kind}:{test_set}")
                * TOTAL
            )
            cells.append(fill.cell(code, test_code, hits, TOTAL, 1.0))
            if test_code == code:
                cells.append(fill.cell(code, code, 90 if round_ == 2 else 10, 100, 1.0, split=1))
    return RoundFinished(
        round=round_,
        seconds_train=0.1,
        seconds_aggregate=0.1,
        seconds_evaluate=0.1,
        cells=tuple(cells),
        diagnostics=tuple(Diagnostic("condition_number", 1.0 + c, client_a=c) for c in range(1, len(models))),
    )


def train(
    db: Path,
    experiment: Experiment,
    held_out: tuple[str | None, ...] | None = None,
    rounds: int | None = None,
) -> None:
    """Record finished runs of an experiment; of some held-out domains, or the first rounds, where given."""
    _, writers = fill.start(db, experiment)
    for writer in writers:
        run = fill.config_of(writer)
        if held_out is not None and run.held_out not in held_out:
            writer.claim.finish("stopped", "not wanted")
            continue
        clients = [d for d in PACS if d != run.held_out]
        listed = [Entity(0, "global", "global")]
        listed += [
            Entity(i, "client", c, domain=c, samples=100, class_counts=(50, 50))
            for i, c in enumerate(clients, start=1)
        ]
        listed += [Entity(len(listed) + i, "domain", d, domain=d, samples=TOTAL) for i, d in enumerate(PACS)]
        writer.started(
            Started(entities=tuple(listed), rounds_total=run.rounds, environment={"device": "cpu"})
        )
        for round_ in range((run.rounds if rounds is None else rounds) + 1):
            writer.write_round(finished(run, round_, clients))
        writer.claim.finish("done")


def finish(db: Path, experiment_id: int) -> None:
    """Record made-up rounds of all queued runs of a rehearsal; its clients are its domains."""
    store, owner = Store(db), new_owner()
    queued = [r for r in store.runs.of_experiments([experiment_id]) if r.state == "queued"]
    for _ in queued:
        writer = RunWriter(store.jobs.claim(owner, "cpu", experiment_id=experiment_id))
        writer.claim.begin()
        fill.train(writer, clients=fill.config_of(writer).data.domains or ())


def preset(name: str, methods: tuple[str, ...], **changes: object) -> Experiment:
    """A published experiment cut to a few methods, seeds and rounds."""
    large = experiments.preset(name)
    chosen = tuple(m for m in large.methods if m.label in methods)
    assert len(chosen) == len(methods)
    return large.model_copy(update={"methods": chosen, "rounds": ROUNDS, **changes})


def find(rows: list[TableCell], **fields: str) -> TableCell:
    (found,) = [r for r in rows if all(getattr(r.value, k) == v for k, v in fields.items())]
    return found


def matrix(label: str, seed: int) -> np.ndarray:
    """ACC[j, i] in per cent at round 2, which validation chose; the diagonal is the global model."""
    found = np.empty((4, 4))
    for j, out in enumerate(PACS):
        for i, d in enumerate(PACS):
            model, kind = ("global", "domain") if i == j else (d, "client")
            found[j, i] = 100 * share(f"{label}/{out}", seed, 2, model, f"{kind}:{d}")
    return found


def with_texts(experiment: Experiment, texts: dict[str, list[str]] | None) -> Experiment:
    """Its methods with written descriptions as a plan writes them out."""
    methods = [
        m.model_copy(update={"config": {**m.config, "descriptions": texts}})
        if m.config.get("class_text", "description") == "description"
        and (m.name, m.config) != ("zero-shot", {})
        else m
        for m in experiment.methods
    ]
    return experiment.model_copy(update={"methods": tuple(methods)})


def finish_readings(db: Path) -> Multiverse:
    """Record made-up rehearsals of single changes to the reading of the first row of FedDEAP's Table 5."""
    store = Store(db)
    store.prepare()
    values = [v for v in published.load("feddeap") if (v.table, v.target) == ("5", "avg")]
    space = choices.multiverse(choices.rankings(values)[0], rehearsal=True, most=1)
    available = Availability({})
    for wanted in fillings(space.cells(choices.recorded_runs(store, True), available), available):
        runs = [
            run
            for run in config.expand(wanted.experiment)
            if (run.method.label, run.seed, run.held_out) in wanted.wanted
        ]
        finish(db, store.experiments.create(wanted.experiment, runs).experiment_id)
    return space
