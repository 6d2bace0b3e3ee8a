import pytest
import torch

from fedcore.base import linalg
from fedcore.base.linalg import cayley, extreme_eigenvalues, orthogonality, skew, solve, solve_skew
from fedcore.base.seeds import torch_generator


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("n", [16, 65, 192, *(pytest.param(n, marks=pytest.mark.slow) for n in (64, 512))])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_batched_solutions_solve_their_equations_with_two_threads(two_threads, n, dtype):
    x = torch.randn(3, 1, n, n, generator=torch_generator(n, "x"), dtype=dtype)
    a = torch.eye(n, dtype=dtype) - (x - x.mT) / 2
    b = torch.randn(3, 1, n, 7, generator=torch_generator(n, "b"), dtype=dtype)
    a.requires_grad_()
    found = solve(a, b)
    tolerance = 1e-3 if dtype == torch.float32 else 1e-10
    torch.testing.assert_close(a @ found, b, rtol=0, atol=tolerance)
    (gradient,) = torch.autograd.grad(found.sum(), a)
    upstream = torch.linalg.inv(a[0, 0].detach()).T @ torch.ones(n, 7, dtype=dtype)
    torch.testing.assert_close(gradient[0, 0], -upstream @ found[0, 0].detach().T, rtol=1e-3, atol=tolerance)


@pytest.mark.parametrize(("n", "divisor"), [(64, 2), (65, 2), (192, 4)])
def test_matrices_solved_one_after_the_other_have_the_bits_of_solve(n, divisor):
    start = torch.randn(2, 3, n, n, generator=torch_generator(n, "x"))
    b = torch.randn(2, 5, 3, n, generator=torch_generator(n, "b")).permute(0, 2, 3, 1)
    found = []
    for way in (solve_skew, lambda x, b, divisor: solve(torch.eye(n) - skew(x, divisor), b)):
        x = start.clone().requires_grad_()
        solved = way(x, b, divisor)
        found.append((solved, *torch.autograd.grad(solved.square().sum(), x)))
    for ours, reference in zip(*found, strict=True):
        assert torch.equal(ours, reference)


@pytest.mark.parametrize(
    ("norm", "terms"), [(0, 0), (1e-9, 0), (1e-5, 1), (1e-3, 2), (0.03, 4), (0.1, 7), (0.3, None)]
)
@pytest.mark.parametrize("columns", [5, 16])
def test_small_matrices_are_solved_by_a_series_as_exactly_as_by_a_decomposition(norm, terms, columns):
    x = torch.randn(1, 1, 256, 256, generator=torch_generator(1, "x"))
    x *= norm / skew(x[0, 0]).norm()
    b = torch.randn(1, 1, 256, columns, generator=torch_generator(1, "b"))
    assert linalg._terms_of_series(skew(x[0, 0])) == terms
    exact = skew(x.double())
    inverse = torch.linalg.inv(torch.eye(256) - exact)
    x.requires_grad_()
    solved = solve_skew(x, b)
    torch.testing.assert_close(solved, (inverse @ b.double()).float(), rtol=0, atol=5e-6)
    upstream = inverse.mT @ (2 * solved.detach().double()) @ solved.detach().double().mT
    (gradient,) = torch.autograd.grad(solved.square().sum(), x)
    torch.testing.assert_close(gradient, skew(upstream).float(), rtol=0, atol=2e-5)
    q = cayley(x.detach())  # values near 1, after a few roundings
    torch.testing.assert_close(q, ((torch.eye(256) + exact) @ inverse).float(), rtol=0, atol=6e-7)
    error = q.double().mT @ q.double() - torch.eye(256)
    assert error.abs().max() < 1e-6


@pytest.mark.parametrize("n", [3, 24, 25, 200])
def test_extreme_eigenvalues_are_those_of_a_full_decomposition(n):
    x = torch.randn(4, n, n, generator=torch_generator(n, "x"), dtype=torch.float64)
    matrix = (x + x.mT) / 2
    true = torch.linalg.eigvalsh(matrix)
    low, high = extreme_eigenvalues(matrix.view(2, 2, n, n))
    width = (true[:, -1] - true[:, 0]).max()
    torch.testing.assert_close(low.flatten(), true[:, 0], rtol=0, atol=float(2e-2 * width))
    torch.testing.assert_close(high.flatten(), true[:, -1], rtol=0, atol=float(2e-2 * width))


@pytest.mark.parametrize(
    "diagonal",
    [[0.0] * 192, [3.0] * 192, [1.0] * 120 + [2.0] * 72, [0.0] * 191 + [1.0], [-1.0] * 2 + [5.0] * 190],
)
def test_extreme_eigenvalues_of_few_different_ones_are_exact(diagonal):
    low, high = extreme_eigenvalues(torch.diag(torch.tensor(diagonal, dtype=torch.float64))[None])
    assert low.item() == pytest.approx(min(diagonal), abs=1e-9)
    assert high.item() == pytest.approx(max(diagonal), abs=1e-9)


@pytest.mark.parametrize("noise", [1e-8, 1e-6, 1e-2])
def test_condition_numbers_of_large_transforms_are_those_of_all_singular_values(noise):
    x = torch.randn(2, 1, 160, 160, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    q = cayley(x / 10) + noise * x.mT
    expected = torch.linalg.cond(q[:, 0])
    measured = orthogonality(q)["condition_number"]
    assert measured == pytest.approx(expected.tolist(), abs=max(1e-9, 0.05 * (expected.max() - 1).item()))


@pytest.mark.parametrize(
    ("norm", "noise", "single"), [(0.01, 0.0, True), (0.2, 0.0, True), (0.01, 1e-5, True), (3.0, 0.0, False)]
)
def test_large_transforms_near_the_identity_are_measured_in_their_own_precision(norm, noise, single):
    x = torch.randn(1, 1, 256, 256, generator=torch_generator(1, "x"))
    q = cayley(x * norm / skew(x[0, 0]).norm()) + noise * x.mT
    assert (linalg._small_gram(q) is not None) == single
    exact = q[0, 0].double().mT @ q[0, 0].double() - torch.eye(256)
    measured = orthogonality(q)
    assert measured["orthogonality_error"].item() == pytest.approx(exact.abs().max().item(), rel=1e-3)
    true = torch.linalg.cond(q[0, 0].double()).item()
    low, high = extreme_eigenvalues(exact[None])
    by_lanczos = ((1 + high) / (1 + low)).sqrt().item()
    # At least as close as by 24 steps in double precision; what float32 rounds does not count.
    within = abs(by_lanczos - true) + 1e-10 + 1e-4 * (true - 1)
    assert measured["condition_number"].item() == pytest.approx(true, rel=0, abs=within)


@pytest.mark.parametrize("rows", [256, 2], ids=["all rows turn", "two rows turn"])
@pytest.mark.parametrize(
    ("norm", "alone"),
    [(0, True), (1e-7, False), (1e-3, True), (0.01, True), (0.034, True), (0.037, False), (0.2, False)],
)
def test_the_diagonal_alone_measures_rotations_near_the_identity(norm, alone, rows):
    x = torch.randn(1, 1, 256, 256, generator=torch_generator(1, "x"))
    x[..., rows:, rows:] = 0
    x *= norm / skew(x[0, 0]).norm()
    q = cayley(x)
    exact = q[0, 0].double().mT @ q[0, 0].double() - torch.eye(256)
    diagonal = linalg._diagonal_of_gram(q)
    assert (diagonal is not None) == alone
    if diagonal is not None:
        torch.testing.assert_close(diagonal[0, 0], exact.diagonal(), rtol=0, atol=1e-14)
        rest = exact - torch.diag(exact.diagonal())
        column = (q[0, 0].double() - torch.eye(256)).norm(dim=0).max()
        assert rest.abs().max() <= 4 * 2**-24 * column  # a quarter of what is allowed for
        assert rest.norm() < 1e-8
    measured = orthogonality(x, cayley, rotations=True)
    assert measured["orthogonality_error"].item() == pytest.approx(exact.abs().max().item(), rel=1e-3)
    assert measured["condition_number"].item() == pytest.approx(
        torch.linalg.cond(exact + torch.eye(256)).sqrt().item(), abs=1e-8
    )
    assert linalg._diagonal_of_gram(cayley(x.double())) is None


@pytest.mark.parametrize("far", [None, 0, 4])
@pytest.mark.parametrize("at_once", [1, 2])
def test_orthogonality_is_measured_a_few_clients_at_a_time_with_equal_bits(monkeypatch, far, at_once):
    """One client that is far from orthogonal decides for all how condition numbers are found."""
    x = torch.randn(5, 1, 160, 160, generator=torch_generator(1, "x")) / 10
    transform = cayley
    if far is not None:
        x, transform = cayley(x) + 1e-2 * (torch.arange(5) == far).view(5, 1, 1, 1) * x, torch.clone
    measured = []
    for number in (5, at_once):
        monkeypatch.setitem(linalg._NUMBERS_AT_ONCE, "cpu", number * 160 * 160)
        measured.append(orthogonality(x, transform))
    for name, value in measured[0].items():
        assert value.shape == (5,) and torch.equal(value, measured[1][name]), name


def test_a_remembered_result_is_of_the_whole_argument_and_the_oldest_is_forgotten(monkeypatch):
    monkeypatch.setattr(linalg, "_REMEMBERED", 2 * 2 * 65 * 65)
    computed = []
    doubled = linalg.Remembered(lambda matrices: computed.append(matrices[0, 0, 1, 0].item()) or 2 * matrices)
    matrices = torch.arange(3.0)[:, None, None, None].expand(3, 1, 65, 65).clone()
    matrices[:, :, 0] = 0  # an equal first row
    for order in ([0, 0], [1], [0, 0]):
        assert torch.equal(doubled(matrices[order]), 2 * matrices[order])
    assert computed == [0, 1, 0]
    matrices[:, :, 0] = matrices[:, :, 1]
    for order in ([0, 1], [1, 0], [2], [0, 1]):  # the third takes the place of the second
        doubled(matrices[order])
    assert computed[3:] == [1, 2, 1]
