"""No page, tab or dialog asks another server for anything, or links to one, whatever names say."""

from collections.abc import Iterator

import pytest

from fedcore.config import MethodEntry
from fedcore.jobs.supervisor import SupervisorLock
from fedcore.papers import adding
from fedcore.store import Store
from fedcore.store.database import writing
from tests.browser.conftest import serving
from tests.browser.test_access import PRESSED, VISITS
from tests.support import fill
from tests.support.web.browser import Server, Tab, settle

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(900)]
EVIL = "https://evil.example"
HOSTILE = (
    f"![x]({EVIL}/i.png) [y]({EVIL}) {EVIL} www.evil.example me@evil.example <{EVIL}> <img src={EVIL}/h.png>"
)
METHOD = f"""
from fedcore.methods import About, Method, MethodConfig, method

@method
class Hostile(Method):
    name = "hostile"
    about = About(title={HOSTILE!r}, source={HOSTILE!r}, summary={HOSTILE!r})
    Config = MethodConfig
"""
PAPER = f"""title = {HOSTILE[:80]!r}
full_title = {HOSTILE!r}
citation = {HOSTILE!r}
licence = {HOSTILE!r}
read_from = {HOSTILE!r}
why_not_run = {HOSTILE!r}
notes = [{HOSTILE!r}]
left_out = [{HOSTILE!r}]
link = "{EVIL}/paper"
kind = "paper"
[tables.1]
caption = {HOSTILE!r}
"""
MORE = {
    "live, search": "live?id=3",
    "live, running": "live?id=4",
    "compare, hostile": "compare?ids=3&ids=4",
    "compare, curves": "compare?ids=3&tab=Curves",
    "compare, clients": "compare?ids=3&tab=Clients",
    "compare, config": "compare?ids=3&tab=Config",
    "hostile run": "run?id=16",
    "hostile run, predictions": "run?id=16&run_tab=Predictions",
    "hostile run, failed": "run?id=19",
    "hostile paper": "papers?table=hostile-1",
    "add a paper": "papers?papers_view=Add+a+paper",
    "baselines": "papers?papers_view=Baselines",
    "checkpoints": "data?section=Checkpoints",
    "backbones": "data?section=Backbones",
}
ELSEWHERE = r"""() => [...document.querySelectorAll('a[href], img[src], iframe, [srcset]')]
  .filter(e => e.href !== 'https://evil.example/paper') // a paper's link is one
  .filter(e => !(e.rel && /^https:\/\/(arxiv|doi|openreview)\.(org|net)\//.test(e.href))) // sources
  .filter(e => !/^(data|blob):/.test(e.src ?? ''))
  .filter(e => !String(e.href || e.src || location).startsWith(location.origin))
  .map(e => e.outerHTML.slice(0, 200))"""


@pytest.fixture(scope="module")
def hostile_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The app on experiments, runs, tags, notes, errors, clients and a paper: each name is hostile."""
    folder = tmp_path_factory.mktemp("hostile")
    db = folder / "runs.db"
    fill.done(db, fill.an_experiment("Made up", methods=("fedot", "promptfl"), seeds=(1, 2, 3), rounds=4))
    fill.mixed(db)
    for name in (HOSTILE, f"{HOSTILE} again"):
        experiment = fill.an_experiment(name, ("fedot",), (1, 2), 2)
        entries = [MethodEntry(name="fedot", label=f"{i} {HOSTILE}") for i in range(2)]
        changes = {"methods": tuple(entries), "notes": HOSTILE}
        made, writers = fill.start(db, experiment.model_copy(update=changes))
        for writer in writers[:3]:
            fill.train(writer, clients=[f"{HOSTILE} {i}" for i in range(3)], environment={"fedlens": HOSTILE})
        writers[3].claim.finish("failed", HOSTILE, HOSTILE)
        fill.let_go(db, writers[0].claim.owner)
        Store(db).runs.mark(made.run_ids, tags=[HOSTILE], notes=HOSTILE)
    with writing(db) as database:
        database.execute(
            "UPDATE runs SET notices=json_array(json_object('message', ?, 'repeats_exactly', 1))", [HOSTILE]
        )
    Store(db).saved_views.save("compare", HOSTILE[:200], "ids=3")
    paper = folder / "hostile"
    paper.mkdir()
    (paper / "paper.toml").write_text(PAPER)
    quoted = '"' + HOSTILE + '"'
    (paper / "values.csv").write_text(
        "table,dataset,setting,backbone,method,target,metric,value,std\n"
        f"1,{quoted},{quoted},{quoted},{quoted},avg,accuracy,99.5,\n"
    )
    adding.add(paper, db)
    (folder / "hostile.py").write_text(METHOD)
    supervisor = SupervisorLock(db)
    assert supervisor.acquire()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDLENS_METHODS", str(folder / "hostile.py"))
        with serving(folder) as running:
            yield running
    supervisor.release()


def test_no_name_leads_elsewhere_and_the_policy_has_nothing_to_forbid(
    hostile_server: Server, tab: Tab
) -> None:
    found, page = list[tuple[str, str]](), tab.page
    for name, address in {**VISITS, **MORE}.items():
        page.goto(f"{hostile_server.url}/{address}")
        page.get_by_role("heading", level=1).first.wait_for()
        settle(page)
        if name in PRESSED:
            page.get_by_role("button", name=PRESSED[name], exact=True).click()
            settle(page)
        page.evaluate("document.querySelectorAll('details:not([open]) > summary').forEach(s => s.click())")
        settle(page)
        found += [(name, said) for said in (*page.evaluate(ELSEWHERE), *tab.outside, *tab.errors)]
        tab.outside.clear()
        tab.errors.clear()
    assert not found, "\n".join(map(str, found))
