"""The fault campaign itself: it repeats its faults, judges right, and leaves no process behind."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from faults.__main__ import FAMILIES, try_once
from faults.bits import damage
from faults.forked import LIVING, Forked, end_all
from faults.lab import Defect, Difference
from faults.mutate import mutate_bytes, mutate_json, mutate_lines
from faults.network import record
from faults.verdict import Family, Outcome, Tally, Verdict, table
from fedcore.errors import FedLensError
from tests.support.web.browser import ROOT


def judged(error: Exception, folder: Path) -> Verdict:
    def attempt(*_: object) -> Verdict:
        raise error

    return try_once(None, Family("a", "a fault", 1, attempt), 1, 0, folder)


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (FedLensError("the disk is full; free some space"), Outcome.REFUSED),
        (Difference("a row differs"), Outcome.DIFFERENT),
        (Defect("a row says running"), Outcome.STATE),
        (KeyError("round"), Outcome.RAW),
    ],
)
def test_what_an_attempt_raises_is_judged(error, outcome, tmp_path):
    assert judged(error, tmp_path).outcome is outcome


def test_the_table_has_a_row_for_every_family():
    tally = Tally(Family("a", "a fault", 3, lambda *_: Verdict(Outcome.REFUSED)))
    tally.counts.update([Outcome.REFUSED, Outcome.REFUSED, Outcome.RAW])
    skipped = Tally(tally.family, skipped="only root can")
    lines = table([tally, skipped]).splitlines()
    assert lines[2] == "| a fault | 3 | 0 | 0 | 2 | 0 | 0 | 1 | 0 s |" and "only root can" in lines[3]
    assert len({line.count("|") for line in lines}) == 1
    assert tally.defects == 1


@pytest.mark.parametrize(
    ("mutate", "content"),
    [
        (mutate_bytes, b"a,b\n1,2\n"),
        (lambda content, rng: mutate_lines(content, b",", rng), b"a,b\n1,2\n3,4\n"),
        (mutate_json, b'{"a": [1, {"b": null}], "c": "d"}'),
    ],
)
def test_a_seed_repeats_its_mutations(mutate, content):
    one, other = ([mutate(content, np.random.default_rng(seed)) for seed in range(50)] for _ in range(2))
    assert one == other
    assert len(set(one)) > 25 and sum(made != content for made in one) > 40


def test_damage_changes_a_file_as_it_says(tmp_path):
    file, content = tmp_path / "file", bytes(range(1, 256)) * 8
    for seed in range(30):
        file.write_bytes(content)
        said, after = damage(file, np.random.default_rng(seed)), file.read_bytes()
        differing = [a ^ b for a, b in zip(content, after, strict=False) if a != b]
        if ": bit" in said:
            assert len(differing) == 1 and differing[0].bit_count() == 1
        elif ": block" in said:
            assert 0 < len(differing) <= 512 and len(after) == len(content)
        else:
            assert content.startswith(after) and len(after) < len(content)


def test_a_process_ends_with_its_status_or_signal(tmp_path):
    assert Forked(lambda: 3, tmp_path / "log").wait() == 3
    assert Forked(lambda: sys.exit(4), tmp_path / "log").wait() == 4
    assert Forked(lambda: [][0], tmp_path / "log").wait() == 1
    assert "IndexError" in (tmp_path / "log").read_text()
    sleeping = Forked(lambda: time.sleep(60), tmp_path / "log")
    assert sleeping.poll() is None
    sleeping.kill()
    assert sleeping.returncode == -9


def test_nothing_lives_after_an_attempt(tmp_path):
    forked = Forked(lambda: time.sleep(60), tmp_path / "log")
    command = [sys.executable, "-c", "import time; time.sleep(60)", "fedcore", str(tmp_path / "runs.db")]
    with subprocess.Popen(command) as other:
        end_all(tmp_path)
        assert other.wait(10) == -9
    assert forked.returncode == -9 and not LIVING


def test_a_connection_elsewhere_is_recorded(tmp_path):
    def ask() -> None:
        record(tmp_path / "outside.log")
        for host in ("127.0.0.1", "localhost", "192.0.2.1"):
            with socket.socket() as one:
                one.settimeout(0.1)
                one.connect_ex((host, 9))

    assert Forked(ask, tmp_path / "log").wait() == 0
    assert (tmp_path / "outside.log").read_text().splitlines() == ["socket.connect 192.0.2.1"]


def test_unknown_families_are_refused():
    command = [sys.executable, "-m", "faults", "no-such-family"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "no-such-family" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_finds_no_defect(name, tmp_path):
    """Few attempts of each, in the order of a whole campaign."""
    if name == "disk" and os.geteuid() != 0:
        pytest.skip("a small file system can be mounted by root only")
    repeat = str(3 / FAMILIES[name].attempts)
    command = [sys.executable, "-m", "faults", name, "--repeat", repeat, "--keep", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
