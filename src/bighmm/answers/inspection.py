"""Answers about the states of an HMM and about those of a text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from bighmm.answers.objects import VERSION, Posteriors, States, Tags
from bighmm.answers.plain import finite
from bighmm.data.tokenizers import unknown_words
from bighmm.inspect.choosing import Order
from bighmm.inspect.tables import posterior_table, states_of_corpus, tag_table
from bighmm.lm.hmmlm import HMMLM
from bighmm.lm.protocol import LM

if TYPE_CHECKING:
    from torch import Tensor

    from bighmm.data.corpus import Corpus


def tag(lm: LM, text: str, words: int = 6) -> Tags:
    """The likeliest state path of a text, and `words` words of each state."""
    found = tag_table(_hmm_lm(lm), text, words=words)
    return finite(
        Tags(
            version=VERSION,
            text=text,
            unknown=unknown_words(lm.tokenizer, text),
            log_prob_path=found.log_prob_path,
            log_prob_begins=found.log_prob_begins,
            tokens=found.rows,
        )
    )


def posterior(lm: LM, text: str, top: int = 5, words: int = 3) -> Posteriors:
    """The `top` likeliest states at every word of a text, with `words` words of each."""
    log_prob, rows = posterior_table(_hmm_lm(lm), text, top=top, words=words)
    return finite(
        Posteriors(
            version=VERSION,
            text=text,
            unknown=unknown_words(lm.tokenizer, text),
            log_prob_begins=log_prob,
            tokens=rows,
        )
    )


def states(
    lm: LM,
    states: Sequence[int] = (),
    word: str | None = None,
    block: int | None = None,
    top: int = 10,
    sort: Order = "share",
    words: int = 6,
    neighbours: int = 3,
    corpus: Corpus | None = None,
    split: str = "valid",
    shares: Tensor | None = None,
) -> States:
    """States by their words, their neighbours and their share of a corpus' split.

    states, word, block: these states; those that emit this word; those of this block. Without any
        of them the first `top` of all.
    sort: by their share, which needs a corpus, or by their numbers.
    words, neighbours: how many words, and how many states before and after, to give of each.
    shares: those of the split, where they are known already, instead of a corpus.
    """
    found = states_of_corpus(
        _hmm_lm(lm),
        corpus,
        split,
        states=states,
        word=word,
        block=block,
        top=top,
        sort=sort,
        words=words,
        neighbours=neighbours,
        shares=shares,
    )
    return finite(
        States(version=VERSION, num_states=found.num_states, split=found.split, states=found.states)
    )


def _hmm_lm(lm: LM) -> HMMLM:
    if not isinstance(lm, HMMLM):
        raise ValueError("the model is not a hidden Markov model, so it has no states")
    return lm
