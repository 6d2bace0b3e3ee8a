"""Run the fault campaign: ``python -m tools.faults`` for all families, ``... kill bits`` for some."""

from __future__ import annotations

import importlib
import shutil
import tempfile
import time
import traceback
import zlib
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from fedcore.base.errors import FedLensError, first_line
from tools.faults.family import Family, Tally, table
from tools.faults.forked import end_all
from tools.faults.lab import Defect, Lab, warm_up
from tools.faults.verdict import DEFECTS, Outcome, Verdict

MODULES = (
    "kill", "power", "pair", "clock", "lock", "disk", "memory", "bits", "decisions", "results", "foreign",
    "pages", "caches", "restore", "commands", "inputs", "hostile", "terminal", "accounts", "web", "network",
    "cluster", "cluster_runs", "cluster_nodes", "cluster_workers",
)  # fmt: skip
FAMILIES = {f.name: f for name in MODULES for f in importlib.import_module(f"tools.faults.{name}").FAMILIES}


def try_once(lab: Lab, chosen: Family, seed: int, number: int, folder: Path) -> Verdict:
    """Make one attempt; its faults follow from the seed, the family and its number alone."""
    rng = np.random.default_rng([seed, zlib.crc32(chosen.name.encode()), number])
    try:
        return chosen.attempt(lab, folder, rng)
    except FedLensError as error:
        return Verdict(Outcome.REFUSED, str(error))
    except Defect as error:
        return Verdict(error.outcome, str(error))
    except Exception as error:  # noqa: BLE001 - a raw error is what we look for
        where = traceback.extract_tb(error.__traceback__)[-1]
        notes = "; ".join(["", *getattr(error, "__notes__", [])])
        return Verdict(Outcome.RAW, f"{first_line(error)} in {where.filename}:{where.lineno}{notes}")
    finally:
        end_all(folder)


def attack(
    lab: Lab, chosen: Family, seed: int, numbers: range, until: float | None, keep: Path, verbose: bool
) -> Tally:
    """Make the attempts of one family; the files of defects are kept.

    Args:
        until: the monotonic time at which to stop before the next attempt; None: never.
    """
    tally = Tally(chosen, skipped=chosen.needs())
    begun = time.monotonic()
    for number in numbers if tally.skipped is None else ():
        if until is not None and time.monotonic() > until:
            break
        folder = keep / f"{chosen.name}-{number}"
        folder.mkdir(parents=True)
        verdict = try_once(lab, chosen, seed, number, folder)
        tally.counts[verdict.outcome] += 1
        if verdict.outcome in DEFECTS or verbose:
            print(f"{chosen.name} {number}: {verdict.outcome}: {verdict.what}", flush=True)
        if verdict.outcome not in DEFECTS:
            shutil.rmtree(folder, ignore_errors=True)
    tally.seconds = time.monotonic() - begun
    return tally


def main(
    names: Annotated[list[str] | None, typer.Argument(metavar="[FAMILY]...", help="Default: all")] = None,
    seed: Annotated[int, typer.Option(help="Seed of all random choices")] = 1,
    repeat: Annotated[float, typer.Option(help="Multiple of the usual number of attempts")] = 1,
    hours: Annotated[float | None, typer.Option(help="Continue with new seeds for this many hours")] = None,
    attempt: Annotated[int | None, typer.Option(help="Only the attempt with this number")] = None,
    keep: Annotated[Path | None, typer.Option(help="Folder in which the files of defects are kept")] = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Print every attempt")] = False,
) -> None:
    """Attack FedLens with faults; exit status 1 for a number that changed silently and for a raw error."""
    if unknown := set(names or ()) - set(FAMILIES):
        raise typer.BadParameter(f"no family {', '.join(unknown)}; there are {', '.join(FAMILIES)}")
    chosen = [FAMILIES[name] for name in names or FAMILIES]
    keep = keep or Path(tempfile.mkdtemp(prefix="fedlens-faults-"))
    end = None if hours is None else time.monotonic() + 3600 * hours
    warm_up()
    defects = 0
    with tempfile.TemporaryDirectory(prefix="fedlens-lab-", ignore_cleanup_errors=True) as folder:
        lab = Lab(Path(folder))
        while True:
            tallies = []
            with lab.opened:
                for one in chosen:
                    count = max(1, round(repeat * one.attempts))
                    numbers = range(count) if attempt is None else range(attempt, attempt + 1)
                    tallies.append(attack(lab, one, seed, numbers, end, keep / f"seed-{seed}", verbose))
                    print(f"{one.name}: {', '.join(tallies[-1].row()[1:])}", flush=True)
            print(f"\nseed {seed}\n\n{table(tallies)}\n", flush=True)
            defects += sum(tally.defects for tally in tallies)
            if end is None or time.monotonic() > end:
                break
            seed += 1
    if defects:
        print(f"{defects} defects; their files are in {keep}")
    raise SystemExit(1 if defects else 0)


if __name__ == "__main__":
    typer.run(main)
