"""Rows that several owners hold: what each has, and that many small owners do not pay for a large one."""

import numpy as np
import torch

from fedcore.methods.feddeap import FedDEAP, FedDEAPConfig
from fedcore.methods.federation import Rows
from fedcore.methods.fedot import FedOT, FedOTConfig
from tests.support.tiny import run_rounds, tiny_backbone, tiny_federation

HELD = [np.array([4, 2]), np.array([], dtype=np.int64), np.array([7, 0, 5]), np.array([1])]


def test_each_owner_has_its_rows_in_their_order() -> None:
    rows = Rows.of(HELD)
    assert [rows.held_by(i).tolist() for i in range(4)] == [h.tolist() for h in HELD]
    assert rows.owners.tolist() == [0, 0, 2, 2, 2, 3] and rows.starts.tolist() == [0, 2, 2, 5]
    assert rows.index.tolist() == [[4, 2, 4], [7, 7, 7], [7, 0, 5], [1, 1, 1]], "padded with held rows"
    assert rows.mask.sum(1).tolist() == rows.counts.tolist() == [2, 0, 3, 1]
    some = rows.select(torch.tensor([3, 0, 3]))
    assert some.index.tolist() == [[1, 1], [4, 2], [1, 1]], "padded to the longest of these only"
    assert some.flat.tolist() == [1, 4, 2, 1]


def test_nobody_holds_nothing() -> None:
    rows = Rows.of([])
    assert rows.index.shape == (0, 1) and rows.flat.tolist() == rows.owners.tolist() == []
    assert Rows.of(HELD).select(torch.tensor([1])).index.shape == (1, 1)


def test_a_run_never_pads_all_test_sets_to_the_largest() -> None:
    """Beside 10,000 clients' test sets the table of a domain's would hold a thousand times what there is."""
    backbone = tiny_backbone()
    for made in (lambda p: FedOT(FedOTConfig(), p), lambda p: FedDEAP(FedDEAPConfig(prompt_length=2), p)):
        federation = tiny_federation(backbone)
        run_rounds(made(federation.problem), federation, 1)
        assert not {"index", "mask"} & set(vars(federation.test))
