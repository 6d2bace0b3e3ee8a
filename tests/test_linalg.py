import pytest
import torch

from fedcore.linalg import solve
from fedcore.seeds import torch_generator


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("n", [16, 64, 65, 192, 512])
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
