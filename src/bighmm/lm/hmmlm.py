"""HMMLM: an HMM with its vocabulary and its parameters, as a folder.

    config.json         what it is: parameterisation, options, support, hashes of the other files
                        and of itself
    model.safetensors   the parameters
    vocab.json          or tokenizer.json, tokenizer.model: the vocabulary
    blocks.json         the block of every token, for a blocked support

`hub.OnHub` gives `save_pretrained`, `push_to_hub` and `from_pretrained`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import torch
from torch import Tensor

from bighmm.base.arrays import as_tensor
from bighmm.base.caching import outside_inference_mode
from bighmm.base.files import check_hashes, hashes, write_json, write_sealed
from bighmm.base.randomness import generator_for
from bighmm.base.shapes import Uninitialised
from bighmm.base.tensor_files import (
    TensorFile,
    check_state,
    load_state,
    write_tensors,
)
from bighmm.data.tokenizers import TOKENIZER_FILES, Tokenizer, load_tokenizer
from bighmm.hmm import HMM
from bighmm.infer.fill import FillProbs
from bighmm.infer.sample import Sharpness
from bighmm.lm import gaps, questions, tagging
from bighmm.lm.config import FORMAT, SUPPORT, check_probabilities, read_config, restore_support
from bighmm.lm.evaluation import Evaluation, evaluate, stream_of
from bighmm.lm.gapped_text import GappedText
from bighmm.lm.hub import BLOCKS, CONFIG, OTHERS, WEIGHTS, OnHub
from bighmm.lm.protocol import Convention, MatmulDtype
from bighmm.lm.questions import Score, WordProb
from bighmm.lm.rules import Rule, rule_from_words, until
from bighmm.lm.stepping import HMMStepper
from bighmm.lm.tagging import TaggedText, TextPosterior
from bighmm.model import params
from bighmm.model.calibration import UNCALIBRATED
from bighmm.model.support import Support

if TYPE_CHECKING:
    from bighmm.data.corpus import Corpus


class HMMLM(OnHub, tags=["hmm"]):
    """A hidden Markov language model: parameters, support and tokenizer."""

    convention: Convention = "reset"  # that it was trained with; questions keep to it

    def __init__(
        self,
        parameterisation: str,
        options: Any,
        support: Support,
        tokenizer: Tokenizer,
        *,
        seed: int | None = None,
    ) -> None:
        """Random initial parameters.

        parameterisation: its name, with the dataclass of its `options`.
        """
        if support.vocabulary_size != tokenizer.size:
            raise ValueError(
                f"the support knows {support.vocabulary_size} tokens but the tokenizer has "
                f"{tokenizer.size}; both must come from the same vocabulary"
            )
        self.parameterisation, self.options, self.tokenizer = parameterisation, options, tokenizer
        self.params = params.build(parameterisation, options, support, tokenizer.end, seed)
        self._hmm: HMM | None = None
        self._folder: Path | None = None  # that it was read from

    def encode(self, text: str) -> list[int]:
        """Token ids; a line break is the end mark."""
        return self.tokenizer.encode(text)

    def decode(self, ids: Any) -> str:
        """The text of token ids."""
        return self.tokenizer.decode(as_tensor(ids).long().tolist())

    def hmm(self) -> HMM:
        """The distributional parameters, computed once and cached (see `clear_cache`).

        Raises ValueError if those of a file are so large that they give no probabilities.
        """
        if self._hmm is None:
            with outside_inference_mode(), torch.no_grad():
                made = self.params()
                # They may be the parameters themselves, which ask for a gradient.
                transitions, emissions = made.transitions.detach(), made.emissions.detach()
                transitions.precompute()
                made = dataclasses.replace(
                    made,
                    transitions=transitions,
                    emissions=emissions,
                    reset=self.convention == "reset",
                )
                if self._folder is not None:
                    check_probabilities(made, self._folder)
                self._hmm = HMM.of(made)
        return self._hmm

    def predictor(self) -> HMM:
        """The same as `hmm()`: every family of models has a predictor."""
        return self.hmm()

    def stepper(self) -> HMMStepper:
        """The model as one that writes many texts side by side."""
        return HMMStepper(self.hmm())

    @overload
    def score(self, texts: str, words: bool = False) -> Score: ...  # type: ignore[overload-overlap]

    @overload
    def score(self, texts: Sequence[str], words: bool = False) -> list[Score]: ...

    def score(self, texts: str | Sequence[str], words: bool = False) -> Score | list[Score]:
        """The `Score` of a text with its end mark, or a list of them for a list of texts.

        A text is one line. words: also log p of every token, given those before it.
        """
        if isinstance(texts, str) or not isinstance(texts, Iterable):
            return questions.score(self, [texts], words)[0]
        return questions.score(self, texts, words)

    def log_prob(self, text: str, ended: bool = True) -> float:
        """log p(text) in nats, with its end mark; unless `ended`, of all texts that begin so."""
        if isinstance(text, list | tuple) and all(isinstance(each, str) for each in text):
            raise ValueError("log_prob is of one text; `score` takes a list of texts")
        ids = self.encode(text)
        return float(self.hmm().log_prob([[*ids, self.tokenizer.end] if ended else ids]))

    def next_words(
        self,
        prefix: str = "",
        n: int = 10,
        rule: Rule | None = None,
        length: int | None = None,
        no_unk: bool = False,
    ) -> list[WordProb]:
        """The n likeliest next words after `prefix`, with their probabilities.

        With a rule, given that the text ends after at most `length` (100) more tokens, which
        satisfy it. With `no_unk`, given that the word is known.
        """
        return questions.next_words(self, prefix, n, rule, length, no_unk)

    def tag(self, text: str) -> TaggedText:
        """The likeliest state path of a text, with p(state | text) of each of its states."""
        return tagging.tag(self, text)

    def posterior(self, text: str, top: int = 5) -> TextPosterior:
        """The `top` likeliest states at every word of a text, by p(state | text)."""
        return tagging.posterior(self, text, top)

    def rule(
        self,
        must: str | Sequence[str] = (),
        must_not: str | Sequence[str] = (),
        in_order: bool = False,
        starts: str | None = None,
        ends: str | None = None,
        regex: str | None = None,
        words: int | tuple[int | None, int | None] | None = None,
        text: str | None = None,
        schema: str | dict[str, Any] | None = None,
        by_tokens: bool = False,
    ) -> Rule:
        """A rule about the words of a text: all given conditions hold.

        `lm.rules.rule_from_words` says what each means. Phrases are whole words, with subword
        tokenizers too, unless `by_tokens`.
        """
        return rule_from_words(
            self.tokenizer,
            must,
            must_not,
            in_order,
            starts,
            ends,
            regex,
            words,
            text,
            schema,
            by_tokens,
        )

    def rule_log_prob(self, rule: Rule, length: int, prefix: str = "") -> float:
        """log p(the text ends after at most `length` more tokens, which satisfy the rule)."""
        ended, room = until(rule, self.tokenizer.end), questions.check_length(length, rule)
        return float(self.hmm().rule_log_prob(ended, room + 1, self.encode(prefix)))

    def next_token(
        self, text: str, rule: Rule | None = None, remaining: int | None = None
    ) -> Tensor:
        """log p(next token | text) (V,).

        With a rule, given that the text ends after at most `remaining` (100) more tokens, which
        satisfy it.
        """
        return questions.next_log_probs(self, text, rule, remaining)

    def sample(
        self,
        n: int = 1,
        length: int | None = None,
        prefix: str = "",
        rule: Rule | Sequence[Rule] | None = None,
        generator: torch.Generator | None = None,
        temperature: float = 1.0,
        *,
        seed: int | None = None,
        top_k: int | None = None,
        top_p: float = 1.0,
        no_unk: bool = False,
    ) -> list[str]:
        """n texts that begin with `prefix` and go on for at most `length` (100) tokens.

        With a rule, or one for each text, the tokens after the prefix satisfy it and the text ends;
        time and memory grow with `length`. Raises ValueError with the reason if a rule cannot hold.
        The same `seed` gives the same texts; without it and a generator the random numbers are
        torch's global ones. top_k, top_p, no_unk: as in `questions.sample`.
        """
        generator = self._generator(seed, generator)
        without = questions.unknown_ids(self.tokenizer) if no_unk else []
        sharpness = Sharpness(temperature, top_k, top_p, tuple(without))
        drawn = questions.draw_texts(self, n, prefix, length, rule, sharpness, generator)
        return [sample.text for sample in drawn]

    def fill(
        self,
        text: str,
        n: int = 1,
        *,
        open_end: bool = False,
        ends: bool = False,
        generator: torch.Generator | None = None,
        seed: int | None = None,
        rule: Rule | None = None,
        no_unk: bool = False,
    ) -> list[str]:
        """n exact samples of a text with gaps: `___`, `___3` (words) or `___1-4` (see `gaps`).

        The text ends after its last word, unless `open_end`. A gap holds no end mark, unless
        `ends`, and with `no_unk` no unknown word. With a rule the whole filled text satisfies it.
        Raises ValueError with the reason if the text has no gap or one that cannot be filled; the
        other questions about gaps do so too.
        """
        generator = self._generator(seed, generator)
        found = gaps.draw_fillings(self, text, n, open_end, ends, generator, rule, no_unk)
        return [filling.text for filling in found]

    def fill_probs(self, text: str, *, open_end: bool = False, ends: bool = False) -> FillProbs:
        """log p(word | all that is known) (gaps, V) for every gap; their lengths must be known."""
        gapped = GappedText.read(text, self.tokenizer, open_end)
        return gaps.word_probs(self.hmm(), gapped, ends)

    def fill_lengths(
        self, text: str, *, open_end: bool = False, ends: bool = False
    ) -> dict[tuple[int, ...], float]:
        """p(lengths of all gaps | all that is known) for every combination of lengths."""
        gapped = GappedText.read(text, self.tokenizer, open_end)
        return gaps.length_probs(self.hmm(), gapped, ends)

    def best_fill(
        self, text: str, k: int = 1, *, open_end: bool = False, ends: bool = False
    ) -> list[tuple[str, float]]:
        """The k likeliest fillings that `HMM.best_fill` finds, with log p of the whole texts."""
        gapped = GappedText.read(text, self.tokenizer, open_end)
        found = gaps.best(self.hmm(), gapped, k, ends)
        texts = [self.decode(filled.ids) for filled in found.filled]
        return list(zip(texts, found.log_probs, strict=True))

    def _generator(
        self, seed: int | None, generator: torch.Generator | None
    ) -> torch.Generator | None:
        """The generator of a seed, or the one that is given; None for torch's global one."""
        if seed is not None and generator is not None:
            raise ValueError("random numbers come from a seed or a generator; give one of them")
        return generator if seed is None else generator_for(self.device, seed)

    def __repr__(self) -> str:
        return f"HMMLM({', '.join(f'{value} {name}' for name, value in self._described())})"

    def _repr_html_(self) -> str:
        """The same as a table, for notebooks."""
        rows = "".join(
            f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>"
            for name, value in self._described()
        )
        return f"<table><caption>HMMLM</caption>{rows}</table>"

    def _described(self) -> list[tuple[str, str]]:
        """What a reader wants to know first: names and values."""
        blocks = self.params.support.partition
        found = [("states", f"{self.num_states:,}")]
        if blocks is not None:
            found.append(("blocks", f"{blocks.num_blocks:,}"))
        found += [
            ("words" if self.tokenizer.kind == "words" else "tokens", f"{self.tokenizer.size:,}"),
            ("parameters", f"{self.num_parameters:,}"),
            ("parameterisation", self.parameterisation),
            ("device", str(self.device)),
        ]
        return found

    @property
    def num_states(self) -> int:
        """How many states the model has."""
        return self.params.support.num_states

    @property
    def num_parameters(self) -> int:
        """How many numbers the model is made of."""
        return sum(p.numel() for p in self.params.parameters())

    def clear_cache(self) -> None:
        """Drop the cached HMM, because the parameters have changed."""
        self._hmm = None

    @property
    def device(self) -> torch.device:
        return next(self.params.parameters()).device

    def to(self, device: torch.device | str, matmul_dtype: MatmulDtype = "auto") -> HMMLM:
        """Move to a device, and set the type of the vectors whose products are logits.

        "auto" is bfloat16 on a GPU, where kernels multiply it fast, and float32 elsewhere. The
        model is exactly normalised with either, but its probabilities differ slightly.
        """
        self.params.to(device)
        if matmul_dtype == "auto":
            matmul_dtype = "bfloat16" if self.device.type == "cuda" else "float32"
        self.params.matmul_dtype = matmul_dtype
        self.clear_cache()
        return self

    def perplexity(
        self,
        corpus_or_ids: Corpus | Tensor | np.ndarray | list[int],
        *,
        split: str = "test",
        convention: Convention | None = None,
    ) -> Evaluation:
        """Perplexity of a corpus' split, or of a stream of token ids with their end marks.

        convention: without one, that which the model was trained with.

        Raises ValueError if the corpus was made with another vocabulary.
        """
        vocabulary = self.tokenizer.fingerprint()
        tokens, documents, name = stream_of(corpus_or_ids, split, vocabulary)
        return evaluate(
            self.hmm(),
            tokens,
            documents=documents,
            vocabulary=vocabulary,
            convention=convention or self.convention,
            split=name,
        )

    def _save_pretrained(self, save_directory: Path) -> None:
        described, of_support = self.params.support.describe()
        block_of = of_support.pop("block_of", None)  # in a file of its own, for people to read
        tensors = {SUPPORT + name: tensor for name, tensor in of_support.items()}
        config = {
            "format": FORMAT,
            "kind": self.parameterisation,
            "options": dataclasses.asdict(self.options),
            "support": described,
            "vocabulary": self.tokenizer.fingerprint(),
        }
        if self.convention != "reset":
            config["convention"] = self.convention
        if self.params.calibration != UNCALIBRATED:
            config["calibration"] = dataclasses.asdict(self.params.calibration)
        # First, so that a folder that is left half written is recognised and may be overwritten.
        write_json(save_directory / CONFIG, config)
        tensors |= self.params.state_dict()
        write_tensors(save_directory / WEIGHTS, tensors)
        for name in OTHERS:
            (save_directory / name).unlink(missing_ok=True)  # of an earlier model
        self.tokenizer.save(save_directory)
        names = {WEIGHTS, *TOKENIZER_FILES}
        if block_of is not None:
            write_json(save_directory / BLOCKS, {"block_of": block_of.tolist()})
            names.add(BLOCKS)
        files = {n: h for n, h in hashes(save_directory).items() if n in names}
        write_sealed(save_directory / CONFIG, config | {"files": files})

    @classmethod
    def load(cls, folder: Path) -> HMMLM:
        """The model in a folder; ValueError if a file is missing or damaged."""
        config = read_config(folder)
        # Everything but the weights first, which are much larger and must fit the rest.
        check_hashes(folder, {n: h for n, h in config.files.items() if n != WEIGHTS}, (), OTHERS)
        tokenizer = load_tokenizer(folder)
        if tokenizer.fingerprint() != config.vocabulary:
            raise ValueError(f"the vocabulary in {folder} is not the one its model was made with")
        if not (folder / WEIGHTS).is_file():
            raise ValueError(f"{folder} has no {WEIGHTS}; it is not complete")
        tensors = TensorFile(folder / WEIGHTS)
        names = {name: name for name in tensors if not name.startswith(SUPPORT)}
        check_hashes(folder, {WEIGHTS: config.files[WEIGHTS]}, [WEIGHTS])
        try:
            support = restore_support(config, tensors, folder, tokenizer.size)
            shapes = params.shapes(config.kind, config.options, support, tokenizer.end)
        except (AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
            # Those of parameterisations and supports from outside may be of any class.
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise ValueError(f"{folder / CONFIG} describes no model: {reason}") from None
        try:
            if shapes is not None:
                check_state(shapes, tensors, names)
            with Uninitialised():
                lm = cls(config.kind, config.options, support, tokenizer)
            load_state(lm.params, tensors, names, log_zeros=lm.params.log_zeros)
            lm._folder, lm.convention = folder, config.convention
            lm.params.calibration = config.calibration
        except ValueError as error:
            raise ValueError(
                f"{folder / WEIGHTS} does not fit its configuration: {error}"
            ) from None
        return lm
