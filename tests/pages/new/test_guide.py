from __future__ import annotations

from fedcore.methods import registry
from pages.forms.methods import guide

BUILT_IN = [n for n, c in registry.load_all().items() if c.__module__.startswith("fedcore.methods.")]


def test_every_method_has_its_text():
    for name in BUILT_IN:
        text = guide(name)
        assert len(text) > 100, name
        for left in ("<!--", "](", "| field |", "\n## ", f"Name: `{name}`"):
            assert left not in text, name
        assert registry.get(name).about.summary not in text, "the form says that already"


def test_a_method_without_a_page_has_no_text():
    assert guide("my-method") == ""
    assert guide("index") == "", "the page of what is common is no method's"
