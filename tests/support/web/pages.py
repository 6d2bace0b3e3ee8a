"""Helpers of the page tests: open a page, press a button, read what is shown."""

import re
from collections.abc import Callable
from pathlib import Path

from streamlit.testing.v1 import AppTest

from fedcore.jobs import job
from fedcore.jobs.job import Heartbeat
from fedcore.store import Store
from fedcore.store.jobs import TASKS, Claim
from fedcore.store.liveness import new_owner

ROOT = Path(__file__).resolve().parents[3]


Opened = Callable[..., AppTest]


def keep_checkpoint(db: Path, run_id: int, round_: int) -> None:
    """As if a run's files were here: made-up runs have none."""
    folder = Store(db).runs.folder(run_id)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"round-{round_}.safetensors").write_bytes(b"")


NASTY = """<b onclick="x()">=1+1</b> *a* $\\alpha$ :red[r] `c` '"\n# h 😀""".replace("\n", " ")


def html(app: AppTest) -> str:
    return "\n".join(e.proto.body for e in app.get("html"))


def button(app: AppTest, label: str) -> object:
    return next(b for b in app.button if b.label == label)


def open_form(app: AppTest, method: str) -> AppTest:
    """Open the hyper-parameters of a method, by the beginning of its name in the table."""
    return next(b for b in app.button if b.key.endswith(".open") and b.label.startswith(method)).click().run()


SWEEP = "Sweep: several values of one or more fields"


def more_of_the_data(app: AppTest, is_open: bool = True) -> AppTest:
    """Open or close what is seldom set of the data."""
    return _more(app, "domains", is_open)


def open_sweep(app: AppTest, is_open: bool = True) -> AppTest:
    """Open or close what is seldom set of the schedule, a sweep among it."""
    return _more(app, "held-out", is_open)


def _more(app: AppTest, what: str, is_open: bool) -> AppTest:
    box = next(e for e in app.expander if e.label.startswith(f"More: {what}"))
    app.session_state[box.key] = is_open
    return app.run()


def plan_line(app: AppTest) -> str:
    """The sentence on runs and costs as a reader sees it, without the escapes of Markdown."""
    line = next(m.value for m in app.markdown if "run" in m.value and m.value.startswith("**"))
    return re.sub(r"\\(.)", r"\1", line)


def begin_task(db: Path) -> Claim:
    """Begin the task that is next, as its job would."""
    claimed = Store(db).jobs.claim(new_owner(), "tasks", TASKS)
    assert claimed is not None
    claimed.begin()
    return claimed


def work_off(db: Path) -> list[str]:
    """Do all queued tasks here with their real handlers; how they ended."""
    ended = []
    while (claimed := Store(db).jobs.claim(new_owner(), "tasks", TASKS)) is not None:
        with Heartbeat(Store(db)) as heartbeat:
            ended.append(job.execute(claimed, heartbeat))
    return ended


def widget(app: AppTest, label: str, kind: str = "multiselect") -> object:
    return next(w for w in app.get(kind) if w.label == label)


def own_folder(app: AppTest, folder: Path) -> AppTest:
    widget(app, "Data set", "selectbox").select("A folder of your own")
    return widget(app.run(), "Folder on this machine", "text_input").set_value(str(folder)).run()
