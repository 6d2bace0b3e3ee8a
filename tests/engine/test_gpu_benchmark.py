"""The command that measures a GPU runs through on a CPU, so that it is ready for whoever has one."""

import pytest
import torch

from tools.benchmarks import gpu


@pytest.mark.slow
def test_every_line_of_the_table_is_measured(capsys):
    threads = torch.get_num_threads()
    gpu.main(device="cpu", tiny=True, methods="fedalign,fedclip")
    assert torch.get_num_threads() == threads
    lines = capsys.readouterr().out.splitlines()
    assert ["TFLOP/s" in lines[0], "images/s" in lines[1]] == [True, True]
    assert "fedalign" in lines[2] and "of the peak" in lines[2]
    assert "fedclip" in lines[3] and "s a round" in lines[3]
