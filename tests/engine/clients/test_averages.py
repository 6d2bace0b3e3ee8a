"""Uploads that are summed as they arrive have the mean of all of them."""

from dataclasses import replace

import pytest
import torch

from fedcore.engine.server import RunningMean
from fedcore.methods.base import FedLensMethodError, Method
from fedcore.methods.tensors import weighted_mean
from tests.support.own_methods import BiasConfig, BiasMethod
from tests.support.tiny import parts, run_rounds, tiny_federation


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("clients", [1, 2, 15, 16, 17, 33, 255, 256, 257, 1000, 4097])
def test_the_running_mean_is_the_mean_of_all(clients, dtype):
    generator = torch.Generator().manual_seed(clients)
    weights = torch.rand(clients, dtype=torch.float64, generator=generator)
    weights = weights / weights.sum()
    for shape in ((), (1,), (2,), (3, 5), (64,), (2, 64)):
        values = torch.randn(clients, *shape, dtype=dtype, generator=generator)
        given, mean = values.clone(), RunningMean(weights)
        for part in values.split(13):
            mean.add(part)
        result, plain = mean.result(), weighted_mean(values, weights)
        torch.testing.assert_close(result, plain, rtol=0, atol=1e-15 if dtype == torch.float64 else 1e-8)
        if plain.numel() % 64 == 0:
            assert torch.equal(result, plain), shape
        assert torch.equal(values, given), "the uploads are not written to"


def test_a_method_that_reads_more_than_the_mean_keeps_its_uploads():
    class Reading(BiasMethod):
        def diagnostics(self, before, trained, uploads, data):
            return {"largest": uploads.dense("weight").abs().amax((1, 2))}

    config, problem = BiasConfig(), tiny_federation().problem
    assert BiasMethod(config, problem).needs_only_means
    assert not Reading(config, problem).needs_only_means


def test_a_mean_that_was_not_summed_is_refused():
    class Momentum(BiasMethod):
        needs_only_means = True

        def aggregate(self, state, uploads, generator):
            assert torch.equal(uploads.mean("weight", "samples"), uploads.means["weight"])
            return replace(state, shared={"weight": uploads.mean("weight", "uniform")})

    federation = tiny_federation()
    with pytest.raises(FedLensMethodError, match="the mean of 'weight' weighted by 'uniform' was not summed"):
        run_rounds(Momentum(BiasConfig(weighting="samples"), federation.problem), federation, 1)


class KeepsUploads(BiasMethod):
    """The plain path: all uploads are kept, as a method of its own aggregation has them."""

    def aggregate(self, state, uploads, generator):
        return Method.aggregate(self, state, uploads, generator)


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
@pytest.mark.parametrize("chunk", [1, 2, 32])
def test_a_run_that_sums_its_uploads_equals_one_that_keeps_them(weighting, chunk):
    federation = tiny_federation(samples=(9, 5, 7, 12, 4))
    config = BiasConfig(weighting=weighting, optimiser_state="kept")
    plain, summed = (
        run_rounds(cls(config, federation.problem), federation, 3, participation=0.6, chunk=chunk)
        for cls in (KeepsUploads, BiasMethod)
    )
    torch.testing.assert_close(parts(plain.state), parts(summed.state), rtol=0, atol=1e-14)
    assert [len(e.cells) for e in plain.finished] == [len(e.cells) for e in summed.finished]
    for one, other in zip(plain.finished[1:], summed.finished[1:], strict=True):
        assert (one.bytes_up, one.bytes_down) == (other.bytes_up, other.bytes_down)
        assert [c.train_loss for c in one.clients] == pytest.approx([c.train_loss for c in other.clients])
