"""The command that measures a GPU runs through on a CPU, so that it is ready for whoever has one."""

import re

import pytest
import torch
import torch._dynamo

from tools.benchmarks import gpu


@pytest.mark.slow
def test_every_line_of_the_table_is_measured(capsys):
    threads = torch.get_num_threads()
    gpu.main(device="cpu", tiny=True, methods="fedalign,fedclip")
    torch._dynamo.utils.counters.clear()
    gpu.main(device="cpu", tiny=True, methods="fedclip", compiled=True)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0
    assert torch.get_num_threads() == threads
    lines = capsys.readouterr().out.splitlines()
    assert ["TFLOP/s" in lines[0], "images/s" in lines[1]] == [True, True]
    assert ["GB/s" in lines[0], "from kernel to kernel" in lines[0]] == [True, True]
    for name, line in zip(("fedalign", "fedclip", "fedclip"), lines[2:4] + lines[6:], strict=True):
        share, times = re.search(
            rf"{name}: .* s a round, (.*)% of the roofline, (.*) times its launches", line
        ).groups()
        assert 0 < float(share) < 100
        assert float(times) > 1


def test_the_roofline_is_the_slower_of_arithmetic_and_memory_for_each_operation_and_views_are_free():
    a = torch.zeros(100, 100, requires_grad=True)  # 40,000 bytes, and 2e6 operations for a product
    limits = gpu.Limits(operations=1e6, bytes=1e3, launch=1.0)
    with gpu.Counter(limits) as counted:
        product = a @ a.detach().T
    assert (counted.roofline, counted.launches) == (pytest.approx(80), 1)  # a is read, the product written
    with gpu.Counter(gpu.Limits(operations=1e4, bytes=1e3, launch=1.0)) as counted:
        product.sum().backward()
    assert counted.roofline > 200  # 2e6 operations of the gradient's product
    assert counted.launches > 1
