"""The requirements files are read by pip and by setuptools, which knows none of pip's options."""

from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("path", sorted(ROOT.glob("requirements*.txt")), ids=lambda path: path.name)
def test_every_line_names_a_package_with_a_lower_bound(path: Path) -> None:
    lines = [line.partition(" #")[0].strip() for line in path.read_text().splitlines()]
    packages = [Requirement(line) for line in lines if line and not line.startswith("#")]
    assert packages
    free = [p.name for p in packages if not any(s.operator in (">=", "==", "~=") for s in p.specifier)]
    assert free == []
