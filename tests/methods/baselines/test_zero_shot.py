import pytest

from tests.support.against import assert_predictions, build, counts, naive_clip
from tests.support.tiny import run_rounds


def test_scores_are_clips_own(federation):
    clip = naive_clip(federation)
    assert clip.scale == pytest.approx(float(clip.model.logit_scale.exp()))
    expected = clip.scores(clip.sentences(federation.problem.template), federation.pool.values)
    assert_predictions(run_rounds(build("zero-shot", federation), federation, 1), expected)


def test_nothing_is_sent_and_nothing_changes(federation):
    loop = run_rounds(build("zero-shot", federation), federation, 2)
    before, *after = loop.finished
    assert len(after) == 2
    for event in after:
        assert (event.bytes_up, event.bytes_down, event.train_loss) == (0, 0, None)
        assert event.cells == before.cells
    accuracy = counts(before)
    assert {model for model, _ in accuracy} == {0, 1, 2, 3}  # the global model and three clients
    assert accuracy[0, 1] == accuracy[2, 1]
