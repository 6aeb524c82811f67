"""A symbol that would make the alphabet larger than any memory."""

import pytest

from bighmm import SequenceHMM


def test_a_symbol_of_a_trillion():
    with pytest.raises(ValueError, match="symbols from 0 to 1000000000000 are too many; number"):
        SequenceHMM(2).fit([[0, 1, 10**12], [1, 0]])
