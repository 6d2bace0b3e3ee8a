"""The processor's load is that of the time since the last look, whichever thread looks."""

from __future__ import annotations

from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor

import pytest

from fedcore import devices

Times = namedtuple("Times", "user idle")


def test_a_new_thread_sees_the_load_that_others_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "_last_sample", None)
    monkeypatch.setattr(devices, "_last_load", None)
    seen = []
    for times in (Times(100.0, 100.0), Times(103.0, 101.0), Times(103.1, 101.0)):
        monkeypatch.setattr(devices.psutil, "cpu_times", lambda times=times: times)
        with ThreadPoolExecutor(1) as thread:
            seen.append(thread.submit(lambda: devices.list_devices()[-1].load).result())
    assert seen == [None, 0.75, 0.75], "nothing yet; three of four seconds; too short a time to tell"
