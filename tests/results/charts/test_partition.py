from xml.etree import ElementTree

import numpy as np
import pytest

from fedcore.results.charts.partition import MAX_BUBBLES, MAX_CELLS, partition_picture
from fedcore.results.charts.theme import Theme


def bubbles(text: str) -> dict[str, float]:
    """What each bubble says, and its width in per cent of its box."""
    said = [s for s in ElementTree.fromstring(text).iter("span") if s.get("title")]
    return {s.get("title"): float(s.get("style").split("width:min(")[1].split("%")[0]) for s in said}


def test_a_bubble_for_every_class_that_a_client_holds():
    found = partition_picture(np.array([[16, 0, 4], [0, 1, 16]]), ["a", "b"], ["x", "y", "z"], Theme())
    radii = bubbles(found.html)
    assert set(radii) == {
        "a, class x: 16 training samples",
        "a, class z: 4 training samples",
        "b, class y: 1 training sample",
        "b, class z: 16 training samples",
    }
    full = radii["a, class x: 16 training samples"]
    assert radii["a, class z: 4 training samples"] == round(full / 2), "area, not radius, is the number"
    assert found.alt == "2 clients, 3 classes; a client holds 17 to 20 training samples of 2 classes."
    assert f'aria-label="{found.alt}"' in found.html


def test_names_are_text():
    found = partition_picture(
        np.ones((1, 1), int), ['<b onclick="x()">'], ["</title><script>"], Theme(dark=True)
    )
    (said,) = bubbles(found.html)
    assert said == '<b onclick="x()">, class </title><script>: 1 training sample'
    assert "<script" not in found.html and "<b " not in found.html


def test_of_many_clients_some_are_drawn_and_all_are_counted():
    counts = np.full((1000, MAX_BUBBLES), 2)
    names = [str(j) for j in range(MAX_BUBBLES)]
    found = partition_picture(counts, [f"c{i}" for i in range(1000)], names, Theme())
    assert len(bubbles(found.html)) == MAX_CELLS
    assert found.alt.startswith("1,000 clients, 40 classes; a client holds 80 training samples")
    assert "The picture shows 50 of the clients" in found.alt
    assert "c0, class" in found.html and "c999, class" in found.html


def test_of_many_classes_a_client_is_one_strip_of_shades():
    counts = np.zeros((2, 100), int)
    counts[0, [0, 99]], counts[1, 50] = (10, 5), 10
    found = partition_picture(counts, ["a<b>", "c"], [str(j) for j in range(100)], Theme())
    strips = [s for s in ElementTree.fromstring(found.html).iter("span") if s.get("title")]
    assert [s.get("title") for s in strips] == [
        "a<b>: 15 training samples of 2 classes",
        "c: 10 training samples of 1 class",
    ]
    first, second = (s.get("style") for s in strips)
    assert "100%,transparent) 0.00% 1.00%" in first and "65%,transparent) 99.00% 100.00%" in first
    assert "100%,transparent) 50.00% 51.00%" in second and second.count("color-mix") == 1
    assert found.alt.endswith("Stronger colours mean more samples.")


def test_nothing_is_a_picture_too():
    assert bubbles(partition_picture(np.zeros((2, 2), int), ["a", "b"], ["x", "y"], Theme()).html) == {}


@pytest.mark.parametrize("classes", [40, 41])
def test_the_columns_of_a_partition_shrink_to_the_room_there_is(classes: int) -> None:
    names = [f"class {i}" for i in range(classes)]
    drawn = partition_picture(np.ones((3, classes), int), ["a", "b", "c"], names, Theme(False)).html
    assert "minmax(0,1fr)" in drawn, "a least width of 2 pixels made 200 classes wider than the page"
    assert ("column-gap:0px" in drawn) == (classes > 40)
