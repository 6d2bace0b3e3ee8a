"""Bad inputs, one a row of ``bad_inputs``: the message says where and what to do, and nothing is lost."""

import re
from pathlib import Path

import pytest

from fedcore.base.errors import FedLensError
from fedcore.base.progress import result_of
from fedcore.data import catalog
from fedcore.data.check import CheckReport, check_dataset
from tests.support.data import layouts
from tests.support.data.bad_inputs import BAD, Bad
from tests.support.data.spoilers import sampled


def on_disk(base: Path) -> dict[str, bytes]:
    """Every file with its content."""
    return {str(p): p.read_bytes() for p in sorted(base.rglob("*")) if p.is_file() and not p.is_symlink()}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD.keys())
def test_bad_input_is_named_with_its_remedy_and_nothing_is_lost(bad: Bad, tmp_path: Path):
    root = bad.given(tmp_path)
    root = bad.spoil(root) or root
    before = on_disk(tmp_path)
    if bad.good is None:
        with pytest.raises(FedLensError) as caught:
            catalog.load(bad.name, str(root), **bad.options)
        assert caught.value.field == bad.at
        _says(str(caught.value), bad.says)
    else:
        images, warnings = catalog.load(bad.name, str(root), **bad.options)
        _says("\n".join(warnings), bad.says)
        assert len(images) == bad.good and bool(warnings) == bool(bad.says)
        for i in range(len(images)):
            assert layouts.label_of(images.read(i).getpixel((4, 4))) == (images.labels[i], images.domain[i])
    assert on_disk(tmp_path).items() >= before.items(), "looking changes nothing"


def _says(text: str, patterns: tuple[str, ...]) -> None:
    for pattern in patterns:
        assert re.search(pattern, text), f"{pattern!r} not in {text!r}"


@pytest.mark.parametrize("bad", sampled(BAD, lambda bad: (bad.name, bad.good is None)))
def test_a_check_of_bad_input_ends_with_a_report_that_says_the_same(
    bad: Bad, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("FEDLENS_CACHE", str(tmp_path / "cache"))
    root = bad.given(tmp_path)
    root = bad.spoil(root) or root
    if not root.exists():
        with pytest.raises(FedLensError, match="no folder"):
            result_of(check_dataset(bad.name, str(root)))
        return
    report = result_of(check_dataset(bad.name, str(root), **bad.options))
    assert isinstance(report, CheckReport)
    if bad.good is None:
        assert report.error is not None
        _says(report.error, bad.says)
    else:
        assert report.error is None and report.images == bad.good
        assert bool(report.left_out) == bool(bad.says)


def test_every_format_of_ones_own_has_inputs_that_are_refused_and_images_that_are_left_out():
    cases = {(bad.name, bad.good is None) for bad in BAD.values()}
    formats = ("folder", "manifest", "hf-dataset")
    assert {(name, refused) for name in formats for refused in (True, False)} <= cases
