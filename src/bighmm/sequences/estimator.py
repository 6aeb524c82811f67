"""SequenceHMM: fit, score, predict, in the manner of scikit-learn, on the library's inference."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from numbers import Integral
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from bighmm.base.caching import cached_object
from bighmm.base.files import hub_folder
from bighmm.hmm import HMM
from bighmm.infer.sequences import Carry
from bighmm.sequences import answers, criteria, saving
from bighmm.sequences.alphabet import Alphabet
from bighmm.sequences.baum_welch import step_on_batch
from bighmm.sequences.beginnings import first_tables, random_letters
from bighmm.sequences.errors import not_fitted, set_by_fit
from bighmm.sequences.fitting import fit
from bighmm.sequences.gaps import after_gaps, unfitted, with_gaps
from bighmm.sequences.old_names import with_old_names
from bighmm.sequences.online import OnlineFilter
from bighmm.sequences.randomness import RandomState, seed_of
from bighmm.sequences.reading import Given, read, warn_of_lengths
from bighmm.sequences.rows import Rows
from bighmm.sequences.settings import check_settings, check_unseen
from bighmm.sequences.tables import TableAttribute, unseen_share


class SequenceHMM:
    """An HMM of sequences of symbols, which are whole numbers or strings.

    n_states: hidden states.
    n_symbols: symbols are 0 … n_symbols - 1; None: as many as the fitted sequences have. One that
        is inside, but that fitting did not see, has a probability near zero, or what `smoothing`
        gives it.
    symbols: all strings that may occur, where symbols are strings; None: those that are fitted.
    unseen: of a symbol at prediction that fitting did not see: "error" refuses it with one
        sentence; "smooth" gives it a share of every state's emissions, estimated from how often a
        symbol was new in what was fitted (Witten and Bell).
    support: which states may emit a symbol. "dense": all; "blocked": those of its block, out of
        `n_blocks` that Brown clustering finds; "per-symbol": `n_states_per_symbol` random ones.
    parameterisation: "scalar" for tables, or another one such as "neural", with its `options` as
        a dictionary ({"width": 64}).
    optimizer: "baum-welch" for tables, on all sequences at every iteration; "adamw" for any
        parameters, an iteration being one pass in batches of `batch_size` sequences at rate `lr`.
    iterations: the most there may be. They end before if the log-probability of a symbol changes
        by less than `tolerance` or, if `tol` is given, that of all sequences by less than `tol`, as
        in hmmlearn. If they do not, there is a warning.
    smoothing: Baum-Welch adds it to every expected count. Where it is 0 the likelihood never falls.
    startprob_prior, transmat_prior, emissionprob_prior: Dirichlet priors, each a number or one for
        every cell; 1 is none, and None is 1 + `smoothing`.
    params: the tables that Baum-Welch changes: s (start), t (transitions), e (emissions).
    init_params: the tables that it draws at random first. The others come from `initial`, or from
        what the attributes below were set to, or fitted to before. None: all, or none if there is
        an `initial` HMM.
    n_init: fit so often from random beginnings, and keep the likeliest: either optimizer may end in
        a local optimum.
    initial: an `HMM` that Baum-Welch begins with, instead of a random one.
    random_state: the same number, the same model.
    verbose: whether each iteration tells its log-probability, on stderr.

    Sequences are a list of arrays, or one array with `lengths` as in hmmlearn; answers for every
    symbol come back in the same form. A list of lists of one symbol each is a column, so one
    sequence. A symbol is missing where it is None or NaN, or -1 among numbers, or has NumPy's mask;
    fitting and all questions sum over what it may be. All of it runs on the CPU.

    After `fit`: `hmm_`, the `HMM` in float64; `n_symbols_`, and `symbols_` if they are strings;
    `history_`, the log-probability of all sequences before each iteration and after the last;
    `n_iter_` and `converged_`; `init_scores_`, the log-probability reached from each beginning.
    `startprob_`, `transmat_` and `emissionprob_` are the tables. They can be set, too, before
    fitting or instead of it.
    """

    hmm_: HMM = set_by_fit()
    history_: list[float] = set_by_fit()
    converged_: bool = set_by_fit()
    init_scores_: list[float] = set_by_fit()
    n_batches_: int = set_by_fit()
    startprob_ = TableAttribute("s")  # p(first state) (Z,)
    transmat_ = TableAttribute("t")  # p(next state | state) (Z, Z)
    emissionprob_ = TableAttribute("e")  # p(symbol | state) (Z, V)

    @with_old_names
    def __init__(
        self,
        n_states: int = 1,
        n_symbols: int | None = None,
        *,
        symbols: Sequence[str] | None = None,
        unseen: Literal["error", "smooth"] = "error",
        support: Literal["dense", "blocked", "per-symbol"] = "dense",
        n_blocks: int = 8,
        n_states_per_symbol: int = 8,
        parameterisation: str = "scalar",
        options: dict[str, Any] | None = None,
        optimizer: Literal["baum-welch", "adamw"] = "baum-welch",
        iterations: int = 100,
        tolerance: float = 1e-5,
        tol: float | None = None,
        smoothing: float = 0.0,
        startprob_prior: Any = None,
        transmat_prior: Any = None,
        emissionprob_prior: Any = None,
        params: str = "ste",
        init_params: str | None = None,
        lr: float = 0.01,
        batch_size: int = 32,
        n_init: int = 1,
        initial: HMM | None = None,
        random_state: RandomState = None,
        verbose: bool = False,
    ) -> None:
        # Only stored here, as scikit-learn's clone asks for; `fit` checks them.
        self.n_states, self.n_symbols = n_states, n_symbols
        self.symbols, self.unseen = symbols, unseen
        self.support, self.n_blocks = support, n_blocks
        self.n_states_per_symbol, self.parameterisation = n_states_per_symbol, parameterisation
        self.options = options
        self.optimizer, self.iterations = optimizer, iterations
        self.tolerance, self.tol, self.smoothing = tolerance, tol, smoothing
        self.startprob_prior, self.transmat_prior = startprob_prior, transmat_prior
        self.emissionprob_prior = emissionprob_prior
        self.params, self.init_params = params, init_params
        self.lr, self.batch_size = lr, batch_size
        self.n_init, self.initial, self.random_state = n_init, initial, random_state
        self.verbose = verbose

    @classmethod
    def from_hmm(
        cls, hmm: HMM, *, symbols: Sequence[str] | None = None, **settings: Any
    ) -> SequenceHMM:
        """An estimator with the distributions of an `HMM`, as if it had been fitted.

        symbols: names of its tokens. settings: other arguments of the constructor.

        Raises ValueError for an HMM with an end mark, and for symbols that are not as many
        different strings.
        """
        if hmm.end is not None:
            raise ValueError("a SequenceHMM has no end mark; give an HMM whose end is None")
        size, names = hmm.vocabulary_size, None if symbols is None else list(symbols)
        alphabet = Alphabet.asked_for(None, names) or Alphabet(size)
        if alphabet.size != size:
            raise ValueError(f"the HMM has {size} tokens, not {alphabet.size} symbols")
        model = cls(hmm.num_states, size if names is None else None, symbols=names, **settings)
        model._become(hmm.to("cpu", torch.float64), alphabet)
        return model

    @classmethod
    def from_tables(
        cls,
        startprob: Any,
        transmat: Any,
        emissionprob: Any,
        *,
        symbols: Sequence[str] | None = None,
        **settings: Any,
    ) -> SequenceHMM:
        """An estimator with these probabilities: start (Z,), transitions (Z, Z), emissions (Z, V).

        Raises ValueError if shapes do not fit, or rows do not add up to one.
        """
        given = (startprob, transmat, emissionprob)
        tables = [torch.as_tensor(np.asarray(table, np.float64)) for table in given]
        return cls.from_hmm(HMM.from_probs(*tables), symbols=symbols, **settings)

    def fit(self, X: Any, y: Any = None, *, lengths: Any = None) -> SequenceHMM:
        """Fit to sequences, from the beginning; `y` is not used.

        Raises ValueError for what cannot be fitted.
        """
        check_settings(self)
        given = read(X, lengths)
        warn_of_lengths(y, lengths, given.joined, sum(len(s.values) for s in given.sequences))
        alphabet = self._alphabet_for(given)
        rows = alphabet.rows(given)
        found = fit(self, rows, seed_of(self.random_state), self._known())
        self._become(found.hmm, alphabet, found.history, found.converged, rows.observed)
        self.init_scores_ = found.scores
        return self

    def partial_fit(self, X: Any, y: Any = None, *, lengths: Any = None) -> SequenceHMM:
        """One step of Baum-Welch on some sequences, of a stream that does not end; `y` is not used.

        The first call sets the symbols, from `n_symbols`, `symbols` or what it is given. Step
        number k goes (k + 1)^-0.6 of the way from the tables to those that fit its sequences.
        """
        check_settings(self)
        if self.optimizer != "baum-welch":
            raise ValueError("partial_fit is a step of Baum-Welch; use optimizer='baum-welch'")
        given = read(X, lengths)
        warn_of_lengths(y, lengths, given.joined, sum(len(s.values) for s in given.sequences))
        if self.__sklearn_is_fitted__():
            alphabet, hmm, steps, observed = self._alphabet, self.hmm_, self.n_batches_, self._seen
            rows = alphabet.rows(given)
        else:
            alphabet, steps, observed = self._alphabet_for(given), 0, 0
            rows = alphabet.rows(given)
            hmm = first_tables(self, rows, seed_of(self.random_state), self._known())
        if rows.observed:
            hmm = step_on_batch(self, rows, hmm, steps)
        history = getattr(self, "history_", [])
        self._become(hmm, alphabet, history, False, observed + rows.observed)
        self.n_batches_ = steps + 1
        return self

    def score(self, X: Any, y: Any = None, *, lengths: Any = None) -> float:
        """log p of all sequences together, in nats, as hmmlearn's `score`; `y` is not used."""
        hmm, rows = self._ask(X, lengths)
        warn_of_lengths(y, lengths, rows.joined, rows.positions)
        return float(answers.log_probs(hmm, rows).sum())

    def score_sequences(self, X: Any, lengths: Any = None) -> np.ndarray:
        """log p (N,) of each sequence; 0 for an empty one."""
        return answers.log_probs(*self._ask(X, lengths))

    def score_samples(
        self, X: Any, lengths: Any = None
    ) -> tuple[float, np.ndarray | list[np.ndarray]]:
        """log p of all sequences together, and `predict_proba`, as hmmlearn's `score_samples`."""
        hmm, rows = self._ask(X, lengths)
        scores, found = answers.marginals(hmm, rows)
        return float(scores.sum()), rows.like_given(found)

    def decode(
        self, X: Any, lengths: Any = None, algorithm: Literal["viterbi", "map"] | None = "viterbi"
    ) -> tuple[float, np.ndarray | list[np.ndarray]]:
        """log p(sequences, states), and the states: of the most likely path ("viterbi", or None),
        or the most likely one at each position by itself ("map").

        The states are -1 in a sequence of probability zero. Those of "map" may be a path that is
        impossible; the log-probability is -inf then.
        """
        ways = {"viterbi": answers.best_paths, "map": answers.likeliest_states}
        way = "viterbi" if algorithm is None else algorithm
        if way not in ways:
            raise ValueError(f"algorithm must be 'viterbi' or 'map', not {algorithm!r}")
        hmm, rows = self._ask(X, lengths)
        scores, found = ways[way](hmm, rows)
        return float(scores.sum()), rows.like_given(found)

    def predict(self, X: Any, lengths: Any = None) -> np.ndarray | list[np.ndarray]:
        """The states of the most likely path; -1 in a sequence of probability zero."""
        return self.decode(X, lengths)[1]

    def predict_proba(self, X: Any, lengths: Any = None) -> np.ndarray | list[np.ndarray]:
        """p(state | sequence) (T, Z) for every symbol; 0 in a sequence of probability zero."""
        return self.score_samples(X, lengths)[1]

    def next_proba(self, X: Any, lengths: Any = None) -> np.ndarray:
        """p (N, V) of the symbol that follows each sequence, among those that are known."""
        return answers.next_symbols(*self._ask(X, lengths))

    def filter(self) -> OnlineFilter:
        """A filter that takes in a stream symbol by symbol; see `OnlineFilter`."""
        self._fitted()
        check_unseen(self.unseen)

        def number(symbol: Any) -> int:
            rows = self._rows(read([symbol])).rows
            if len(rows) != 1 or len(rows[0]) != 1:
                count = sum(map(len, rows))
                raise ValueError(f"a filter takes in one symbol at a time, not {count}; use follow")
            return int(rows[0][0])

        return OnlineFilter(self._model(gapped=True), self.n_symbols_, number)

    def sample(
        self,
        n: int = 1,
        length: int = 10,
        prefix: Any = None,
        random_state: RandomState = None,
        *,
        return_states: bool = False,
    ) -> Any:
        """n sequences (n, length) of what follows `prefix`, without it.

        Symbols of the prefix may be missing. With `return_states` a second array (n, length) has
        the states that emitted them.
        """
        hmm = self._fitted()
        whole = isinstance(n, Integral) and isinstance(length, Integral)
        if not whole or n < 1 or length < 0:
            raise ValueError(
                "n must be a whole number of at least 1 and length one not below 0, not "
                f"n={n!r} and length={length!r}"
            )
        generator = torch.Generator().manual_seed(seed_of(random_state))
        before: torch.Tensor | Carry | None = None
        if prefix is not None and np.size(prefix):
            asked, rows = self._ask(prefix, [np.size(prefix)])
            before = torch.from_numpy(rows.rows[0])
            if rows.gapped:
                hmm, before = after_gaps(hmm, asked, before)
        if not return_states:
            return self._alphabet.symbols(hmm.sample(n, length, before, generator).numpy())
        tokens, states = hmm.sample_with_states(n, length, before, generator)
        return self._alphabet.symbols(tokens.numpy()), states.numpy()

    def aic(self, X: Any, lengths: Any = None) -> float:
        """Akaike's criterion on these sequences, for the tables in `params`: lower is better."""
        free = criteria.free_parameters(self._fitted(), self.params)
        return criteria.aic(self.score(X, lengths=lengths), free)

    def bic(self, X: Any, lengths: Any = None) -> float:
        """The Bayesian criterion on these sequences, as `aic`; missing symbols do not count."""
        hmm, rows = self._ask(X, lengths)
        free = criteria.free_parameters(self.hmm_, self.params)
        return criteria.bic(float(answers.log_probs(hmm, rows).sum()), free, rows.observed)

    def get_stationary_distribution(self) -> np.ndarray:
        """The distribution (Z,) of the states in the long run, which a step does not change."""
        return criteria.stationary(self._fitted())

    @property
    def n_symbols_(self) -> int:
        self._fitted()
        return self._alphabet.size

    @property
    def symbols_(self) -> list[str] | None:
        """The strings by their number; None where symbols are numbers."""
        self._fitted()
        return None if self._alphabet.names is None else list(self._alphabet.names)

    @property
    def n_iter_(self) -> int:
        """How many iterations the last fit took."""
        self._fitted()
        return max(0, len(self.history_) - 1)

    def save(self, folder: str | Path) -> None:
        """Write the fitted model to a folder, whole or not at all.

        One that `save` wrote before is replaced; ValueError if the folder holds anything else.
        """
        saving.save(self._saved(), Path(folder).expanduser())

    @classmethod
    def load(cls, folder: str | Path) -> SequenceHMM:
        """A model that `save` wrote; ValueError with one sentence if it is not whole."""
        found = saving.load(Path(folder).expanduser())
        try:
            model = cls(**found.settings)
        except TypeError as error:
            raise ValueError(f"{folder} is damaged: {error}") from None
        model._become(found.hmm, found.alphabet, found.history, found.converged, found.observed)
        model.n_batches_, model.init_scores_ = found.batches, found.scores
        return model

    def push_to_hub(self, repo_id: str, **options: Any) -> str:
        """Upload the fitted model to the Hugging Face hub; options are those of its mixin."""
        from bighmm.sequences.hub import HubFolder

        saved = self._saved()
        return HubFolder(lambda folder: saving.write(saved, folder)).push_to_hub(repo_id, **options)

    @classmethod
    def from_pretrained(cls, folder: str | Path, **options: Any) -> SequenceHMM:
        """A model from its local folder, or from the hub by its name there."""
        local = Path(folder).expanduser()
        return cls.load(local if local.is_dir() else hub_folder(str(folder), **options))

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

    def _repr_html_(self) -> str:
        """For notebooks: the model as a drawing, once it is fitted."""
        from bighmm.sequences.drawing import drawing, words

        if not self.__sklearn_is_fitted__():
            return words(repr(self))
        return drawing(self.hmm_, self._alphabet.name, repr(self))

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "hmm_")

    def __sklearn_tags__(self) -> Any:
        """What scikit-learn asks of an estimator; nothing else needs it to be installed."""
        from sklearn.utils import InputTags, Tags, TargetTags

        return Tags(
            estimator_type=None,
            target_tags=TargetTags(required=False),
            input_tags=InputTags(two_d_array=True, categorical=True, string=True, allow_nan=True),
        )

    def _become(
        self,
        hmm: HMM,
        alphabet: Alphabet,
        history: list[float] | None = None,
        converged: bool = False,
        observed: int = 0,
    ) -> None:
        """Have this HMM; observed: how many symbols it was fitted to."""
        self.hmm_, self._alphabet, self.history_ = hmm, alphabet, history or []
        self.converged_, self._seen, self.n_batches_ = converged, observed, 0
        self.init_scores_ = self.history_[-1:]
        self._tables: dict[str, np.ndarray] = {}

    def _alphabet_for(self, given: Given) -> Alphabet:
        """The symbols to fit: of the settings, of emissions that are kept, or of the sequences."""
        n_symbols, symbols = self.n_symbols, self.symbols
        kept = self._kept_alphabet()
        if kept is not None:
            symbols = kept.names if symbols is None else symbols
            n_symbols = kept.size if n_symbols is None and symbols is None else n_symbols
        return Alphabet.of(given, n_symbols, symbols)

    def _kept_alphabet(self) -> Alphabet | None:
        """The symbols of the emissions that Baum-Welch begins with; None if it draws them."""
        if self.optimizer != "baum-welch" or "e" in random_letters(self):
            return None
        if self.initial is not None:
            return Alphabet(self.initial.vocabulary_size)
        if self.__sklearn_is_fitted__():
            return self._alphabet
        tables = getattr(self, "_tables", {})
        return Alphabet(tables["e"].shape[1]) if "e" in tables else None

    def _known(self) -> HMM | dict[str, np.ndarray]:
        """What tables come from that fitting does not draw."""
        return self.hmm_ if self.__sklearn_is_fitted__() else getattr(self, "_tables", {})

    def _fitted(self) -> HMM:
        if not self.__sklearn_is_fitted__():
            raise not_fitted()
        return self.hmm_

    def _saved(self) -> saving.Saved:
        return saving.Saved(
            self.get_params(),
            self._fitted(),
            self._alphabet,
            self.history_,
            self.converged_,
            self._seen,
            self.n_batches_,
            self.init_scores_,
        )

    def _ask(self, X: Any, lengths: Any) -> tuple[HMM, Rows]:
        """The HMM to ask about these sequences, and the sequences in numbers."""
        self._fitted()
        check_unseen(self.unseen)
        rows = self._rows(read(X, lengths))
        return self._model(rows.gapped), rows

    def _rows(self, given: Any) -> Rows:
        rows = self._alphabet.rows(given, self.unseen)
        if self.unseen == "smooth":
            return rows.with_unseen(unfitted(self.hmm_).numpy())
        return rows

    def _model(self, gapped: bool) -> HMM:
        """The fitted HMM, with the symbols that are missing or unseen if there are any."""
        hmm, share = self.hmm_, 0.0
        if self.unseen == "smooth":
            share = unseen_share(self._seen, int((~unfitted(hmm)).sum()))
        elif not gapped:
            return hmm
        return cached_object(hmm, f"_with_gaps_{share}", lambda: HMM.of(with_gaps(hmm, share)))


def _defaults() -> dict[str, Any]:
    """The parameters of the constructor with their defaults."""
    parameters = inspect.signature(SequenceHMM).parameters.values()
    return {p.name: p.default for p in parameters}
