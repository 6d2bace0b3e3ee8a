"""Papers that a user adds: they are read from a folder beside the database, checked and written."""

import hashlib
import os
import re
import shutil
import threading
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import tomli_w

from fedcore.base.errors import FedLensError, first_line
from fedcore.base.files import make_folder, sync_folder, write_whole
from fedcore.config import Experiment
from fedcore.data import catalog
from fedcore.data.images import squash
from fedcore.data.readers.layout import spellings
from fedcore.methods import registry
from fedcore.papers import audits, choices, library, mini
from fedcore.papers.comparability import reasons
from fedcore.papers.equivalents import variant_runs
from fedcore.papers.experiments import experiments, printed_backbone
from fedcore.papers.layout import PrintedTable, tables_of
from fedcore.papers.library import Paper
from fedcore.papers.published import (
    LARGEST_VALUES,
    Finding,
    PublishedValue,
    findings_text,
    load,
    read_findings,
    values_of,
    values_text,
)

_FORMER = ".former"
"""End of the hidden name that the former edition of a paper has while another takes its place."""
_seen: dict[str, tuple[tuple[object, ...], list[FedLensError]]] = {}


def use(db: str | Path) -> list[FedLensError]:
    """Read the papers that were added to a database, again only if one of their files has changed.

    Returns: an error for each paper that cannot be read, which is left out.
    """
    folder = library.added_folder(db)
    for former in folder.glob(f".*{_FORMER}"):
        place = folder / former.name[1 : -len(_FORMER)]
        if not place.exists():  # `_save` was killed between its two renames
            with suppress(OSError):
                former.rename(place)
    files = sorted(folder.glob("[!.]*/*.*")) if folder.is_dir() else []
    states: dict[Path, tuple[int, int] | None] = dict.fromkeys(files)
    for file in files:
        with suppress(OSError):  # an editor's lock is a link to nothing; a paper's own is named when read
            state = file.stat()
            states[file] = state.st_mtime_ns, state.st_size
    stamp = tuple(states.items())
    seen = _seen.get(str(folder))
    if seen is not None and seen[0] == stamp:
        return seen[1]
    papers, errors = {}, []
    for file in (f for f in files if f.name == library.PAPER_FILE):
        try:
            papers[file.parent.name] = check(file.parent)[0]
        except FedLensError as error:
            errors.append(error)
    for key, paper in list(papers.items()):
        try:
            _check_edition(paper, {**library.shipped(), **papers})
        except FedLensError as error:
            errors.append(error)
            del papers[key]
    _seen.clear()
    _seen[str(folder)] = stamp, errors
    if papers or any(not paper.ships for paper in library.papers().values()):
        library.set_added(papers)
    return errors


def _check_edition(paper: Paper, others: Mapping[str, Paper]) -> None:
    """Refuse an edition of a missing paper or of another edition, which no page would show."""
    if not paper.edition_of:
        return
    base = others.get(paper.edition_of)
    if base is None or base.edition_of or base.key == paper.key:
        raise FedLensError(
            f"{paper.folder / library.PAPER_FILE}: edition_of is '{paper.edition_of}', which must be another "
            "paper and not itself an edition; correct it, or leave it out",
            "edition_of",
        )


def check(folder: Path) -> tuple[Paper, tuple[PublishedValue, ...]]:
    """Read and check all files of a paper's folder."""
    paper = library.read_paper(folder)
    if paper.key in library.shipped():
        raise FedLensError(f"{folder}: '{paper.key}' comes with FedLens; rename the folder", "folder")
    values = load(paper)
    unknown = sorted(set(paper.tables) - {value.table for value in values})
    if unknown:
        raise FedLensError(
            f"{folder / library.PAPER_FILE}: {library.VALUES_FILE} has no table '{unknown[0]}'", "tables"
        )
    tables_of(paper, values)
    reasons(paper)
    read_findings(paper)
    for name, experiment in experiments(paper).items():
        where = f"{folder / library.RUNS_FILE}, preset '{name}'"
        if other := next((e.paper for e in experiment.reproduces if e.paper != paper.key), None):
            raise FedLensError(f"{where}: it reproduces '{other}', another paper; remove that", "reproduces")
        try:
            values_of(experiment, (paper, values))
            variant_runs(experiment)
            # a rehearsal has a stand-in for each domain, so the domains must be known by name
            domains = mini.stand_ins(experiment)
            unknown_domains = [d for d in experiment.held_out if domains and d not in domains]
            if unknown_domains:
                raise FedLensError(
                    f"{experiment.data.name} has no domain '{unknown_domains[0]}'; name its domains",
                    "held_out",
                )
            variant_runs(mini.rehearsal(experiment))
        except FedLensError as error:
            raise FedLensError(f"{where}: {error}", error.field) from error
    choices.check(paper, values)
    return paper, values


def add(folder: Path, db: str | Path) -> tuple[Paper, list[Finding]]:
    """Copy a paper's folder beside a database with what the audits find in its values, and return that.

    A paper of the same key that was added before is replaced.
    """
    paper, _ = check(folder)
    _check_edition(paper, library.papers())
    return _save(library.added_folder(db) / paper.key, _files(folder), db)


def _files(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in library.FILES if (folder / name).exists()}


def _save(place: Path, files: Mapping[str, bytes], db: str | Path) -> tuple[Paper, list[Finding]]:
    """Let files take a paper's place at once, with what the audits find: a kill leaves one edition whole.

    Other files in the place, which are not of a paper's format, are kept. Refused files change nothing.
    """
    hidden = place.with_name(f".{os.getpid()}-{threading.get_ident()}")
    new, former = hidden / place.name, place.with_name(f".{place.name}{_FORMER}")
    added = {key: other for key, other in library.papers().items() if not other.ships}
    try:
        if place.exists():
            shutil.copytree(place, new, symlinks=True, ignore=shutil.ignore_patterns(*library.FILES))
        make_folder(new)
        for name, content in files.items():
            write_whole(new / name, content)
        paper, _ = check(new)
        library.set_added({**added, paper.key: paper})  # audited beside all others, before it is in its place
        try:
            found = audits.findings([paper.key])[paper.key]
        finally:
            library.set_added(added)
        write_whole(new / library.FINDINGS_FILE, findings_text(found).encode())
        shutil.rmtree(former, ignore_errors=True)
        if place.exists():
            place.rename(former)
        new.rename(place)
        sync_folder(place.parent)
        if former.exists():
            former.rename(new)  # half deleted, it must not be taken for an edition
    except FedLensError as error:  # it may name the hidden folder
        raise FedLensError(str(error).replace(str(hidden), str(place.parent)), error.field) from error
    except OSError as error:
        reason = error.strerror or first_line(error)
        raise FedLensError(f"cannot write {place}: {reason}; choose another folder", "db") from error
    finally:
        shutil.rmtree(hidden, ignore_errors=True)
    use(db)
    return paper, found


def remove(key: str, db: str | Path) -> None:
    """Delete a paper that was added to a database."""
    paper = library.find(key, "name")
    if paper.ships:
        raise FedLensError(f"'{key}' comes with FedLens and cannot be removed", "name")
    try:
        shutil.rmtree(paper.folder.with_name(f".{key}{_FORMER}"), ignore_errors=True)
        shutil.rmtree(paper.folder)
    except OSError as error:
        reason = error.strerror or first_line(error)
        raise FedLensError(f"cannot delete {paper.folder}: {reason}; delete it yourself", "name") from error
    use(db)


def key_of(title: str) -> str:
    """Return the name of a folder for a paper's title."""
    key = re.sub(r"[^a-z0-9]+", "_", title.lower()).strip("_")[:40]
    if not library.KEY.fullmatch(key):
        raise FedLensError("the title has no letter or digit that a folder's name can use; add one", "title")
    return key


def write(
    key: str,
    fields: Mapping[str, Any],
    values: Sequence[PublishedValue],
    tables: Mapping[str, Mapping[str, str]],
    settings: Mapping[str, Mapping[str, str]],
    db: str | Path,
) -> tuple[Paper, list[Finding]]:
    """Write a paper's folder beside a database; its other tables are left as they are.

    Nothing is written if the fields or values are refused.
    """
    place = library.added_folder(db) / key
    given = {value.table for value in values}
    if (place / library.VALUES_FILE).exists():
        paper, before = check(place)
        values = [*(v for v in before if v.table not in given), *values]
        old = paper.model_dump(exclude_defaults=True)
        notes = old.get("tables", {})
        tables = {**notes, **{name: {**notes.get(name, {}), **new} for name, new in tables.items()}}
        settings = {**old.get("settings", {}), **settings}
    elif key in library.papers():
        raise FedLensError(f"a paper '{key}' exists; choose another title", "title")
    if len(values) > LARGEST_VALUES:
        raise FedLensError(f"a paper has at most {LARGEST_VALUES:,} values", "values")
    paper = library.paper_from({**fields, "tables": tables, "settings": settings}, place, library.PAPER_FILE)
    _check_edition(paper, library.papers())
    return put(key, {library.VALUES_FILE: values_text(values), library.PAPER_FILE: _paper_text(paper)}, db)


def _paper_text(paper: Paper) -> str:
    return tomli_w.dumps(paper.model_dump(mode="json", exclude_defaults=True, exclude={"key", "folder"}))


def put(key: str, texts: Mapping[str, str], db: str | Path) -> tuple[Paper, list[Finding]]:
    """Write files of a paper's folder beside a database; the others are left as they are."""
    place = library.added_folder(db) / key
    return _save(place, _files(place) | {name: text.encode() for name, text in texts.items()}, db)


def remove_table(key: str, table: str, db: str | Path) -> dict[str, str]:
    """Delete a table of an added paper, and with its last one the paper; return the former files."""
    paper, values = check(library.added_folder(db) / key)
    former = {name: content.decode() for name, content in _files(paper.folder).items()}
    kept = [value for value in values if value.table != table]
    if not kept:
        remove(key, db)
        return former
    notes = {name: notes for name, notes in paper.tables.items() if name != table}
    texts = {library.VALUES_FILE: values_text(kept)}
    texts[library.PAPER_FILE] = _paper_text(paper.model_copy(update={"tables": notes}))
    if library.RUNS_FILE in former:
        runs = tomllib.loads(former[library.RUNS_FILE])
        for name, preset in [*runs.get("presets", {}).items()]:
            if table in {entry.get("table") for entry in preset.get("reproduces", ())}:
                del runs["presets"][name]
        runs["methods"] = [rule for rule in runs.get("methods", ()) if rule.get("table") != [table]]
        texts[library.RUNS_FILE] = tomli_w.dumps(runs)
    put(key, texts, db)
    return former


def match(
    table: PrintedTable,
    dataset: str,
    setting: str,
    experiment: Experiment,
    methods: Mapping[str, int],
    db: str | Path,
) -> None:
    """Let runs of an experiment measure rows of an added table, by the ``runs.toml`` of its paper.

    Args:
        dataset, setting: as printed; the values of others are not matched.
        methods: method as printed -> the place of its method in the experiment.
    """
    paper = library.find(table.paper)
    file, backbone = paper.folder / library.RUNS_FILE, printed_backbone(experiment, paper)
    values = [v for v in table.values if (v.dataset, v.setting) == (dataset, setting) and v.method in methods]
    if not any(value.backbone in ("", backbone) for value in values):
        printed = ", ".join(dict.fromkeys(value.backbone for value in values))
        raise FedLensError(
            f"the table is of {printed or 'other methods'} and the experiment of {backbone}; choose "
            "an experiment with that backbone and a method for at least one row",
            "experiment",
        )
    runs = tomllib.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    where = {"table": [table.table], "dataset": [dataset], "setting": [setting]}
    rules = []
    for printed, place in methods.items():
        entry = experiment.methods[place]
        alike = [other for other in experiment.methods if other.name == entry.name]
        full = registry.build_config(entry.name, entry.config, "methods").model_dump(mode="json")
        config = {name: full[name] for other in alike for name in other.config}
        given = {name: value for name, value in config.items() if value is not None}
        unset = [name for name in config if name not in given]
        rules.append({"method": [printed], **where, "name": entry.name, "config": given, "unset": unset})
    replaced = [{"method": [printed], **where} for printed in methods]
    others = [r for r in runs.get("methods", ()) if {n: r.get(n) for n in ("method", *where)} not in replaced]
    data = catalog.entry(experiment.data.name)
    spelled = spellings(data, data.domains)
    domains = {v.target: spelled[squash(v.target)] for v in values if squash(v.target) in spelled}
    used = {place: experiment.methods[place] for place in methods.values()}
    fields = experiment.model_copy(update={"methods": tuple(used.values()), "notes": "", "tags": ()})
    preset = fields.model_dump(mode="json", exclude_defaults=True, exclude_none=True)
    preset["reproduces"] = [{"methods": [*methods], **where, "table": table.table, "dataset": dataset}]
    own = hashlib.sha256(repr(where).encode()).hexdigest()[:8]  # long settings begin alike
    runs |= {
        "data": {**runs.get("data", {}), dataset: data.name},
        "domains": {**runs.get("domains", {}), **({dataset: domains} if domains else {})},
        "methods": [*rules, *others],
        "presets": {
            **runs.get("presets", {}),
            f"{key_of(f'table {table.table} {dataset} {setting}')}-{own}": preset,
        },
    }
    put(paper.key, {library.RUNS_FILE: tomli_w.dumps(runs)}, db)
