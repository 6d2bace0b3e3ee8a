"""What a comparison cites: every paper once, as entries that BibTeX can read."""

from __future__ import annotations

import re
from pathlib import Path

from fedcore.data import catalog
from fedcore.methods import registry
from fedcore.results.comparison import compare
from fedcore.results.sharing import bibtex
from fedcore.store import Store
from tests.support import fill


def test_a_comparison_cites_its_methods_data_and_model_once(tmp_path: Path) -> None:
    db = tmp_path / "runs.db"
    number = fill.done(
        db, fill.an_experiment(methods=("zero-shot", "fedot", "promptfl"), seeds=(1, 2), rounds=1)
    )
    text = bibtex(compare(Store(db), [number]).rows)
    assert re.findall(r"^@\w+\{(\w+),$", text, re.MULTILINE) == [
        "fedlens", "radford2021clip", "alpaydin1998digits", "kong2025fedot", "guo2022promptfl",
    ]  # fmt: skip


def test_every_paper_has_an_entry_and_a_key_of_its_own() -> None:
    found: dict[str, str] = {}
    methods = [m for m in registry.load_all().values() if m.__module__.startswith("fedcore.")]
    cited = {f"method {m.name}": m.about.bibtex for m in methods}
    cited |= {f"data set {e.name}": e.bibtex for e in catalog.entries() if e.citation}
    for name, text in cited.items():
        assert text, name
        for entry in re.split(r"\n(?=@)", text.strip()):
            head = re.match(r"@\w+\{(\w+),", entry)
            assert head and entry.count("{") == entry.count("}") and entry.endswith("}}"), name
            plain = " ".join(entry.split())
            assert found.setdefault(head[1], plain) == plain, f"{name}: another entry has the key {head[1]}"
