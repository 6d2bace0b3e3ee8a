from __future__ import annotations

from fedcore.methods import registry
from fedcore.papers import guide

BUILT_IN = [n for n, c in registry.load_all().items() if c.__module__.startswith("fedcore.methods.")]


def test_every_method_has_its_text():
    for name in BUILT_IN:
        text = guide.sections()[name]
        assert len(text) > 100, name
        for left in ("<!--", "](", "| field |", "\n## "):
            assert left not in text, name
        assert registry.get(name).about.summary not in text, "the form says that already"


def test_the_text_is_that_of_the_page():
    assert r"\kappa(Q_i)" in guide.sections()["fedot"]
    assert "momentum = 0.0005" in guide.sections()["fedot"]


def test_without_the_page_there_is_no_text(monkeypatch, tmp_path):
    guide.sections.cache_clear()
    monkeypatch.setattr(guide, "PAGE", tmp_path / "methods.md")
    assert guide.sections() == {}
    guide.sections.cache_clear()
