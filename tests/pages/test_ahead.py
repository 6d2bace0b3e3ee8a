"""What is loaded at the start of the server, so that the first visitor of a page does not wait for it."""

import os
import subprocess
import sys
from pathlib import Path

from fedcore.base.files import PROJECT

STEPS = """
import runpy, sys
from unittest import mock
import app
from streamlit.testing.v1 import AppTest

app.load_pages()
assert "torch._C" not in sys.modules, "pages do without"
before = set(sys.modules)
as_served = mock.patch("streamlit.runtime.scriptrunner.script_runner._mpa_v1", runpy.run_path)
with as_served, mock.patch("fedcore.jobs.ensure_worker", return_value=False):
    app = AppTest.from_file("dashboard.py", default_timeout=120).run()
    for page in ("live", "run", "compare"):
        app.switch_page(f"pages/{page}.py")
        app.query_params["id"] = app.query_params["ids"] = "1"
        app.run()
        assert not app.exception and app.title, page
ours = ("fedcore.", "pages.", "pandas.", "plotly.")
print(*sorted(name for name in set(sys.modules) - before if name.startswith(ours)))
"""


def test_a_first_visit_loads_no_code_of_ours_and_no_class_of_a_chart(filled: Path) -> None:
    environment = {**os.environ, "FEDLENS_DB": str(filled), "PYTHONPATH": str(PROJECT)}
    command = [sys.executable, "-c", STEPS]
    done = subprocess.run(command, cwd=PROJECT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []
