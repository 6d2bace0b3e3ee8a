"""``show`` and ``log``: one run."""

from __future__ import annotations

from fedcore.cli import common
from fedcore.cli.experiments import per_cent, run_row
from fedcore.cli.tables import AsJson, print_table
from fedcore.store import Store


@common.command("show")
def show(run: common.RunId, as_json: AsJson = False, db: common.Database = None) -> None:
    """Show one run: its state, accuracies and config.

    Accuracies are in per cent; of the config, what differs from the defaults. Notes say how to go on after an
    error.
    """
    from fedcore.results.progress import seconds_outside_rounds
    from fedcore.results.settings import non_defaults

    store = Store(db)
    (row,) = store.runs.get(common.find_runs(store, [run]))
    elapsed, outside = row.elapsed(), seconds_outside_rounds(store, [row])[row.id]
    facts = run_row(row) | {"best_accuracy": per_cent(row.best_test), "best_round": row.best_round}
    facts |= {"worst_client": per_cent(row.worst_client), "device": row.device, "attempt": row.attempt}
    facts |= {"seconds": elapsed and round(elapsed, 1), "seconds_outside_rounds": round(outside, 1)}
    facts |= {"remark": row.status_text, "tags": ", ".join(row.tags), "notes": row.notes}
    facts |= non_defaults(store.runs.config(row.id), row.origin == "engine")
    facts = {name: value for name, value in facts.items() if value not in (None, "")}
    print_table([facts] if as_json else [{"field": n, "value": str(v)} for n, v in facts.items()], as_json)
    for notice in row.notices:
        common.print_note(notice.message)
    if row.state == "failed":
        common.print_note(f"`fedlens log {row.id}` has the traceback", "why")
    if row.ended and row.state != "done" and row.origin == "engine":
        common.print_note(f"`fedlens resume {row.id}` queues it again, once the cause is gone", "next")
    common.warn_of_damage(store)


@common.command("log")
def log(run: common.RunId, db: common.Database = None) -> None:
    """Print the log of a run.

    It ends with the traceback of the error, if one ended the run. A note names the file, for `tail -f`.
    """
    store = Store(db)
    (run_id,) = common.find_runs(store, [run])
    path, trace = store.runs.log_path(run_id), store.runs.error(run_id) or ""
    absent = f"run {run_id} has no log here: it has not begun, was trained elsewhere, or its files are gone"
    common.refuse_if(not path.is_file() and not trace, absent, "run")
    text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    print(text + trace * (trace.strip() not in text), end="")
    common.print_note(str(path), "file")
