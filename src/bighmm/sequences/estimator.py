"""SequenceHMM: fit, score, predict, in the manner of scikit-learn, on the library's inference."""

from __future__ import annotations

import inspect
import warnings
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from bighmm.hmm import HMM
from bighmm.sequences import saving
from bighmm.sequences.fitting import check_settings, fit
from bighmm.sequences.rows import Rows, read_rows

RandomState = Any  # None, a whole number, or one of NumPy's two kinds of generators


class SequenceHMM:
    """An HMM of sequences of whole numbers.

    n_states: hidden states.
    n_symbols: symbols are 0 … n_symbols - 1; None: as many as the fitted sequences have. A symbol
        outside is refused with one sentence. One that is inside, but that fitting did not see, has
        a probability near zero, or what `smoothing` gives it.
    support: which states may emit a symbol. "dense": all; "blocked": those of its block, out of
        `n_blocks` that Brown clustering finds; "per-symbol": `n_states_per_symbol` random ones.
    parameterisation: "scalar" for tables, or another one such as "neural", with its `options` as
        a dictionary ({"width": 64}).
    optimizer: "baum-welch" for tables, on all sequences at every iteration; "adamw" for any
        parameters, an iteration being one pass in batches of `batch_size` sequences at rate `lr`.
    iterations: the most there may be. They end before if the log-probability of a symbol changes
        by less than `tolerance`.
    smoothing: Baum-Welch adds it to every expected count. Where it is 0 the likelihood never falls.
    n_init: fit so often from random beginnings, and keep the likeliest: either optimizer may end in
        a local optimum.
    initial: an `HMM` that Baum-Welch begins with, instead of a random one.
    random_state: the same number, the same model.

    Sequences are a list of arrays, or one array with `lengths` as in hmmlearn; answers for every
    symbol come back in the same form. All of it runs on the CPU. After `fit`: `hmm_`, the `HMM` in
    float64; `n_symbols_`; `history_`, the log-probability of all sequences before each iteration
    and after the last.
    """

    hmm_: HMM
    n_symbols_: int
    history_: list[float]

    def __init__(
        self,
        n_states: int,
        n_symbols: int | None = None,
        *,
        support: Literal["dense", "blocked", "per-symbol"] = "dense",
        n_blocks: int = 8,
        n_states_per_symbol: int = 8,
        parameterisation: str = "scalar",
        options: dict[str, Any] | None = None,
        optimizer: Literal["baum-welch", "adamw"] = "baum-welch",
        iterations: int = 100,
        tolerance: float = 1e-5,
        smoothing: float = 0.0,
        lr: float = 0.01,
        batch_size: int = 32,
        n_init: int = 1,
        initial: HMM | None = None,
        random_state: RandomState = None,
        **renamed: Any,
    ) -> None:
        # Only stored here, as scikit-learn's clone asks for; `fit` checks them.
        self.n_states, self.n_symbols = n_states, n_symbols
        self.support, self.n_blocks = support, n_blocks
        self.n_states_per_symbol, self.parameterisation = n_states_per_symbol, parameterisation
        self.options = options
        self.optimizer, self.iterations, self.tolerance = optimizer, iterations, tolerance
        self.smoothing, self.lr, self.batch_size = smoothing, lr, batch_size
        self.n_init, self.initial, self.random_state = n_init, initial, random_state
        self._use_old_names(renamed)

    def fit(self, X: Any, lengths: Any = None) -> SequenceHMM:
        """Fit to sequences, from the beginning. Raises ValueError for what cannot be fitted."""
        check_settings(self)
        rows = read_rows(X, lengths)
        if rows.symbols == 0:
            raise ValueError("the sequences hold no symbols, so there is nothing to fit")
        known = self.n_symbols
        if known is None:
            known = max(int(row.max()) for row in rows.rows if len(row)) + 1
        rows.check_known(known)
        seed = seed_of(self.random_state)
        found = [fit(self, rows, known, seed + i) for i in range(self.n_init)]
        self.hmm_, self.history_ = max(found, key=lambda one: one[1][-1])
        self.n_symbols_ = known
        return self

    def score(self, X: Any, lengths: Any = None) -> float:
        """log p of all sequences together, in nats, as hmmlearn's `score`."""
        return float(self.score_samples(X, lengths).sum())

    def score_samples(self, X: Any, lengths: Any = None) -> np.ndarray:
        """log p (N,) of each sequence; 0 for an empty one."""
        rows = self._read(X, lengths)
        found = np.zeros(len(rows.rows))
        for chosen, ids, sizes in rows.batches():
            found[chosen] = self.hmm_.log_prob(ids, sizes).numpy()
        return found

    def predict(self, X: Any, lengths: Any = None) -> np.ndarray | list[np.ndarray]:
        """The states of the most likely path; -1 in a sequence of probability zero."""
        rows = self._read(X, lengths)
        found = [np.empty(0, np.int64)] * len(rows.rows)
        for chosen, ids, sizes in rows.batches():
            paths = self.hmm_.viterbi(ids, sizes).states.numpy()
            for number, path, size in zip(chosen, paths, sizes.tolist(), strict=True):
                found[number] = path[:size]
        return rows.like_given(found)

    def predict_proba(self, X: Any, lengths: Any = None) -> np.ndarray | list[np.ndarray]:
        """p(state | sequence) (T, Z) for every symbol; 0 in a sequence of probability zero."""
        rows = self._read(X, lengths)
        states_in_all = self.hmm_.num_states
        found = [np.empty((0, states_in_all))] * len(rows.rows)
        for chosen, ids, sizes in rows.batches(cost_per_position=states_in_all):
            posterior = self.hmm_.posterior(ids, sizes)
            every = posterior.marginals
            if not self.hmm_.support.is_dense:
                # Where there is no state the marginal is 0, and adds nothing to state 0.
                states = posterior.states.clamp(min=0)
                every = every.new_zeros(*ids.shape, states_in_all)
                every.scatter_add_(2, states, posterior.marginals)
            for number, probs, size in zip(chosen, every.numpy(), sizes.tolist(), strict=True):
                found[number] = probs[:size]
        return rows.like_given(found)

    def next_proba(self, X: Any, lengths: Any = None) -> np.ndarray:
        """p (N, V) of the symbol that follows each sequence."""
        rows = self._read(X, lengths)
        found = np.zeros((len(rows.rows), self.n_symbols_))
        for chosen, ids, sizes in rows.batches():
            found[chosen] = self.hmm_.next_token(ids, sizes).exp().numpy()
        return found

    def sample(
        self, n: int = 1, length: int = 10, prefix: Any = None, random_state: RandomState = None
    ) -> np.ndarray:
        """n sequences (n, length) of what follows `prefix`, without it."""
        hmm = self._fitted()
        generator = torch.Generator().manual_seed(seed_of(random_state))
        before = None
        if prefix is not None and np.size(prefix):
            rows = self._read(prefix, [np.size(prefix)])
            before = torch.from_numpy(rows.rows[0])
        return hmm.sample(n, length, before, generator).numpy()

    def save(self, folder: str | Path) -> None:
        """Write the fitted model to a folder, whole or not at all.

        One that `save` wrote before is replaced; ValueError if the folder holds anything else.
        """
        hmm = self._fitted()
        settings = self.get_params()
        saving.save(saving.Saved(settings, hmm, self.n_symbols_, self.history_), Path(folder))

    @classmethod
    def load(cls, folder: str | Path) -> SequenceHMM:
        """A model that `save` wrote; ValueError with one sentence if it is not whole."""
        found = saving.load(Path(folder))
        try:
            model = cls(**found.settings)
        except TypeError as error:
            raise ValueError(f"{folder} is damaged: {error}") from None
        model.hmm_, model.n_symbols_, model.history_ = found.hmm, found.n_symbols, found.history
        return model

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The arguments of the constructor, by name."""
        return {name: getattr(self, name) for name in _defaults()}

    def set_params(self, **params: Any) -> SequenceHMM:
        known = self.get_params()
        for name, value in params.items():
            if name not in known:
                raise ValueError(
                    f"SequenceHMM has no parameter {name!r}; it has {', '.join(known)}"
                )
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        defaults = _defaults()
        given = {k: v for k, v in self.get_params().items() if v is not defaults[k]}
        return f"SequenceHMM({', '.join(f'{k}={v!r}' for k, v in given.items())})"

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "hmm_")

    def __sklearn_tags__(self) -> Any:
        """What scikit-learn asks of an estimator; nothing else needs it to be installed."""
        from sklearn.utils import InputTags, Tags, TargetTags

        return Tags(
            estimator_type=None,
            target_tags=TargetTags(required=False),
            input_tags=InputTags(two_d_array=False),
        )

    def _use_old_names(self, renamed: dict[str, Any]) -> None:
        """Settings under the names of the first version."""
        for name, value in renamed.items():
            if name not in saving.RENAMED:
                raise TypeError(f"SequenceHMM has no parameter {name!r}")
            now = saving.RENAMED[name]
            warnings.warn(f"{name} is now called {now}", DeprecationWarning, stacklevel=3)
            setattr(self, now, value)
        if str(self.support) == "free":
            warnings.warn("'free' is now called 'per-symbol'", DeprecationWarning, stacklevel=3)
            self.support = "per-symbol"

    def _fitted(self) -> HMM:
        if not hasattr(self, "hmm_"):
            raise ValueError("this SequenceHMM has not been fitted; call fit first")
        return self.hmm_

    def _read(self, X: Any, lengths: Any) -> Rows:
        self._fitted()
        rows = read_rows(X, lengths)
        rows.check_known(self.n_symbols_)
        return rows


def _defaults() -> dict[str, Any]:
    """The parameters of the constructor with their defaults."""
    parameters = inspect.signature(SequenceHMM).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is not p.VAR_KEYWORD}


def seed_of(random_state: RandomState) -> int:
    """A seed from None, a number, or one of NumPy's two kinds of generators; ValueError if not."""
    if random_state is None:
        return int(np.random.SeedSequence().generate_state(1)[0])
    if isinstance(random_state, (int, np.integer)) and 0 <= random_state < 2**63:
        return int(random_state)
    draw = getattr(random_state, "integers", None) or getattr(random_state, "randint", None)
    if draw is None:
        raise ValueError(
            f"random_state must be a whole number from 0 to 2**63 - 1, not {random_state!r}"
        )
    return int(draw(2**31))
