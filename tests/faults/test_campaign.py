"""The fault campaign itself: it repeats its faults, judges right, and leaves no process behind."""

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from fedcore.base.errors import FedLensError
from tests.support.web.browser import ROOT
from tools.faults.__main__ import FAMILIES, try_once
from tools.faults.accounts import try_locks
from tools.faults.bits import damage
from tools.faults.family import Family
from tools.faults.forked import Forked
from tools.faults.lab import Defect, Difference, Lab
from tools.faults.mutate import mutate_bytes, mutate_json, mutate_lines
from tools.faults.network import record
from tools.faults.pages import spoil
from tools.faults.terminal import ESCAPE, FORBIDDEN, PAYLOADS, shown_in_a_terminal
from tools.faults.verdict import Outcome, Verdict


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


def test_a_connection_elsewhere_is_recorded(tmp_path):
    def ask() -> None:
        record(tmp_path / "outside.log")
        for host in ("127.0.0.1", "localhost", "192.0.2.1"):
            with socket.socket() as one:
                one.settimeout(0.1)
                one.connect_ex((host, 9))

    assert Forked(ask, tmp_path / "log").wait() == 0
    assert (tmp_path / "outside.log").read_text().splitlines() == ["socket.connect 192.0.2.1"]


@pytest.mark.parametrize("kind", ["lost", "misdirected", "swapped", "half-old"])
def test_pages_are_spoilt_as_it_says(kind, tmp_path):
    before, db, sector = tmp_path / "before", tmp_path / "db", 512
    head = bytes(16) + (1024).to_bytes(2, "big")
    old, new = ([head.ljust(1024, c), *(c * 1024 for _ in range(5))] for c in (b"o", b"n"))
    new = [page[:1022] + bytes([0, number]) for number, page in enumerate(new)]
    before.write_bytes(b"".join(old))
    for seed in range(20):
        db.write_bytes(b"".join(new))
        spoil(db, before, kind, np.random.default_rng(seed))
        content = db.read_bytes()
        pages = [content[at : at + 1024] for at in range(0, len(content), 1024)]
        changed = [i for i, page in enumerate(pages) if page != new[i]]
        if kind == "lost":
            assert [pages[i] for i in changed] == [old[changed[0]]]
        elif kind == "half-old":
            (one,) = changed
            assert pages[one] == new[one][:sector] + old[one][sector:]
        elif kind == "swapped":
            assert sorted(pages) == sorted(new) and len(changed) in (0, 2)
        else:
            stale = [i for i in changed if pages[i] == old[i]]
            assert len(stale) == 1 and all(pages[i] == new[stale[0]] for i in changed if i not in stale)


def test_damaged_caches_are_noticed(tmp_path):
    """File checks and DDR's brightness: the whole family runs in this process."""
    lab = Lab(tmp_path / "lab")
    verdicts = [try_once(lab, FAMILIES["caches"], 1, number, tmp_path / "attempt") for number in range(20)]
    assert {verdict.outcome for verdict in verdicts} <= {Outcome.MENDED, Outcome.UNAFFECTED}
    assert sum(verdict.outcome is Outcome.MENDED for verdict in verdicts) > 10


def test_a_terminal_shows_what_is_written_to_it(tmp_path, monkeypatch):
    """The family finds every payload that a command lets through, and none in what FedLens writes."""
    seen = shown_in_a_terminal(["list", "--db", str(tmp_path / f"{''.join(PAYLOADS)}.db")], tmp_path / "log")
    assert seen and not FORBIDDEN.search(seen) and not ESCAPE.search(seen)
    monkeypatch.setattr(
        "tools.faults.terminal.fedlens", lambda arguments: sys.stdout.write(arguments[-1]) * 0
    )
    lines = shown_in_a_terminal(["\n".join(PAYLOADS)], tmp_path / "log").split("\r\n")
    assert len(lines) == len(PAYLOADS)
    assert [line for line in lines if not FORBIDDEN.search(line) and not ESCAPE.search(line)] == []


def campaign(names: Sequence[str], repeat: float, keep: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tools.faults", *names, "--repeat", str(repeat), "--keep", str(keep)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another account")
@pytest.mark.parametrize(("mode", "can"), [(0o600, False), (0o644, True)])
def test_another_account_holds_what_it_can_open(mode, can, tmp_path):
    lock, report = tmp_path / "runs.db.lock", tmp_path / "report"
    tmp_path.chmod(0o755)
    for file, rights in ((lock, mode), (report, 0o666)):
        file.touch()
        file.chmod(rights)
    assert Forked(lambda: try_locks(tmp_path, [lock.name], report), tmp_path / "log").wait() == 0
    assert bool(report.read_text()) == can


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", [name for name in FAMILIES if not name.startswith("cluster-")])
def test_every_family_finds_no_defect(name, tmp_path):
    """Few attempts of each, in the order of a whole campaign."""
    if (why := FAMILIES[name].needs()) is not None:
        pytest.skip(why)
    attempts = FAMILIES[name].attempts
    done = campaign([name], min(3, attempts) / attempts, tmp_path)
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_families_of_a_cluster_find_no_defect(tmp_path):
    """One attempt of each in one campaign, as most share a cluster."""
    names = [name for name in FAMILIES if name.startswith("cluster-")]
    if (why := FAMILIES[names[0]].needs()) is not None:
        pytest.skip(why)
    done = campaign(names, 0.01, tmp_path)
    assert done.returncode == 0, done.stdout
