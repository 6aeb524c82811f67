"""Conversion of HMMs to NumPy tables and back."""

import numpy as np
import pytest
import torch

from bighmm import HMM
from bighmm.interop import to_numpy
from models import KINDS, ragged, random_hmm


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", KINDS)
def test_tables_give_the_same_hmm_again(kind, dtype):
    hmm = random_hmm(kind, states=6, vocabulary=5, dtype=dtype)
    tables = to_numpy(hmm)
    assert {name: table.shape for name, table in tables.items()} == {
        "start": (6,),
        "transition": (6, 6),
        "emission": (6, 5),
    }
    for table in tables.values():
        assert table.dtype == np.float64 and np.allclose(table.sum(-1), 1)
    back = HMM.from_probs(**tables, end=hmm.end)
    tokens, lengths = ragged(5, [7, 3, 0, 1])
    torch.testing.assert_close(
        back.log_prob(tokens, lengths), hmm.log_prob(tokens, lengths).double(), atol=1e-5, rtol=1e-6
    )
    again = to_numpy(back)
    assert all(np.allclose(again[name], tables[name], atol=1e-12) for name in tables)


def test_error_of_tables_above_the_limit():
    hmm = random_hmm("blocked-flat", states=6, vocabulary=5)
    assert to_numpy(hmm, limit=36)
    with pytest.raises(ValueError, match=r"6 × 6 and 6 × 5 numbers, more than the limit of 35"):
        to_numpy(hmm, limit=35)
