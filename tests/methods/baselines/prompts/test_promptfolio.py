import torch

from fedcore.methods.base import State
from tests.support.against import assert_predictions, build, naive_clip, train_both
from tests.support.oracles.fedavg import loss_of
from tests.support.tiny import run_rounds

SETTINGS = {"context_length": 3, "lr": 0.05, "batch_size": 4}


def test_agrees_with_the_naive_implementation(federation):
    method, clip = build("promptfolio", federation, **SETTINGS), naive_clip(federation)
    drawn = method.init(federation.problem.generator).local["own"]
    assert not torch.equal(drawn[0], drawn[1])

    def scores(params, images):
        parts = [clip.texts(params[name]) for name in ("context", "own")]
        return [clip.scale * (0.6 * parts[0] + 0.4 * parts[1]) @ (h / h.norm()) for h in images]

    loop, owns = train_both(method, federation, loss_of(scores), "samples")
    pool = federation.pool.values
    common = clip.scores(clip.texts(owns[0]["context"]), pool)
    assert_predictions(loop, common, [torch.stack(scores(params, pool)) for params in owns])


def test_theta_one_is_coop_bit_for_bit(federation):
    alone = build("coop", federation, **SETTINGS)
    folio = build("promptfolio", federation, **SETTINGS, theta=1)
    first = folio.init(federation.problem.generator)
    alone.init = lambda generator: State(local={"context": first.local["own"]})
    ours, theirs = (run_rounds(m, federation, 2).state for m in (folio, alone))
    assert torch.equal(ours.local["own"], theirs.local["context"])
