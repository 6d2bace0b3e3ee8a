import re
import shutil
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
from PIL import Image
from streamlit.components.v2 import manifest_scanner
from streamlit.runtime.scriptrunner.script_cache import ScriptCache
from streamlit.testing.v1 import AppTest, app_test, local_script_runner

from fedcore.store import liveness
from pages.widgets import charts
from tests.support import fill
from tests.support.web.markup import elements
from tests.support.web.pages import ROOT, Opened


@pytest.fixture(autouse=True, scope="session")
def packages_scanned_once() -> Iterator[None]:
    """Each ``AppTest`` asks all installed packages for components, which takes longer than most pages."""
    with pytest.MonkeyPatch.context() as patch:
        scan = cache(manifest_scanner.scan_component_manifests)
        patch.setattr(manifest_scanner, "scan_component_manifests", scan)
        yield


@pytest.fixture(autouse=True, scope="session")
def pages_compiled_once() -> Iterator[None]:
    """Each ``AppTest`` compiles the app and its page anew, as only the first visit of a server does."""
    with pytest.MonkeyPatch.context() as patch:
        compiled = ScriptCache()
        for module in (app_test, local_script_runner):
            patch.setattr(module, "ScriptCache", lambda: compiled)
        yield


@pytest.fixture(scope="session")
def filled_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pages")
    db = folder / "runs.db"
    fill.done(db, fill.an_experiment("Made up", methods=("fedot", "promptfl"), seeds=(1, 2), rounds=4))
    fill.mixed(db)
    return folder


@pytest.fixture
def filled(filled_once: Path, tmp_path: Path) -> Iterator[Path]:
    """A finished experiment (1: two methods, two seeds) and one in the middle of things (2)."""
    shutil.copytree(filled_once, tmp_path, dirs_exist_ok=True)
    db = tmp_path / "runs.db"
    owners = fill.keep_alive(db)
    yield db
    for owner in owners:
        liveness.let_go(db, owner)


@pytest.fixture
def open_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Opened:
    """Opens a page of the app as a link would; queued runs stay queued, since no worker is started."""
    monkeypatch.setenv("FEDLENS_DB", str(tmp_path / "runs.db"))
    monkeypatch.setattr("fedcore.jobs.ensure_worker", lambda db, **options: False)
    monkeypatch.setattr("pages.forms.plan.WAIT_SECONDS", 60)  # nothing ticks here that would look again

    def opened(page: str = "experiments", **query: str | list[str]) -> AppTest:
        app = AppTest.from_file(str(ROOT / "dashboard.py"), default_timeout=60)
        for name, value in query.items():
            app.query_params[name] = value
        if page != "experiments":
            app.switch_page(f"pages/{page}.py")  # before the first run, its address is the file's name
        app.run()
        assert not app.exception, app.exception
        return app

    return opened


@pytest.fixture
def shown_as_text() -> Callable[[AppTest], None]:
    """Asserts that no name became markup: nothing in HTML, no live Markdown."""

    def check(app: AppTest) -> None:
        scripts = [charts.fetching(page) for page in ("live", "")]  # the one script of a page
        page = "\n".join(e.proto.body for e in app.get("html") if e.proto.body not in scripts)
        for element in elements(page):
            assert element.tag not in ("script", "i", "img"), element
            assert element.tag != "b" or not element.attributes, element
            assert not any(name.startswith("on") for name in element.attributes), element
        said = [*app.markdown, *app.caption, *app.error, *app.success, *app.info, *app.warning]
        cells = [str(cell) for table in app.table for cell in table.value.to_numpy().flat]
        for text in [*(element.value for element in said), *cells]:
            assert not re.search(r"(?<!\\)(<script|<i>|\]\(javascript|:red\[|\$x)", text), text

    return check


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three domains of two classes."""
    for domain in ("a, b", "photo", "each day"):
        for label in ("cat", "dog"):
            (tmp_path / "mine" / domain / label).mkdir(parents=True)
            for i in range(10):
                name = tmp_path / "mine" / domain / label / f"{i}.png"
                Image.new("RGB", (8, 8), (25 * i, len(domain), 9)).save(name)
    return tmp_path / "mine"
