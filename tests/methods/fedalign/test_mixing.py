import pytest
import torch

from fedcore.base.errors import FedLensError
from fedcore.methods.base import Ragged
from fedcore.methods.fedalign.config import FedAlignConfig
from fedcore.methods.fedalign.mixing import attend, mix, mix_parts, personalise, relevance, resized


def test_pack_zeroes_what_is_not_kept():
    values = torch.arange(1.0, 9.0).view(2, 4)
    packed = Ragged.pack(values, torch.tensor([[False, True, False, True], [False, False, False, True]]))
    assert packed.lengths.tolist() == [2, 1]
    assert packed.values.tolist() == [[2.0, 4.0], [8.0, 0.0]]
    assert [part.tolist() for part in packed.per_client()] == [[2.0, 4.0], [8.0]]
    assert Ragged.pack(values, torch.zeros(2, 4, dtype=torch.bool)).values.shape == (2, 0)


def test_relevance_by_hand():
    e = torch.eye(2, dtype=torch.float64)
    prototypes = Ragged(torch.stack([e, torch.stack([e[1], 0 * e[1]])]), torch.tensor([2, 1]))
    counts = Ragged(torch.tensor([[3, 1], [5, 0]]), torch.tensor([2, 1]))
    scores = relevance(FedAlignConfig(), prototypes, counts)
    assert scores.tolist() == [[1.0, 0.25], [1.0, 1.0]]
    mean = relevance(FedAlignConfig(reduce="mean"), prototypes, counts)
    assert mean.tolist() == [[0.5, 0.25], [0.5, 1.0]]


def test_attention_masks_before_the_softmax():
    scores = torch.tensor([[9.0, 1.0, 1.0], [0.0, 9.0, 0.0], [0.0, 0.0, 9.0]], dtype=torch.float64)
    fallback = torch.full((3,), 1 / 3, dtype=torch.float64)
    weights, alone = attend(scores, torch.tensor([True, True, True]), True, fallback)
    assert weights[0].tolist() == [0.0, 0.5, 0.5]
    assert not alone.any()
    weights, alone = attend(scores, torch.tensor([True, False, False]), True, fallback)
    assert alone.tolist() == [True, True, True]
    assert torch.equal(weights, fallback.expand(3, 3))


@pytest.mark.parametrize("clients", [1, 3, 20])
def test_a_mean_of_c_updates_of_rank_r_is_exact_with_rank_r_c_and_cut_to_the_best_of_rank_r(clients):
    """With 20 clients it would be 40, of a width of 10."""
    torch.manual_seed(0)
    a = torch.randn(clients, 2, 3, 2, 10, dtype=torch.float64)
    b = torch.randn(clients, 2, 3, 10, 2, dtype=torch.float64)
    weights = torch.rand(4, clients, dtype=torch.float64)
    full = torch.einsum("mc,clpij->mlpij", weights, b @ a)
    rank = min(2 * clients, 10)
    got_a, got_b = mix(a, b, weights, "exact", rank)
    assert got_a.shape == (4, 2, 3, rank, 10)
    torch.testing.assert_close(got_b @ got_a, full)
    cut_a, cut_b = mix(a, b, weights, "product", 2)
    first_a, first_b = resized(got_a, got_b, 2)
    torch.testing.assert_close(first_b @ first_a, cut_b @ cut_a)
    u, s, vh = torch.linalg.svd(full)
    best = (u[..., :2] * s[..., None, :2]) @ vh[..., :2, :]
    torch.testing.assert_close(cut_b @ cut_a, best)
    torch.testing.assert_close(cut_a.norm(dim=-1), torch.full((4, 2, 3, 2), 3**-0.5, dtype=torch.float64))
    wide_a, wide_b = resized(cut_a, cut_b, 7)
    assert wide_a.shape[-2] == 7
    torch.testing.assert_close(wide_b @ wide_a, cut_b @ cut_a)


def test_factors_of_equal_singular_values_do_not_turn_at_a_rounding_error():
    """Adam trains differently from turned factors, so that last bits would grow from round to round."""
    generator = torch.Generator().manual_seed(0)
    q, _ = torch.linalg.qr(torch.randn(3, 10, 3, generator=generator, dtype=torch.float64))
    a = q.transpose(-1, -2).expand(2, 1, 3, 3, 10) / 3**0.5  # B A has three equal singular values
    b = q.expand(2, 1, 3, 10, 3)
    weights = torch.tensor([[0.4, 0.6]])
    exact, _ = mix(a, b, weights, "exact", 3)
    torch.testing.assert_close(exact[0], a[0])
    noise = 1e-7 * torch.randn(b.shape, generator=generator)
    near, near_b = mix(a, b + noise, weights, "exact", 3)
    torch.testing.assert_close(near, exact, atol=1e-6, rtol=0)
    torch.testing.assert_close(near_b @ near, b[:1] @ a[:1], atol=1e-6, rtol=0)


def test_mixing_factors_averages_them_apart():
    a, b = torch.randn(2, 1, 3, 2, 5), torch.randn(2, 1, 3, 5, 2)
    got_a, got_b = mix(a, b, torch.tensor([[0.25, 0.75]]), "factors", 2)
    torch.testing.assert_close(got_a[0], 0.25 * a[0] + 0.75 * a[1])
    torch.testing.assert_close(got_b[0], 0.25 * b[0] + 0.75 * b[1])


def test_embeddings_follow_the_mean_and_the_projection_the_highest_layers():
    torch.manual_seed(0)
    shapes = {"a": (2, 3, 2, 5), "b": (2, 3, 5, 2), "class": (5,), "positions": (4, 5), "projection": (5, 3)}
    parts = {name: torch.randn(3, *shape, dtype=torch.float64) for name, shape in shapes.items()}
    share = torch.tensor([[0.2, 0.3, 0.5]])
    alpha = torch.tensor([[0.0, 0.4, 0.6], [0.7, 0.0, 0.3], [0.5, 0.5, 0.0]])
    common, mixed = mix_parts(parts, share, "factors", 2), mix_parts(parts, alpha, "factors", 2)
    personal = personalise(parts, common, alpha, 1, "factors", 2)
    assert personal.keys() == parts.keys()
    for name in ("class", "positions"):
        torch.testing.assert_close(personal[name], common[name].expand_as(parts[name]))
    torch.testing.assert_close(personal["projection"], mixed["projection"])
    for name in ("a", "b"):
        torch.testing.assert_close(personal[name][:, 0], common[name][:, 0].expand(3, -1, -1, -1))
        torch.testing.assert_close(personal[name][:, 1], mixed[name][:, 1])
    for low in (2, 3):  # no layer is mixed by attention, nor is what lies above
        for average in ("factors", "product"):
            common = mix_parts(parts, share, average, 2)
            for name, value in personalise(parts, common, alpha, low, average, 2).items():
                torch.testing.assert_close(value, common[name].expand_as(parts[name]))


def test_matrices_that_are_not_finite_are_refused_in_words():
    a, b = torch.ones(3, 1, 3, 2, 8), torch.ones(3, 1, 3, 8, 2)
    b[1, 0, 0, 0, 0] = torch.nan
    with pytest.raises(FedLensError, match="not finite after local training; lower lr"):
        mix(a, b, torch.ones(1, 3), "exact", 2)
