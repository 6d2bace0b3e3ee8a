"""The bundle on the tab Export: made in the background, and handed out as long as it is that of the runs."""

from collections.abc import Callable
from pathlib import Path

import pytest

from fedcore.config import loads
from fedcore.engine.plan import plan
from fedcore.share.archive import open_bundle
from fedcore.share.verify import verify_numbers
from fedcore.store import Store, database
from tests.support.jobs import execute_next
from tests.support.web.compare import show
from tests.support.web.pages import Opened, button, work_off
from tests.support.web.pictures import image_folder


def test_a_bundle_is_made_and_names_what_has_counts_only(
    open_page: Opened, db: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, file = Store(db), tmp_path / "bundle.zip"
    experiment = loads(
        'name = "Pets"\nrounds = 0\nmethods = [{ name = "zero-shot" }]\n'
        'partition = { kind = "iid", clients = 2 }\n'
        f"[data]\n{image_folder(tmp_path / 'pets')}\n"
    )
    store.experiments.create(experiment, plan(experiment).runs[:1])
    assert execute_next(store.path) == "done"
    handed: dict[str, Callable[[], bytes]] = {}
    monkeypatch.setattr(
        "streamlit.download_button", lambda label, data, *_, **__: handed.update({label: data})
    )
    app = button(show(open_page("compare", ids=["1"]), "Export"), "Make bundle").click().run()
    assert "Make bundle" not in [b.label for b in app.button], "one bundle is made once"
    assert work_off(store.path) == ["done"], store.tasks.recent()
    app = app.run()
    file.write_bytes(handed["Bundle (ZIP)"]())
    _, verdict = verify_numbers(archive := open_bundle(file))
    assert verdict.holds and not app.warning
    assert any(archive.manifest.digest in caption.value for caption in app.caption)

    for checkpoint in store.runs.folder(1).glob("*.safetensors"):
        checkpoint.unlink()
    button(app, "Make bundle again").click().run()
    assert work_off(store.path) == ["done"], store.tasks.recent()
    (said,) = app.run().warning
    listed = said.value.replace("\\", "")
    assert "counts only" in listed and "\n- run 1 (Zero-shot CLIP, seed 1), round 0: it was" in listed

    with database.writing(store.path) as opened:
        opened.execute("UPDATE runs SET attempt = attempt + 1")
    handed.clear()
    app = app.run()
    assert "Bundle (ZIP)" not in handed and button(app, "Make bundle")
    assert any("The runs have changed since" in caption.value for caption in app.caption)

    (task,) = store.tasks.recent()
    assert task.folder.is_dir()
    store.experiments.delete(1)
    assert not task.folder.exists() and store.tasks.recent() == [], "no predictions outlive their experiment"
