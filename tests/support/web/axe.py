"""What axe-core finds on a page."""

from collections.abc import Mapping
from types import MappingProxyType

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page


def serious(page: Page, rules: Mapping[str, object] = MappingProxyType({})) -> list[tuple[object, ...]]:
    """What axe-core finds on a page as it stands, with the first places of each finding."""
    options = {"resultTypes": ["violations"], **rules}
    return [
        (
            v["id"],
            v["help"],
            len(v["nodes"]),
            [(n["html"][:160], n["failureSummary"]) for n in v["nodes"][:3]],
        )
        for v in Axe().run(page, options=options).response["violations"]
        if v["impact"] in ("serious", "critical")
    ]
