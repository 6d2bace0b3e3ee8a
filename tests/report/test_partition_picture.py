from __future__ import annotations

from xml.etree import ElementTree

import numpy as np

from fedcore.report.palette import Look
from fedcore.report.partition_picture import MOST_CELLS, partition_picture


def bubbles(text: str) -> dict[str, float]:
    """What each bubble says, and its width in per cent of its box."""
    said = [s for s in ElementTree.fromstring(text).iter("span") if s.get("title")]
    return {s.get("title"): float(s.get("style").split("width:min(")[1].split("%")[0]) for s in said}


def test_a_bubble_for_every_class_that_a_client_holds():
    found = partition_picture(np.array([[16, 0, 4], [0, 1, 16]]), ["a", "b"], ["x", "y", "z"], Look())
    radii = bubbles(found.html)
    assert set(radii) == {
        "a, class x: 16 training samples",
        "a, class z: 4 training samples",
        "b, class y: 1 training samples",
        "b, class z: 16 training samples",
    }
    full = radii["a, class x: 16 training samples"]
    assert radii["a, class z: 4 training samples"] == round(full / 2), "area, not radius, is the number"
    assert found.alt == "2 clients, 3 classes; a client holds 17 to 20 training samples of 2 classes."
    assert f'aria-label="{found.alt}"' in found.html


def test_names_are_text():
    found = partition_picture(
        np.ones((1, 1), int), ['<b onclick="x()">'], ["</title><script>"], Look(dark=True)
    )
    (said,) = bubbles(found.html)
    assert said == '<b onclick="x()">, class </title><script>: 1 training samples'
    assert "<script" not in found.html and "<b " not in found.html


def test_of_many_clients_some_are_drawn_and_all_are_counted():
    counts = np.full((1000, 100), 2)
    found = partition_picture(counts, [f"c{i}" for i in range(1000)], [str(j) for j in range(100)], Look())
    assert len(bubbles(found.html)) == MOST_CELLS
    assert found.alt.startswith("1000 clients, 100 classes; a client holds 200 training samples")
    assert "c0, class" in found.html and "c999, class" in found.html


def test_nothing_is_a_picture_too():
    assert bubbles(partition_picture(np.zeros((2, 2), int), ["a", "b"], ["x", "y"], Look()).html) == {}
