"""Linear algebra that is the same on every device."""

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from fedcore.base.lazy import Tensor, torch

_SAFE_BATCH = 64
"""Matrices up to this size are solved in one batched call on the CPU."""
_SERIES_FROM = 256
"""Rows of the smallest matrix for which a series is tried; of smaller ones a decomposition is as fast."""
_MOST_TERMS = 8
"""Products of a series at most. Each costs a tenth of a decomposition, for a batch of 32 and its gradient."""
_REMEMBERED = 2**26
"""Numbers that ``Remembered`` holds at most: 128 matrices of 512 x 512 with their results."""
_LANCZOS_STEPS = 24
"""Steps of the Lanczos method."""
_NEAR = 0.07
"""Norm of Q - I, about twice that of P, below which ``cayley`` makes Q of four powers of P at most."""
_NUMBERS_AT_ONCE = {"cpu": 2**18, "other": 2**24}
"""Numbers of the matrices whose orthogonality is measured at once, by type of device: a client of 512 x 512,
which fits a CPU's cache during the steps of the Lanczos method, and 64 of them elsewhere."""
_DECOMPOSED = 128
"""Rows of the largest matrix of which all eigenvalues are computed, which is exact."""
_WORTH_REMEMBERING = 16
"""Rows of the smallest matrix that ``Remembered`` remembers; of a smaller one a comparison takes as long."""


def solve(a: Tensor, b: Tensor) -> Tensor:
    """Return a^-1 b for a batch of square matrices, differentiable in both.

    On the CPU large matrices are solved one after the other: torch 2.15 with two or more threads returns
    wrong numbers, or fails on its own pivots, for batched LU above 140 x 140 (right at 140, wrong at 160;
    single matrices are right, and keep their threads). ``tests/base/test_linalg.py`` holds us to it.

    On the CPU a singular matrix is an error at once. On other devices its solution is not finite, and neither
    is the loss, which is checked at the end of the round.

    Shape: a (..., n, n), b (..., n, k) -> (..., n, k).
    """
    if a.device.type != "cpu":  # without the check for singular matrices, which waits for the device
        unchecked: Tensor = torch.linalg.solve_ex(a, b).result
        return unchecked
    if a.shape[-1] <= _SAFE_BATCH:
        solved: Tensor = torch.linalg.solve(a, b)
        return solved
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])  # torch's imports sympy, half a CPU-second
    pairs = zip(
        a.expand(*batch, *a.shape[-2:]).flatten(0, -3),
        b.expand(*batch, *b.shape[-2:]).flatten(0, -3),
        strict=True,
    )
    return torch.stack([torch.linalg.solve(x, y) for x, y in pairs]).view(*batch, *b.shape[-2:])


def skew(x: Tensor, divisor: int = 2) -> Tensor:
    """Return P = (X - X^T) / divisor. Shape: (..., n, n) -> (..., n, n)."""
    return (x - x.transpose(-1, -2)) / divisor


def _large_skew(x: Tensor, divisor: int) -> Tensor:
    """Return ``skew``, with equal bits, for one large matrix on a CPU. Shape: x (n, n) -> (n, n)."""
    # torch copies a transposed matrix in tiles, which is three times as fast as subtracting one
    turned = x.T.contiguous()
    return torch.sub(x, turned, out=turned).div_(divisor)


def solve_skew(x: Tensor, b: Tensor, divisor: int = 2) -> Tensor:
    """Return (I - P)^-1 b with P = (X - X^T) / divisor, differentiable in X.

    On a CPU large matrices are made, solved and differentiated one after the other, so that each stays in the
    cache. Where n is large and P small, as it stays for hundreds of steps from the identity, the solution is
    the series b + P b + P^2 b + ..., whose rest is below a rounding error. Elsewhere the solution and its
    gradient have the bits of ``solve``.

    Shape: x (clients, r, n, n), b (clients, r, n, k) -> like b.
    """
    if x.device.type != "cpu" or x.shape[-1] <= _SAFE_BATCH:
        return solve(torch.eye(x.shape[-1], dtype=x.dtype, device=x.device) - skew(x, divisor), b)
    solved: Tensor = _solve_skew()(x.flatten(0, 1), b.flatten(0, 1), divisor)
    return solved.view(b.shape)


def cayley(x: Tensor, divisor: int = 2) -> Tensor:
    """Map unconstrained matrices to orthogonal ones, Q = (I + P)(I - P)^-1 with P = (X - X^T) / divisor.

    Near the identity a gradient step of size eta moves Q by -(16 / divisor^2) eta skew(dL/dQ): four times as
    far with FedOT's 2 as the skew part of an unconstrained matrix, and as far with 4. Differentiable.

    On a CPU, a large matrix whose P is small is I + 2 (P + P^2 + ...), as in ``solve_skew``.

    Shape: x (..., n, n) -> (..., n, n).  Source: FedOT, Section 3.3.
    """
    if x.device.type == "cpu" and x.shape[-1] >= _SERIES_FROM and not x.requires_grad:
        return torch.stack([_large_cayley(one, divisor) for one in x.flatten(0, -3)]).view(x.shape)
    factor = torch.eye(x.shape[-1], dtype=x.dtype, device=x.device) - skew(x, divisor)
    return solve(factor, factor.transpose(-1, -2))  # the two factors commute, so one solve gives the product


def _large_cayley(x: Tensor, divisor: int) -> Tensor:
    """Shape: x (n, n) -> (n, n)."""
    p = _large_skew(x, divisor)
    terms = _terms_of_series(p)
    if terms is None or terms > 4:
        factor = p.T  # -P by columns, the order of LAPACK
        factor.diagonal().add_(1)
        q: Tensor = torch.linalg.solve(factor, factor.T, left=False)  # from the right, without a copy in rows
        return q
    twice = torch.addmm(p, p, p, beta=2, alpha=2)  # 2 (P + P^2), and with it 2 (P + ... + P^4)
    if terms > 2:
        twice = torch.addmm(twice, p @ p, twice)
    twice.diagonal().add_(1)
    return twice


@cache
def _solve_skew() -> Any:
    """Return the function for autograd, defined on first use because its base class is torch's."""

    class SolveSkew(torch.autograd.Function):
        """Shape: x (matrices, n, n), b (matrices, n, k) -> like b."""

        @staticmethod
        def forward(ctx: Any, x: Tensor, b: Tensor, divisor: int) -> Tensor:
            factors, solutions, ctx.terms = [], [], []
            for one, columns in zip(x, b, strict=True):
                p = _large_skew(one, divisor)
                terms = _terms_of_series(p)
                if terms is None:
                    difference = p.T  # -P by columns, the order of LAPACK
                    difference.diagonal().add_(1)
                    factors += torch.linalg.lu_factor(difference)
                    solutions.append(torch.linalg.lu_solve(factors[-2], factors[-1], columns))
                else:
                    factors += [p, p.new_empty(0)]
                    solutions.append(_series(p, columns, terms))
                ctx.terms.append(terms)
            solved = torch.stack(solutions)
            ctx.save_for_backward(*factors, *solutions)
            ctx.divisor = divisor
            return solved

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
            count = len(gradient)
            factors, solutions = ctx.saved_tensors[: 2 * count], ctx.saved_tensors[2 * count :]
            of_x = gradient.new_empty(count, *factors[0].shape)
            for i, (solution, terms) in enumerate(zip(solutions, ctx.terms, strict=True)):
                matrix, pivots = factors[2 * i : 2 * i + 2]
                if terms is None:
                    of_b = torch.linalg.lu_solve(matrix, pivots, gradient[i], adjoint=True)
                else:
                    # (I - P)^T is I - P^T and I + P. MKL takes half as long again for the first, which keeps
                    # the bits where there are few columns.
                    few = gradient.shape[-1] < 16
                    of_b = _series(matrix.T if few else matrix, gradient[i], terms, 1 if few else -1)
                of_b = of_b / ctx.divisor  # a power of 2: the bits of dividing the product, which is larger
                torch.mm(of_b, solution.T, out=of_x[i]).addmm_(solution, of_b.T, alpha=-1)
            return of_x, None, None

    return SolveSkew.apply


def _terms_of_series(p: Tensor) -> int | None:
    """Return how many products with P bring (I - P)^-1 b to the precision of its numbers.

    The rest after k products is at most |P|^(k+1) / (1 - |P|) of b, and the Frobenius norm bounds |P|.

    Returns:
        None if a decomposition is faster.

    Shape: p (n, n).
    """
    if len(p) < _SERIES_FROM:
        return None
    norm = float(torch.linalg.vector_norm(p))
    if norm == 0:
        return 0
    if not norm < 1:
        return None
    terms = math.ceil(math.log(torch.finfo(p.dtype).eps / 2 * (1 - norm)) / math.log(norm)) - 1
    return terms if terms <= _MOST_TERMS else None


def _series(p: Tensor, b: Tensor, terms: int, sign: int = 1) -> Tensor:
    """Return b + P b + ... + P^terms b of P or -P, by Horner's rule. Shape: p (n, n), b (n, k) -> like b."""
    with torch.autocast("cpu", enabled=False):
        solved = b
        for _ in range(terms):
            solved = torch.addmm(b, p, solved, alpha=sign)
        return solved


class Remembered:
    """A function of matrices that is not computed again for its latest arguments.

    A round of FedOT asks four times for the same client's rotation: in both evaluations, for its diagnostics,
    and in the next round for those of the start. Small ones are computed again, which takes as long as a
    comparison; so are those of other devices, where a comparison waits for the device.
    """

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        """Remember nothing yet. Shape of the function: (n, ...) -> (n, ...), each row by itself."""
        self.function = function
        self.latest: dict[tuple[float, ...], tuple[Tensor, Tensor]] = {}

    def __call__(self, matrices: Tensor) -> Tensor:
        """Return a result that may be what is remembered, so it is not to be changed in place.

        Shape: matrices (clients, r, n, n) -> like matrices.
        """
        is_small = matrices.shape[-1] < _WORTH_REMEMBERING
        if matrices.device.type != "cpu" or is_small or matrices.requires_grad:
            return self.function(matrices)
        found = [self._of(one) for one in matrices]
        return found[0][None] if len(found) == 1 else torch.stack(found)

    def _of(self, matrix: Tensor) -> Tensor:
        key = tuple(matrix[..., 0, :].flatten().tolist())  # finds a candidate, which is then compared whole
        found = self.latest.pop(key, None)
        if found is None or not torch.equal(found[0], matrix):
            found = matrix.clone(), self.function(matrix[None])[0]
        self.latest[key] = found  # last, since the oldest is dropped first
        while len(self.latest) > max(1, _REMEMBERED // (2 * matrix.numel())):
            del self.latest[next(iter(self.latest))]
        return found[1]


def extreme_eigenvalues(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return the smallest and the largest eigenvalue of symmetric matrices; large ones by the Lanczos method.

    A seventh of the time of all singular values at 512 x 512; the extremes lie at most about 2 % of the
    spectrum's width inside the true ones there, and are exact for small matrices.

    Shape: (..., n, n) -> (...,) each, in the matrix' type.

    Source: Golub and Van Loan, Matrix Computations, 4th edition, section 10.3.
    """
    a = matrix.flatten(0, -3)
    n = a.shape[-1]
    if n <= _DECOMPOSED:
        values = torch.linalg.eigvalsh(matrix)
        return values[..., 0], values[..., -1]
    generator = torch.Generator().manual_seed(0)  # any start is good, as long as it is always the same
    start = torch.randn(n, 1, dtype=torch.float64, generator=generator).to(a)
    basis = (start / start.norm()).expand(len(a), n, 1)
    for _ in range(_LANCZOS_STEPS - 1):
        image = a @ basis[..., -1:]
        for _ in range(3):  # once for the step, and again because the rest may be as small as rounding errors
            image = image - basis @ (basis.transpose(-1, -2) @ image)
            image = image / image.norm(dim=1, keepdim=True).clamp(min=torch.finfo(a.dtype).tiny)
        basis = torch.cat([basis, image], -1)
    values = torch.linalg.eigvalsh(basis.transpose(-1, -2) @ a @ basis)
    shape = matrix.shape[:-2]
    return values[:, 0].view(shape), values[:, -1].view(shape)


def _extremes(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return the smallest and the largest eigenvalue of symmetric matrices, of large diagonal ones at once.

    By Weyl's inequality, the extremes of the diagonal are as close to those eigenvalues as the norm of the
    rest is small.

    Shape: (..., n, n) -> (...,) each, in the matrix' type.
    """
    diagonal = matrix.diagonal(dim1=-2, dim2=-1)
    if matrix.shape[-1] >= _SERIES_FROM:
        rest = matrix.clone()
        rest.diagonal(dim1=-2, dim2=-1).zero_()
        if torch.linalg.vector_norm(rest) < 1e-7:
            return diagonal.amin(-1), diagonal.amax(-1)
    return extreme_eigenvalues(matrix)


def orthogonality(
    matrices: Tensor, transform: Callable[[Tensor], Tensor] = lambda matrix: matrix, rotations: bool = False
) -> dict[str, Tensor]:
    """Return the condition numbers and max |Q^T Q - I| of block-diagonal matrices.

    For large matrices, computing all singular values costs more than a round's training. For nearly
    orthogonal ones the ratio follows from the extreme eigenvalues of the small Q^T Q - I, to 1e-5 or better,
    and of at most 128 rows to a rounding error. Either all clients are measured in this way or none. A few
    clients are measured at a time, so that the memory does not grow with their number.

    The hundreds of small operations of the Lanczos method would take most of a GPU's round. There, large
    rotations have the norm of Q^T Q - I instead of both extremes, since they differ from 1 by roundings.

    Args:
        transform: makes Q from the parameters of some clients.
        rotations: whether the transform is ``cayley``, so that few of its results need the product Q^T Q.

    Shape: matrices (clients, r, n, n) -> (clients,) each, float64.
    """
    on_cpu, is_small = matrices.device.type == "cpu", matrices.shape[-1] <= _DECOMPOSED
    numbers = _NUMBERS_AT_ONCE["cpu" if on_cpu else "other"]
    parts = matrices.detach().split(max(1, numbers // max(1, matrices[0].numel())))
    errors, condition, is_near = [], [], True
    for part in parts:
        q = transform(part)
        diagonal = _diagonal_of_gram(q) if rotations else None
        if diagonal is not None:
            errors.append(diagonal.abs().amax((1, 2)))
            condition.append(_ratio_near_one(diagonal.amin(-1), diagonal.amax(-1)))
            continue
        gram = _gram(q)
        errors.append(gram.abs().amax((1, 2, 3)).double())
        if rotations and not on_cpu and not is_small:
            norm = _norms(gram)
            condition.append(_ratio_near_one(-norm, norm))
            continue
        gram = gram.cpu() if is_small else gram  # GPUs are slow at decompositions in double precision
        is_near = is_near and bool(gram.flatten(1).norm(dim=1).max() < 1e-3)
        if is_near:
            condition.append(_ratio_near_one(*_extremes(gram)))
    if not is_near:
        condition = [_ratio_of_singular_values(transform(part).double()) for part in parts]
    return {"condition_number": torch.cat(condition), "orthogonality_error": torch.cat(errors)}


def _ratio_near_one(low: Tensor, high: Tensor) -> Tensor:
    """Return condition numbers from the extreme eigenvalues of Q^T Q - I.

    Shape: (clients, r) each -> (clients,), float64.
    """
    return ((1 + high.double().amax(1)) / (1 + low.double().amin(1))).sqrt()


def _norms(matrix: Tensor) -> Tensor:
    """Return a bound of the largest |eigenvalue| of symmetric matrices, (sum of |eigenvalue|^32)^(1/32).

    It is at most n^(1/32) too large, a fifth for 512 rows, and takes four products.

    Shape: (..., n, n) -> (...,), float64.
    """
    total: Tensor = matrix.norm(dim=(-2, -1), keepdim=True)
    # of norm 1, so that no power underflows in single precision
    power = (matrix / total.clamp(min=torch.finfo(matrix.dtype).tiny)).float().flatten(0, -3)
    for _ in range(4):
        power = power.bmm(power)
    root: Tensor = power.double().norm(dim=(-2, -1)).view(matrix.shape[:-2]) ** (1 / 16)
    return total[..., 0, 0] * root


def _diagonal_of_gram(q: Tensor) -> Tensor | None:
    """Return the diagonal of Q^T Q - I of rotations made by ``cayley``, where it decides both measures.

    A series' Q is not quite orthogonal because it is rounded. On its diagonal, numbers next to 1 are rounded;
    elsewhere the small numbers of E = Q - I. There, the entries of Q^T Q - I were at most 0.7 roundings of
    the longest column of E, and their norm two roundings of the norm of E; sixteen are allowed. So the
    largest entry is on the diagonal, and the extreme eigenvalues are close to its own, as in ``_extremes``.

    Returns:
        None where Q may not be a series, or the allowance is larger than the diagonal.

    Shape: q (clients, r, n, n) -> (clients, r, n), float64.
    """
    if q.device.type != "cpu" or q.dtype != torch.float32 or q.shape[-1] < _SERIES_FROM:
        return None
    diagonal = q.double().square_().sum(-2).sub_(1)
    squares = (diagonal - 2 * (q.diagonal(dim1=-2, dim2=-1).double() - 1)).clamp_(min=0)  # |E_i|^2
    allowance = 16 * torch.finfo(q.dtype).eps / 2 * squares.amax(-1).sqrt()  # with E's norm, below 1e-7
    is_series = squares.sum(-1).max() < _NEAR**2
    return diagonal if is_series and bool((allowance <= diagonal.abs().amax(-1)).all()) else None


def _gram(q: Tensor) -> Tensor:
    """Return Q^T Q - I, in the precision of Q if that suffices. Shape: q (clients, r, n, n) -> like q."""
    gram = _small_gram(q) if q.device.type == "cpu" and q.shape[-1] >= _SERIES_FROM else None
    if gram is None:
        q = q.double()
        gram = q.transpose(-1, -2) @ q
        gram.diagonal(dim1=-2, dim2=-1).sub_(1)
    return gram


def _small_gram(q: Tensor) -> Tensor | None:
    """Return Q^T Q - I = E + E^T + E^T E with E = Q - I, in the precision of Q.

    Near the identity E is exact, and the rounding of the small E^T E is far below what is measured.

    Returns:
        None where that rounding could change the third digit.

    Shape: q (clients, r, n, n) -> like q.
    """
    grams, largest = [], 0.0
    for one in q.flatten(0, 1):
        rest, half, width = one.clone(), torch.zeros_like(one), len(one) // 4
        rest.diagonal().sub_(1)
        for start in range(0, len(one), width):  # E^T E is symmetric: its upper part, with half of the blocks
            strip = half[start : start + width, start:]
            torch.mm(rest[:, start : start + width].T, rest[:, start:], out=strip)
            strip[:, :width].div_(2)  # on the diagonal
        largest = max(largest, 2 * float(half.diagonal().max()))
        half.add_(rest)
        grams.append(half.T.contiguous().add_(half))  # copied in tiles, as in ``_large_skew``
    gram = torch.stack(grams).view(q.shape)
    return gram if largest * torch.finfo(q.dtype).eps <= 1e-3 * float(gram.abs().max()) else None


def _ratio_of_singular_values(q: Tensor) -> Tensor:
    """Return the largest singular value of all blocks divided by the smallest.

    Shape: q (clients, r, n, n) -> (clients,).
    """
    values: Tensor = torch.linalg.svdvals(q.cpu()).flatten(1)  # GPUs are slow at this in double precision
    return (values.amax(1) / values.amin(1)).to(q.device)
