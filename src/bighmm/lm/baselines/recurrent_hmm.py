"""The recurrent HMM baseline: from an HMM to an RNN in eight stages (after Buys, Bisk & Choi 2018).

The filter of an HMM is a recurrent cell. Its vector is the distribution s of the next state;
reading a word x turns it into the belief c, and a transition into the next s:

    c ∝ s · p(x | z),    s' = c A,    p(word) = Σ_z s'_z p(word | z)

Every stage changes one thing more and keeps the changes of the stages before it:

    hmm               the exact filter; A and p(x | z) are softmaxes of tables W and O
    word-transitions  A depends on the word: the softmax of W plus scores g of the word just read
    late-transitions  s' = softmax(c W + g): the softmax comes after the product, not before it
    late-emissions    p(word) = softmax(O s' + b), and c ∝ s · exp(O_x)
    softmax           c = s: the word changes the vector through g alone
    sigmoid           s' = sigmoid(s W + g), no longer a distribution
    tanh              s' = tanh(s W + g): an Elman network
    gated             a gated recurrent unit

The first word is predicted from a vector of its own, the start distribution of the HMM. Sums are
over probabilities, in which the smallest normal float stands for those below it.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from bighmm.hmm import HMM
from bighmm.lm.baselines import register
from bighmm.lm.baselines.neural import Network, NeuralLM, State
from bighmm.lm.options import STAGES, RecurrentHMMOptions

LARGEST_RANGE = 30.0  # nats between scores g of a word in word-transitions; lower ones are raised


class RecurrentHMM(Network):
    """The cell of one stage; `words` (V, Z) are the scores O of words by state.

    The state is the vector that predicted the last word, "vector" (B, Z), and "fresh" (B,): whether
    no word was read yet, so that the next one is predicted from the start.
    """

    def __init__(self, options: RecurrentHMMOptions, vocabulary_size: int) -> None:
        if options.stage not in STAGES:
            raise ValueError(f"stage must be one of {', '.join(STAGES)}, not {options.stage!r}")
        if options.embedding < 1:
            raise ValueError(f"embedding must be at least 1, not {options.embedding}")
        super().__init__(vocabulary_size, options.width, options.dropout)
        self.stage = options.stage
        width, parts = options.width, 3 if self.stage == "gated" else 1
        self.start = nn.Parameter(torch.empty(width))
        self.transitions = nn.Parameter(torch.empty(width, parts * width))
        # A distribution averages the rows of a table, any other vector adds up all of them.
        most = options.init_scale * (width**-0.5 if self._from("sigmoid") else 1.0)
        for table in (self.words, self.start, self.transitions):
            nn.init.uniform_(table, -most, most)
        if self._from("word-transitions"):
            self.inputs = nn.Parameter(torch.empty(vocabulary_size, options.embedding))
            nn.init.uniform_(self.inputs, -options.init_scale, options.init_scale)
            self.feeding = nn.Linear(options.embedding, parts * width)
        if self._from("late-emissions"):
            self.bias = nn.Parameter(torch.zeros(vocabulary_size))

    def begin(self, rows: int, end: int) -> State:
        width = self.words.shape[1]
        return {
            "vector": self.words.new_full((rows, width), 1 / width),
            "fresh": torch.ones(rows, dtype=torch.bool, device=self.words.device),
        }

    def hidden(self, previous: Tensor, state: State, key: Tensor | None) -> tuple[Tensor, State]:
        scores, fed = self._read(previous), self._feed(previous, key)
        late = self._from("late-transitions")
        matrix = self.transitions if late else self.transitions.softmax(1)
        vector, vectors = state["vector"], []
        for t in range(previous.shape[1]):
            belief = vector if scores is None else _observe(vector, scores[:, t])
            vector = self._move(belief, matrix, None if fed is None else fed[:, t])
            if t == 0:
                vector = torch.where(state["fresh"].unsqueeze(1), self.first(), vector)
            vectors.append(vector)
        after = {"vector": vector, "fresh": torch.zeros_like(state["fresh"])}
        return torch.stack(vectors, 1), after

    def first(self) -> Tensor:
        """The vector (Z,) that predicts the first word."""
        return self.start.softmax(0) if not self._from("sigmoid") else self._squash(self.start)

    def logits(self, hidden: Tensor) -> Tensor:
        if self._from("late-emissions"):
            return functional.linear(hidden, self.words, self.bias)
        mixture = functional.linear(hidden, self.words.softmax(0))
        return mixture.clamp_min(torch.finfo(mixture.dtype).tiny).log()

    def drop(self, x: Tensor, key: Tensor | None, place: int) -> Tensor:
        """x with dropout; a distribution whose emissions are mixed stays whole."""
        mixed = place == 0 and not self._from("late-emissions")
        return x if mixed else super().drop(x, key, place)

    def _from(self, stage: str) -> bool:
        """Whether this is that stage or a later one."""
        return STAGES.index(self.stage) >= STAGES.index(stage)

    def _read(self, tokens: Tensor) -> Tensor | None:
        """Scores (B, T, Z) that turn s into c: log p(x | z), or O; None where c = s."""
        if self._from("softmax"):
            return None
        late = self._from("late-emissions")
        return functional.embedding(tokens, self.words if late else self.words.log_softmax(0))

    def _feed(self, tokens: Tensor, key: Tensor | None) -> Tensor | None:
        """The scores g (B, T, Z) of the words; None in the exact HMM."""
        if not self._from("word-transitions"):
            return None
        found: Tensor = self.feeding(self.drop(functional.embedding(tokens, self.inputs), key, 1))
        return found

    def _move(self, belief: Tensor, matrix: Tensor, fed: Tensor | None) -> Tensor:
        """The next vector (B, Z)."""
        if fed is None:
            return belief @ matrix
        if self.stage == "word-transitions":
            return _move_by_word(belief, matrix, fed)
        if self.stage == "gated":
            return _gated(belief, matrix, fed)
        return self._squash(belief @ matrix + fed)

    def _squash(self, x: Tensor) -> Tensor:
        if self.stage == "sigmoid":
            return x.sigmoid()
        return x.tanh() if self._from("tanh") else x.softmax(1)


@register("recurrent-hmm", RecurrentHMMOptions)
class RecurrentHMMLM(NeuralLM):
    family, network = "recurrent-hmm", RecurrentHMM

    @torch.no_grad()
    def hmm(self) -> HMM:
        """The same model as an `HMM` that carries its state over end marks.

        Raises ValueError unless the stage is hmm.
        """
        params = self.params
        assert isinstance(params, RecurrentHMM)
        if params.stage != "hmm":
            raise ValueError(f"a recurrent HMM of the stage {params.stage} is no HMM; hmm is")
        transition, emission = params.transitions.softmax(1), params.words.softmax(0).t()
        end = self.tokenizer.end
        return HMM.from_probs(params.first(), transition, emission, end=end, reset=False)


def _observe(prior: Tensor, scores: Tensor) -> Tensor:
    """The distribution (B, Z) in proportion to prior · exp(scores)."""
    prior = prior + torch.finfo(prior.dtype).tiny  # so that the sum is at least 1
    top = (prior.log() + scores).amax(1, keepdim=True).detach()
    joint = prior * (scores - top).exp()
    return joint / joint.sum(1, keepdim=True)


def _move_by_word(belief: Tensor, matrix: Tensor, fed: Tensor) -> Tensor:
    """Σ_i belief_i softmax_j(log matrix_ij + fed_j), without a matrix for every row."""
    factors = (fed - fed.amax(1, keepdim=True)).clamp_min(-LARGEST_RANGE).exp()
    normalisers = factors @ matrix.t()  # (B, Z), of every i
    return factors * ((belief / normalisers) @ matrix)


def _gated(vector: Tensor, matrix: Tensor, fed: Tensor) -> Tensor:
    """One step of a gated recurrent unit; gates first, then the candidate."""
    width = vector.shape[1]
    gates = (vector @ matrix[:, : 2 * width] + fed[:, : 2 * width]).sigmoid()
    update, reset = gates.split(width, 1)
    candidate = ((reset * vector) @ matrix[:, 2 * width :] + fed[:, 2 * width :]).tanh()
    return update * vector + (1 - update) * candidate
