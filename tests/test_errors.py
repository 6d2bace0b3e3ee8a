"""An error that users see is one line, whatever it quotes."""

from __future__ import annotations

import pytest

from fedcore.config import load
from fedcore.errors import FedLensError


def test_a_path_with_line_breaks_is_told_in_one_line() -> None:
    with pytest.raises(FedLensError, match=r"^cannot read no such file .toml") as caught:
        load("no such\r\nfile\u2028.toml")
    assert len(caught.value.line().splitlines()) == 1
