"""Perplexity with its conventions, and the check that a model is normalised."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from bighmm.base import processes
from bighmm.base.arrays import as_rows, as_tensor
from bighmm.base.settings import check_at_least_one
from bighmm.data.batches import padded_rows
from bighmm.data.corpus import sentence_bounds
from bighmm.data.whole import WholeText
from bighmm.hmm import HMM
from bighmm.infer.sequences import Sequences
from bighmm.lm.protocol import LM, Convention, Predictor
from bighmm.lm.questions import token_log_probs
from bighmm.ops.matmul import fast_products

if TYPE_CHECKING:
    from bighmm.data.corpus import Corpus

SENTENCES_AT_ONCE = 2048
WINDOW = 1024  # tokens of one long sequence that are worked on together
TOLERANCE = 1e-3  # of the sum of all next-word probabilities


@dataclass(frozen=True)
class Evaluation:
    """Perplexity of a text. Every token counts, end marks and unknown words included."""

    perplexity: float  # exp(-log_prob / tokens)
    log_prob: float  # in nats
    tokens: int
    convention: Convention  # what follows an end mark: the start distribution, or the old state
    vocabulary: str  # hash of the vocabulary; figures of different vocabularies do not compare
    split: str | None = None


@dataclass(frozen=True, kw_only=True)
class CorpusEvaluation(Evaluation):
    """Perplexity of a corpus' split, and what it is compared with."""

    unigram_perplexity: float | None  # None: there is no training text to count
    largest_deviation_from_one: float | None = None  # None: not checked
    unknown_tokens: int  # those that stand for words that are not in the vocabulary
    perplexity_known: float | None  # of all other tokens; None if there are none


def evaluate_corpus(
    lm: LM,
    corpus: Corpus | WholeText,
    split: str = "test",
    *,
    convention: Convention | None = None,
    check_normalised: bool = False,
    contexts: int = 32,
) -> CorpusEvaluation:
    """Perplexity of a split of a corpus, beside that of the unigram model of its training text.

    convention: without one, that of the model's family.
    check_normalised: also sum the next-word probabilities in so many sampled `contexts`. Raises
        ValueError if a sum is not one within `TOLERANCE`.

    Several processes (`base.processes`) share the sentences and the contexts.

    Raises ValueError if the corpus was made with another vocabulary.
    """
    check_at_least_one(contexts, "contexts")
    with processes.start(lm.device) as here:
        if not here.alone:
            text = hashlib.sha256(np.ascontiguousarray(corpus.split(split)).data).hexdigest()
            here.require_alike({"model": _digest(lm), "text": text})
        return _evaluate_corpus(lm, corpus, split, convention, check_normalised, contexts)


def _evaluate_corpus(
    lm: LM,
    corpus: Corpus | WholeText,
    split: str,
    convention: Convention | None,
    check_normalised: bool,
    contexts: int,
) -> CorpusEvaluation:
    found = lm.perplexity(corpus, split=split, convention=convention or lm.convention)
    tokens, deviation = corpus.split(split), None
    if check_normalised:
        deviation = deviation_from_one(lm.predictor(), tokens, contexts)
        if not deviation <= TOLERANCE:
            raise ValueError(
                f"the model is not normalised: the probabilities of the next word sum to one only "
                f"within {deviation:.2g}, which must be at most {TOLERANCE}"
            )
    unigram = None
    if not isinstance(corpus, WholeText):
        unigram = unigram_perplexity(corpus.split("train"), tokens, corpus.tokenizer.size)
    unknown = 0
    if corpus.tokenizer.unknown is not None:
        unknown = int((np.asarray(tokens) == corpus.tokenizer.unknown).sum())
    return CorpusEvaluation(
        **dataclasses.asdict(found),
        unigram_perplexity=unigram,
        largest_deviation_from_one=deviation,
        unknown_tokens=unknown,
        perplexity_known=_perplexity_known(lm, corpus, split, found, unknown),
    )


@torch.no_grad()
def unknown_log_prob(
    predictor: Predictor,
    tokens: np.ndarray,
    documents: np.ndarray | None,
    unknown: int,
    convention: Convention,
    at_once: int = 256,
) -> float:
    """Σ log p(x_t | what is before it) over the places t of a stream that hold the id `unknown`."""
    tokens = _stream(tokens).astype(np.int64)
    if convention == "carry" and isinstance(predictor, HMM):
        one_sequence = dataclasses.replace(predictor, reset=False)
        return _at_places(one_sequence, tokens, np.flatnonzero(tokens == unknown))
    bounds = np.array([0, len(tokens)])
    if convention == "reset":
        bounds = sentence_bounds(tokens, -1 if predictor.end is None else predictor.end, documents)
    holding = np.unique(np.searchsorted(bounds, np.flatnonzero(tokens == unknown), "right") - 1)
    holding = holding[np.argsort(np.diff(bounds)[holding], kind="stable")]
    total = 0.0
    if isinstance(predictor, HMM):  # whose next token is one step: a long sentence has too many
        long = np.diff(bounds)[holding] > WINDOW
        for begin, end in zip(bounds[holding[long]], bounds[holding[long] + 1], strict=True):
            sentence = tokens[begin:end]
            total += _at_places(predictor, sentence, np.flatnonzero(sentence == unknown))
        holding = holding[~long]
    for first in range(0, len(holding), at_once):
        rows = holding[first : first + at_once]
        ids = torch.from_numpy(padded_rows(tokens, bounds, rows))
        lengths = torch.from_numpy(np.diff(bounds)[rows])
        inside = torch.arange(ids.shape[1]) < lengths.unsqueeze(1)
        each = token_log_probs(predictor, ids, lengths).cpu()
        total += float(each[(ids == unknown) & inside].sum())
    return total


def _at_places(hmm: HMM, tokens: np.ndarray, places: np.ndarray) -> float:
    """Σ log p(x_t | all before it) over some places of one long sequence.

    Neighbouring places are worked on together, since only their sum is asked for.
    """
    carry, done, total = hmm.carry_after(torch.zeros(1, 0, dtype=torch.long)), 0, 0.0
    for run in np.split(places, np.flatnonzero(np.diff(places) != 1) + 1) if len(places) else []:
        first, last = int(run[0]), int(run[-1]) + 1
        for begin, end, counts in ((done, first, False), (first, last, True)):
            for at in range(begin, end, WINDOW):
                ids = torch.from_numpy(tokens[at : min(end, at + WINDOW)]).unsqueeze(0)
                window = Sequences(ids, torch.tensor([ids.shape[1]]), ragged=False)
                gained, carry = hmm.advance(_on(hmm, window), carry)
                total += float(gained) if counts else 0.0
        done = last
    return total


def _on(hmm: HMM, window: Sequences) -> Sequences:
    device = hmm.start.device
    return dataclasses.replace(window, ids=window.ids.to(device), lengths=window.lengths.to(device))


def _perplexity_known(
    lm: LM, corpus: Corpus | WholeText, split: str, found: Evaluation, unknown: int
) -> float | None:
    """The perplexity of all tokens of a split that are not the mark of unknown words."""
    if not unknown:
        return found.perplexity
    if unknown == found.tokens:
        return None
    assert corpus.tokenizer.unknown is not None
    of_unknown = unknown_log_prob(
        lm.predictor(),
        corpus.split(split),
        corpus.documents(split),
        corpus.tokenizer.unknown,
        found.convention,
    )
    return _perplexity(found.log_prob - of_unknown, found.tokens - unknown)


@torch.no_grad()
def evaluate(
    hmm: HMM,
    tokens: np.ndarray,
    *,
    documents: np.ndarray | None = None,
    vocabulary: str = "",
    convention: Convention = "reset",
    split: str | None = None,
) -> Evaluation:
    """Perplexity of a stream of token ids.

    "reset": after each end mark the state is drawn from the start distribution, so sentences are
    independent; the same holds at the beginnings of `documents`, where these are given. "carry":
    the stream is one sequence. Without an end mark both are the same.
    """
    tokens = _stream(tokens)
    with fast_products(hmm.start.device):
        if convention == "carry" or hmm.end is None:
            one_sequence = dataclasses.replace(hmm, reset=False)
            ids = torch.from_numpy(tokens.astype(np.int64)).unsqueeze(0)
            log_prob = float(one_sequence.log_prob(ids))
        else:
            log_prob = sum_over_sentences(dataclasses.replace(hmm, reset=True), tokens, documents)
    perplexity = _perplexity(log_prob, len(tokens))
    return Evaluation(perplexity, log_prob, len(tokens), convention, vocabulary, split)


def deviation_from_one(
    predictor: Predictor, tokens: np.ndarray, contexts: int = 32, seed: int = 0
) -> float:
    """The largest |Σ_x p(x | context) − 1| over sampled contexts of the stream.

    A context is the beginning of a sentence up to a random position; it may be empty.
    """
    tokens = _stream(tokens)
    bounds = sentence_bounds(tokens, -1 if predictor.end is None else predictor.end)
    generator = np.random.Generator(np.random.PCG64(seed))
    worst, here = 0.0, processes.current()
    for number in range(contexts):
        sentence = generator.integers(len(bounds) - 1)
        last = generator.integers(bounds[sentence], bounds[sentence + 1])
        if number % here.count != here.number:
            continue
        context = tokens[max(bounds[sentence], last - 200) : last].astype(np.int64)
        log_probs = predictor.next_token(torch.from_numpy(context).unsqueeze(0))
        total = float(log_probs.double().exp().sum())
        worst = max(worst, abs(total - 1) if math.isfinite(total) else math.inf)
    return max(here.from_each(worst))


def sum_over_sentences(
    predictor: Predictor,
    tokens: np.ndarray,
    documents: np.ndarray | None = None,
    at_once: int = SENTENCES_AT_ONCE,
) -> float:
    """log p of all sentences, each of them independent of the others."""
    return float(sentence_log_probs(predictor, tokens, documents, at_once).sum())


def sentence_log_probs(
    predictor: Predictor,
    tokens: np.ndarray,
    documents: np.ndarray | None = None,
    at_once: int = SENTENCES_AT_ONCE,
) -> np.ndarray:
    """log p of each sentence of a stream, in their order.

    Several processes (`base.processes`) share the sentences; all of them must ask for it.
    """
    here = processes.current()
    bounds = sentence_bounds(tokens, -1 if predictor.end is None else predictor.end, documents)
    lengths = np.diff(bounds)
    by_length = np.argsort(-lengths, kind="stable")[here.number :: here.count]
    found = np.zeros(len(lengths))
    for i in range(0, len(by_length), at_once):
        rows = by_length[i : i + at_once]
        ids = torch.from_numpy(padded_rows(tokens, bounds, rows))
        log_probs = predictor.log_prob(ids, torch.from_numpy(lengths[rows]))
        found[rows] = log_probs.double().cpu().numpy()
    total = torch.from_numpy(found)
    here.sum_([total])
    return total.numpy()


class Stream(NamedTuple):
    """Token ids to evaluate, in their order."""

    tokens: np.ndarray
    documents: np.ndarray | None  # where they begin, and where the last one ends
    split: str | None


def stream_of(corpus_or_ids: Any, split: str, vocabulary: str) -> Stream:
    """The token ids of a corpus' split with its documents, or ids as they were given.

    Of a list of rows each is a document. Raises ValueError if the corpus was made with another
    vocabulary than the one with this hash.
    """
    if hasattr(corpus_or_ids, "split") and hasattr(corpus_or_ids, "tokenizer"):
        theirs = corpus_or_ids.tokenizer.fingerprint()
        if theirs != vocabulary:
            raise ValueError(
                f"the corpus was made with another vocabulary ({theirs[:12]}…) than the model "
                f"({vocabulary[:12]}…); prepare it with the model's tokenizer"
            )
        return Stream(corpus_or_ids.split(split), corpus_or_ids.documents(split), split)
    rows = as_rows(corpus_or_ids)
    if rows is None and isinstance(corpus_or_ids, np.ndarray):
        return Stream(corpus_or_ids, None, None)
    if rows is None:
        return Stream(as_tensor(corpus_or_ids).cpu().numpy(), None, None)
    filled = [row.numpy() for row in rows if len(row)] or [np.zeros(0, dtype=np.int64)]
    return Stream(np.concatenate(filled), np.cumsum([0, *map(len, filled)]), None)


def unigram_perplexity(train: np.ndarray, tokens: np.ndarray, vocabulary_size: int) -> float:
    """Perplexity of the word frequencies of `train`, one added to every count."""
    counts = np.bincount(np.asarray(train), minlength=vocabulary_size) + 1.0
    log_probs = np.log(counts / counts.sum())
    return float(np.exp(-log_probs[_stream(tokens)].mean()))


def _perplexity(log_prob: float, tokens: int) -> float:
    per_token = -log_prob / tokens
    return math.exp(per_token) if per_token < 700 else math.inf


def _digest(lm: LM) -> str:
    """A hash of the parameters, if the model has any."""
    params, digest = getattr(lm, "params", None), hashlib.sha256()
    if isinstance(params, torch.nn.Module):
        for name, tensor in params.state_dict().items():
            digest.update(name.encode() + b"\0")
            digest.update(tensor.cpu().flatten().contiguous().view(torch.uint8).numpy())
    return digest.hexdigest()


def _stream(tokens: np.ndarray) -> np.ndarray:
    tokens = np.asarray(tokens)
    if tokens.ndim != 1 or len(tokens) == 0:
        raise ValueError(f"perplexity needs at least one token, not shape {tokens.shape}")
    return tokens
