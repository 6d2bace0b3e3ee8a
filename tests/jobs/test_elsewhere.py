"""Without the package for a cluster, everything that needs it says how to install it."""

from importlib.metadata import EntryPoint
from types import SimpleNamespace

import pytest

from fedcore.cli.main import main
from fedcore.jobs import launcher

INSTALL = "in a checkout of FedLens: pip install ./fedlens-ray"


@pytest.mark.parametrize("command", [["worker", "--ray"], ["run", "--demo", "--over", "2", "--ray"]])
def test_a_command_for_a_cluster_names_the_package_that_is_missing(command, db, monkeypatch, capsys):
    monkeypatch.setattr(launcher, "cluster", lambda: None)
    assert main([*command, "--db", str(db)]) == 2
    assert INSTALL in capsys.readouterr().err


def test_a_package_is_found_by_its_entry_point(monkeypatch):
    point = EntryPoint("ours", "types:SimpleNamespace", "fedlens.cluster")
    monkeypatch.setattr(launcher, "entry_points", lambda group: [point] if group == point.group else [])
    assert launcher.cluster.__wrapped__() is SimpleNamespace
