import pytest

from fedcore.progress import Pace, about, counted, duration


def test_speed_and_time_left_count_from_the_first_look():
    now = iter([0.0, 2.0, 4.0])
    pace = Pace(clock=lambda: next(now))
    assert pace.text(640, 1000) == ""  # rows of an interrupted attempt
    assert pace.text(700, 1000) == "30 images/s, 10 s left"
    assert pace.text(656, 1000) == "4.0 images/s, 1 min 26 s left"


def test_spans_are_said_in_two_units():
    assert [duration(s) for s in (0, 59, 60, 3599, 7500)] == [
        "0 s",
        "59 s",
        "1 min 00 s",
        "59 min 59 s",
        "2 h 05 min",
    ]


@pytest.mark.parametrize(
    ("number", "noun", "text"),
    [(1, "run", "1 run"), (0, "run", "0 runs"), (1200, "image", "1,200 images"), (2, "class", "2 classes")],
)
def test_a_number_has_its_noun_in_the_right_form(number: int, noun: str, text: str) -> None:
    assert counted(number, noun) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (1, "5 s"),
        (42, "40 s"),
        (58, "1 min"),
        (660, "11 min"),
        (5399, "90 min"),
        (7200, "2 h"),
        (9000, "2.5 h"),
    ],
)
def test_an_estimate_is_not_written_to_the_second(seconds: float, text: str) -> None:
    assert about(seconds) == f"about {text}"
