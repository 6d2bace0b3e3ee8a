"""The real app in a real browser: servers on free ports, most of them for many tests, and one Chromium."""

import shutil
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright
from playwright.sync_api import Error as PlaywrightError

from fedcore.jobs.supervisor import SupervisorLock
from fedcore.store import Store
from tests.support import fill
from tests.support.web.browser import LIMIT_SECONDS, NewPage, Server, Tab, end_workers, start_server

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
SHOWN_CHARACTERS = 2000
POLICY = "Content Security Policy"
_contexts: list[BrowserContext] = []  # those that are open now
_browsers: list[Browser] = []  # the one of this process, once it is open


@contextmanager
def serving(folder: Path) -> Iterator[Server]:
    """The app on the database of a folder, without torch; nothing that it started goes on after it."""
    running = start_server(folder / "runs.db", folder / "server.log")
    try:
        yield running
        if running.process.poll() is None:  # a test may have ended it
            used = [Path(found.path).name for found in psutil.Process(running.process.pid).memory_maps()]
            assert not [name for name in used if name.startswith("libtorch")], "a page imported torch"
    finally:
        running.stop()
        end_workers(running.db)


@pytest.fixture
def empty_server(tmp_path: Path) -> Iterator[Server]:
    """The app on an empty database."""
    with serving(tmp_path) as running:
        yield running


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("app")) as running:
        yield running


@pytest.fixture
def server(shared_server: Server) -> Iterator[Server]:
    """The app on a database with the experiments of other tests; none of them trains any more."""
    yield shared_server
    store = Store(shared_server.db)
    store.prepare()
    store.runs.stop([r.id for e in store.experiments.all() for r in e.runs if not r.ended])
    end_workers(shared_server.db)
    store.jobs.reconcile()


@pytest.fixture(scope="session")
def filled_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The app on a finished experiment (1) and one in the middle of things (2): its queued run waits."""
    folder = tmp_path_factory.mktemp("filled")
    db = folder / "runs.db"
    fill.done(db, fill.an_experiment("Made up", methods=("fedot", "promptfl"), seeds=(1, 2, 3), rounds=4))
    fill.mixed(db)
    supervisor = SupervisorLock(db)
    assert supervisor.acquire()  # the app believes that somebody does the queued work already
    with serving(folder) as running:
        yield running
    supervisor.release()


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """A Chromium; without one these tests fail, since nobody has then seen the app."""
    if _browsers:  # the Ray package's tests have this fixture too, and a process has one Playwright
        yield _browsers[0]
        return
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    found = [shutil.which(n) for n in names]
    path = next((p for p in found if p), None)
    with sync_playwright() as playwright:
        path = path or playwright.chromium.executable_path
        if not Path(path).exists():
            pytest.fail(
                "no Chromium: install chromium or google-chrome, or run `playwright install chromium`"
            )
        expect.set_options(timeout=1000 * LIMIT_SECONDS)
        chromium = playwright.chromium.launch(executable_path=path, args=FLAGS)
        _browsers.append(chromium)
        yield chromium
        _browsers.clear()
        chromium.close()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, None]:
    """A test that failed shows what stood on its pages and what its server said last."""
    outcome = yield
    report = outcome.get_result()
    if report.when != "call" or not report.failed or not isinstance(item, pytest.Function):
        return
    for page in [p for c in _contexts for p in c.pages]:
        try:
            state = page.get_by_test_id("stApp").get_attribute("data-test-script-state", timeout=5000)
            text = page.locator("body").inner_text(timeout=5000)
        except PlaywrightError as error:  # the page hangs: that is what is to be told
            state, text = "unknown", str(error)
        report.sections.append((f"page {page.url}, script {state}", text[:SHOWN_CHARACTERS]))
    for name, value in item.funcargs.items():
        if isinstance(value, Server):
            said = value.db.with_name("server.log").read_text(encoding="utf-8", errors="replace")
            report.sections.append((f"log of {name}", said[-SHOWN_CHARACTERS:]))


@contextmanager
def opening(browser: Browser) -> Iterator[NewPage]:
    """Opens a page in a fresh profile: its arguments are those of ``Browser.new_context``.

    Without motion: what fades is drawn frame by frame, on a processor that has better things to do.
    """
    with ExitStack() as opened:

        def open_page(**options: object) -> Page:
            context = browser.new_context(reduced_motion="reduce", **options)
            _contexts.append(context)
            opened.callback(context.close)
            opened.callback(_contexts.remove, context)
            context.set_default_timeout(1000 * LIMIT_SECONDS)
            return context.new_page()

        yield open_page


@pytest.fixture
def new_page(browser: Browser) -> Iterator[NewPage]:
    with opening(browser) as open_page:
        yield open_page


@pytest.fixture(scope="module")
def page_of_module(browser: Browser) -> Iterator[Page]:
    """One page for all tests of a module, each of which loads its own document."""
    with opening(browser) as open_page:
        yield open_page()


@pytest.fixture
def tab(new_page: NewPage) -> Iterator[Tab]:
    """A fresh profile. No request may leave 127.0.0.1 or be forbidden, and no script may fail."""
    opened = Tab(new_page(viewport={"width": 1440, "height": 1600}))
    context = opened.page.context
    inside = ("http://127.0.0.1:", "ws://127.0.0.1:", "data:", "blob:")
    context.on("request", lambda r: None if r.url.startswith(inside) else opened.outside.append(r.url))
    opened.page.on("pageerror", lambda e: opened.errors.append(str(e)))
    opened.page.on("console", lambda m: opened.errors.append(m.text) if POLICY in m.text else None)
    yield opened
    assert opened.outside == [], "requests left this machine"
    assert opened.errors == [], "a script of the page failed"
