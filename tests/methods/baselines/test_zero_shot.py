import torch

from tests.support.against import build, cells, client_logits, global_logits
from tests.support.tiny import run_rounds


def naive_scores(federation):
    """Scale times cosine with the class sentences, encoded by open_clip itself, one at a time."""
    backbone, problem = federation.problem.backbone, federation.problem
    rows = []
    for h in federation.pool.values:
        row = []
        for name in problem.classes:
            t = backbone.model.encode_text(backbone.tokenizer([problem.template.format(name)]))[0]
            row.append(backbone.model.logit_scale.exp() * (t @ h) / (t.norm() * h.norm()))
        rows.append(torch.stack(row))
    return torch.stack(rows)


def test_scores_are_clips_own(federation):
    method = build("zero-shot", federation)
    state = run_rounds(method, federation, 1).state
    expected = naive_scores(federation)
    torch.testing.assert_close(global_logits(method, state, federation), expected, atol=1e-9, rtol=0)
    for found in client_logits(method, state, federation):
        torch.testing.assert_close(found, expected, atol=1e-9, rtol=0)


def test_nothing_is_sent_and_nothing_changes(federation):
    loop = run_rounds(build("zero-shot", federation), federation, 2)
    before, *after = loop.finished
    assert len(after) == 2
    for event in after:
        assert (event.bytes_up, event.bytes_down, event.train_loss) == (0, 0, None)
        assert event.cells == before.cells
    accuracy = cells(loop)
    assert {model for model, _ in accuracy} == {0, 1, 2, 3}  # the global model and three clients
    assert accuracy[0, 1] == accuracy[2, 1]
