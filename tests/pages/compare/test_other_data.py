"""Images of two runs are not compared where the data set changed between them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import fill
from tests.support.web.pages import Opened


def two_runs(db: Path, read: tuple[str, str]) -> None:
    """Two methods of one experiment; what the record of each says of the data that it read."""
    _, writers = fill.start(db, fill.an_experiment(methods=("fedot", "promptfl"), seeds=(1,), rounds=2))
    for writer, data in zip(writers, read, strict=True):
        fill.train(writer, environment={"data": data, "pixels": data})
    fill.let_go(db, writers[0].claim.owner)


@pytest.mark.parametrize("read", [("a", "a"), ("a", "b")], ids=["same", "changed"])
@pytest.mark.parametrize("tab", ["Two runs", "Heatmaps"])
def test_images_are_compared_only_where_both_runs_read_them(
    open_page: Opened, tmp_path: Path, tab: str, read: tuple[str, str]
) -> None:
    two_runs(tmp_path / "runs.db", read)
    app = open_page("compare", ids=["1"], baseline="PromptFL", tab=tab)
    app.session_state["pictures_compare_gap_models_0_open"] = True
    app = app.run()
    assert not app.exception
    refused = [i.value for i in app.info if "read different images" in i.value]
    assert len(refused) == (read[0] != read[1]), [i.value for i in app.info]
    asked = [b for b in app.button if b.label in ("Find the pictures", "Compute predictions")]
    assert not refused or all(b.disabled for b in asked)
