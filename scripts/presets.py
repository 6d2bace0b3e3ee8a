"""Writes ``experiments/<paper>/*.toml``: the published experiments of the four papers, a file here for each.

    python -m scripts.presets

Where a paper is silent, the choice is in the file's notes. A test checks that the files are up to date.
"""

from __future__ import annotations

from pathlib import Path

from scripts.presets_fedalign import fedalign
from scripts.presets_feddeap import feddeap
from scripts.presets_fedot import fedot
from scripts.presets_figures import figures
from scripts.presets_parts import Preset
from scripts.presets_protocols import protocols
from scripts.presets_sdfed import sdfed

FOLDER = Path(__file__).resolve().parent.parent / "experiments"


def presets() -> list[Preset]:
    """All files."""
    tables = [*fedot(), *sdfed(), *fedalign(), *feddeap()]
    return [*tables, *protocols(), *figures(tables)]


def main() -> None:
    """Write the files; those that are no longer described are deleted."""
    wanted = {FOLDER / f"{p.path}.toml": p.text() for p in presets()}
    for old in set(FOLDER.glob("*/*.toml")) - set(wanted):
        old.unlink()
    for path, text in wanted.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    print(f"{len(wanted)} files under {FOLDER}")


if __name__ == "__main__":
    main()
