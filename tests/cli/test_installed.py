"""The wheel, installed into a folder: ``fedlens`` works far from the checkout."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

import psutil
import pytest

from fedcore.base.files import PROJECT
from tests.support.jobs import wait_for

pytestmark = pytest.mark.slow
GENEROUS = 120.0
PAGES = """
import sys
from streamlit.testing.v1 import AppTest
for page in ("experiments", "new", "compare", "live", "data", "run"):
    app = AppTest.from_file(sys.argv[1], default_timeout=60).run()
    app.switch_page(f"pages/{page}.py").run()
    print(page, len(app.main), [e.message for e in app.exception], [e.value for e in app.error])
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project: a build leaves files behind, and takes those of earlier builds along."""
    folder = tmp_path_factory.mktemp("source")
    listed = subprocess.run(["git", "ls-files"], cwd=PROJECT, capture_output=True, text=True)
    if listed.returncode != 0:
        pytest.skip("the files of the project are listed by git")
    for name in listed.stdout.splitlines():
        if not name.startswith("docs/screenshots/") and (PROJECT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(PROJECT / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def installed(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which ``pip install .`` has installed FedLens without its dependencies."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--target", folder / "site", source], check=True, timeout=300)
    return folder / "site"


@pytest.fixture
def away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installed: Path) -> Path:
    """An empty current folder, from which the installed package is imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(installed))
    monkeypatch.delenv("FEDLENS_DB", raising=False)
    return tmp_path


@pytest.fixture
def fedlens(installed: Path, away: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [installed / "bin" / "fedlens", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=GENEROUS)

    return run


@contextmanager
def started(log: Path, *command: str | Path, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process whose output goes to a file, and the workers that it starts; killed at the end."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env={**os.environ, **environment}
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait(GENEROUS)
        for other in psutil.process_iter(["cmdline"]):
            if str(log.parent / "runs.db") in (other.info["cmdline"] or []):
                other.kill()


def test_the_wheel_holds_the_package_and_the_dashboard_and_nothing_else(installed):
    top = {path.name for path in installed.iterdir() if not path.name.endswith(".dist-info")}
    assert top == {"bin", "fedcore", "fedlens_app"}
    dashboard = {
        str(path.relative_to(installed / "fedlens_app")) for path in installed.glob("fedlens_app/**/*")
    }
    tracked = {
        str(path.relative_to(PROJECT))
        for path in [*PROJECT.glob("pages/**/*"), PROJECT / "app.py", PROJECT / "dashboard.py"]
        if path.suffix in (".css", ".html", ".py", ".js", ".svg")
    }
    assert tracked <= dashboard
    assert {".streamlit/config.toml", "docs/methods/fedot.md"} <= dashboard
    assert "setup.py" not in dashboard
    assert (installed / "fedcore" / "py.typed").is_file()
    about = metadata.PathDistribution(next(installed.glob("*.dist-info"))).metadata
    assert about["Author"] == "The FedLens authors" and about.get_all("Classifier")


def test_the_wheel_fits_into_ten_megabytes_and_the_sdist_has_examples_and_all_tests(source, tmp_path):
    build = "import sys; from setuptools import build_meta as made; made.build_{}(sys.argv[1])"
    for kind in ("wheel", "sdist"):
        command = [sys.executable, "-c", build.format(kind), tmp_path]
        subprocess.run(command, cwd=source, check=True, timeout=300, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.stat().st_size < 10e6
    (sdist,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    files = (*source.glob("examples/**/*.*"), *source.glob("tests/**/*.py"))
    assert {str(path.relative_to(source)) for path in files} <= packed
    assert {"SECURITY.md", "CITATION.cff", "Makefile", "requirements-dev.txt"} <= packed


def test_the_demo_trains_into_the_current_folder_and_stops(installed, away, fedlens):
    log = away / "log.txt"
    with started(log, installed / "bin" / "fedlens", "run", "--demo", OMP_NUM_THREADS="1") as demo:
        wait_for(lambda: "round 2" in log.read_text(), GENEROUS)
        demo.send_signal(signal.SIGINT)
        assert demo.wait(GENEROUS) == 130, log.read_text()
    assert (away / "runs.db").is_file()
    assert "stopped" in fedlens("list").stdout


def test_the_dashboard_answers_on_this_machine_only_and_its_pages_render(installed, away):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = away / "log.txt"
    command = [installed / "bin" / "fedlens", "app", "--port", str(port)]
    with started(log, *command, STREAMLIT_SERVER_HEADLESS="true") as app:
        wait_for(lambda: f":{port}" in log.read_text() or app.poll() is not None, GENEROUS)
        address = f"http://127.0.0.1:{port}/_stcore/health"
        wait_for(lambda: _answer(address) == b"ok", GENEROUS)
        listening = [c.laddr.ip for c in psutil.Process(app.pid).net_connections() if c.status == "LISTEN"]
        assert listening == ["127.0.0.1"]
        app.send_signal(signal.SIGINT)
        assert app.wait(GENEROUS) == 0
        assert "error" not in log.read_text(), "Ctrl-C is how it ends"
    script = str(installed / "fedlens_app" / "dashboard.py")
    environment = {**os.environ, "PYTHONPATH": f"{installed}{os.pathsep}{installed / 'fedlens_app'}"}
    pages = subprocess.run(
        [sys.executable, "-c", PAGES, script],
        capture_output=True,
        text=True,
        env=environment,
        timeout=GENEROUS,
    )
    lines = pages.stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["experiments", "new", "compare", "live", "data", "run"], (
        pages.stderr
    )
    assert all(line.endswith("[] []") for line in lines), pages.stdout
    assert (away / "runs.db").is_file()


def _answer(address: str) -> bytes:
    try:
        with urllib.request.urlopen(address, timeout=5) as answer:
            return bytes(answer.read())
    except OSError:
        return b""


def test_the_script_of_the_readme_records_into_the_current_folder(away, fedlens):
    readme = (PROJECT / "README.md").read_text(encoding="utf-8")
    (script,) = re.findall(r"```python\n(from fedcore[^`]*Recorder.*?)```", readme, re.DOTALL)
    subprocess.run([sys.executable, "-c", script], check=True, timeout=GENEROUS)
    assert ",mine,1,,done,50,50,90.0," in fedlens("list").stdout
    assert "mine" in fedlens("export", "1").stdout


def test_presets_and_data_are_found(fedlens):
    assert "rotated-digits" in fedlens("data", "list").stdout
    assert "rotation" in fedlens("methods", "fedot").stdout.lower()
