"""Whole words with subword tokenizers, compared with Python's `re` on decoded tokens."""

import functools
import itertools
import json
import re

import pytest
import tokenizers
import torch
from test_text_rules import LLAMA

from bighmm.data.tokenizers import Subwords, open_tokenizer
from bighmm.lm.hmmlm import HMMLM
from bighmm.lm.rules.spelling import in_word
from bighmm.lm.rules.words import rule_from_words, spellings
from bighmm.model.params.scalar import ScalarOptions
from models import random_support
from tokenizer_files import bpe, sentencepiece_model


def pieces(tokens, before, decoder):
    """A tokenizer of exactly these tokens that encodes a text with as few tokens as possible."""
    scores = [(token, -1.0) for token in ("</s>", "<unk>", *tokens)]
    model = tokenizers.Tokenizer(tokenizers.models.Unigram(scores, unk_id=1))
    model.pre_tokenizer, model.decoder = before, decoder
    model.add_special_tokens(["</s>", "<unk>"])
    return Subwords(model.to_str().encode())


BYTES = pieces(
    [
        *(
            "Ġcat",
            "cat",
            "ca",
            "c",
            "at",
            "Ġ",
            "s",
            "'s",
            '."',
            "a.cat",
            "Ã",
            "©",
            "at.",
            "Ġcatal",
            ".",
        )
    ],
    tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False),
    tokenizers.decoders.ByteLevel(),
)
METASPACE = pieces(
    ["▁cat", "▁", "c", "at", "cat", "▁at", "-", "é", "_", ".c"],
    tokenizers.pre_tokenizers.Metaspace(),
    tokenizers.decoders.Metaspace(),
)
FALLBACK = pieces(
    ["▁cat", "▁", "c", "at", ".", "é", "<0xC3>", "<0xA9>", "<0x63>", "<0x20>"],
    tokenizers.pre_tokenizers.Metaspace(),
    LLAMA,
)

QUESTIONS = {
    "anywhere": ({"must": "cat"}, r"(?<!\w)cat(?!\w)"),
    "two words": ({"must": "cat cat"}, r"(?<!\w)cat cat(?!\w)"),
    "in order": ({"must": ["at", "cat"], "in_order": True}, r"(?<!\w)at(?!\w).*(?<!\w)cat(?!\w)"),
    "punctuation": ({"must": ".c"}, r"\.c(?!\w)"),
    "first": ({"starts": "cat"}, r"^ ?cat(?!\w)"),
    "last": ({"ends": "at"}, r"(?<!\w)at$"),
}


@functools.cache
def texts(tokenizer):
    """All sequences of a few tokens, with their decoded texts."""
    tokens = [i for i in range(tokenizer.size) if i != tokenizer.end]
    longest = 3 if len(tokens) > 12 else 4
    every = (itertools.product(tokens, repeat=n) for n in range(longest + 1))
    return [(ids, tokenizer.decode(ids)) for ids in itertools.chain.from_iterable(every)]


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("tokenizer", [BYTES, METASPACE, FALLBACK], ids=["B", "M", "F"])
def test_sequences_that_satisfy_a_rule_have_the_words(tokenizer, question):
    conditions, pattern = QUESTIONS[question]
    rule, found = rule_from_words(tokenizer, **conditions), re.compile(pattern)
    satisfied = 0
    for ids, text in texts(tokenizer):
        if rule.matches(ids):
            assert found.search(text), (ids, text)
            satisfied += 1
    assert satisfied


@pytest.mark.parametrize("phrase", ["cat", "at", "cat cat", "c"])
@pytest.mark.parametrize("tokenizer", [BYTES, METASPACE, FALLBACK], ids=["B", "M", "F"])
def test_forbidden_words_are_found_in_every_division_into_tokens(tokenizer, phrase):
    """Other sequences are refused only if they have parts of characters."""
    rule = rule_from_words(tokenizer, must_not=phrase)
    found = re.compile(rf"(?<!\w){re.escape(phrase)}(?!\w)")
    for ids, text in texts(tokenizer):
        if found.search(text):
            assert not rule.matches(ids), (ids, text)
        elif all(len(tokenizer.token(i)) < 6 and tokenizer.token(i) not in "Ã©" for i in ids):
            assert rule.matches(ids), (ids, text)


SENTENCES = [
    *("cat", "cat sat", "the cat", "the cat sat", "a cat.", '"cat"', "(cat sat)", "the cat's mat"),
    *("catalogue", "a concat", "cats", "Cat", "the CAT", "cat-sat", "1cat", "cat1", "cat_", "the"),
    *("the  cat ", "tomcat cat", "🐈 cat", "the cat, the dog", "", "c at"),
]


def metaspace_bpe(path):
    """Like `bpe`, with a mark for spaces, and with bytes for unknown characters."""
    model = tokenizers.Tokenizer(tokenizers.models.BPE(byte_fallback=True))
    model.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    model.decoder = LLAMA
    trainer = tokenizers.trainers.BpeTrainer(
        special_tokens=["</s>", *(f"<0x{byte:02X}>" for byte in range(256))], show_progress=False
    )
    model.train_from_iterator([*SENTENCES[:20], "the cat sat, 1 dog_"], trainer)
    content = json.loads(model.to_str())
    content["added_tokens"] = content["added_tokens"][:1]  # bytes are not special tokens
    path.write_text(json.dumps(content))
    return path


@pytest.fixture(params=[bpe, metaspace_bpe, sentencepiece_model])
def tokenizer(request, tmp_path):
    name = "tiny.model" if request.param is sentencepiece_model else "tiny.json"
    return open_tokenizer(request.param(tmp_path / name))


@pytest.mark.parametrize("word", ["cat", "sat", "the cat", "c"])
def test_texts_as_the_tokenizer_divides_them(tokenizer, word):
    must, never = (rule_from_words(tokenizer, **{a: word}) for a in ("must", "must_not"))
    starts, ends = (rule_from_words(tokenizer, **{a: word}) for a in ("starts", "ends"))
    whole = rf"(?<!\w){word}(?!\w)"
    for text in SENTENCES:
        ids = tokenizer.encode(text)
        text = tokenizer.decode(ids)  # without characters that the tokenizer does not have
        assert bool(re.search(whole, text)) == must.matches(ids), text
        assert bool(re.search(whole, text)) != never.matches(ids), text
        assert bool(re.match(f" ?{whole}", text)) == starts.matches(ids), text
        assert bool(re.search(f"{whole}$", text)) == ends.matches(ids), text


def test_words_beside_parts_of_characters(tmp_path):
    """They do not count as required words, and they do count as forbidden words."""
    tokenizer = open_tokenizer(bpe(tmp_path / "tiny.json"))
    must, never = (rule_from_words(tokenizer, **{a: "cat"}) for a in ("must", "must_not"))
    for text in ("cat🐈", "🐈cat", "caté", "écat"):
        assert not must.matches(tokenizer.encode(text))
        assert not never.matches(tokenizer.encode(text))
    rule = rule_from_words(tokenizer, must="é🐈", starts="é🐈", ends="é🐈")
    assert rule.matches(tokenizer.encode("é🐈"))


def test_words_in_order(tokenizer):
    rule = rule_from_words(tokenizer, must=["cat", "sat"], in_order=True)
    assert rule.matches(tokenizer.encode("the cat the sat"))
    assert not rule.matches(tokenizer.encode("the sat the cat"))
    assert not rule.matches(tokenizer.encode("catsat"))
    assert not rule.matches(tokenizer.encode("sat catsat"))


def test_sampled_texts_satisfy_the_rule(tmp_path):
    tokenizer = open_tokenizer(bpe(tmp_path / "tiny.json"))
    size = tokenizer.size
    lm = HMMLM("scalar", ScalarOptions(), random_support("dense", 4, size), tokenizer, seed=1)
    rule = lm.rule(must=["cat", "the mat"], must_not=["a"], starts="the", words=(6, 12))
    for text in lm.sample(20, rule=rule, generator=torch.Generator().manual_seed(0)):
        assert re.search(r"(?<!\w)cat(?!\w)", text) and re.search(r"(?<!\w)the mat(?!\w)", text)
        assert re.match(r" ?the(?!\w)", text) and not re.search(r"(?<!\w)a(?!\w)", text)


def test_number_of_states_of_the_automata():
    """About one per token of a required phrase, and one per byte of a forbidden phrase."""
    for phrase in ("cat", "cat cat", "cat's cat"):
        tokens = max(map(len, spellings(GREEDY, phrase)))
        states = rule_from_words(GREEDY, must=phrase).compile(GREEDY.size).num_states
        assert states <= tokens + 3
        states = rule_from_words(GREEDY, must_not=phrase).compile(GREEDY.size).num_states
        assert states <= len(phrase) + 3
    chain = rule_from_words(GREEDY, must=["cat"] * 4, in_order=True)
    assert chain.compile(GREEDY.size).num_states <= 4 * 3 + 1


def _greedy():
    """A byte-pair tokenizer with whole words as tokens."""
    model = tokenizers.Tokenizer(tokenizers.models.BPE())
    model.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        special_tokens=["</s>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    model.train_from_iterator(["cat cat's catalogue"] * 5, trainer)
    return Subwords(model.to_str().encode())


GREEDY = _greedy()


def test_scripts_without_spaces_have_no_word_characters():
    assert [in_word(c) for c in "aß9_ñ́"] == [True] * 6
    assert [in_word(c) for c in "猫ひแ '’-.\ufe0f"] == [False] * 9
    for conditions in ({"must": "猫"}, {"starts": "小猫"}, {"ends": "们"}):
        rule = rule_from_words(GREEDY, **conditions)
        assert rule.matches(GREEDY.encode("小猫们")), conditions
    assert not rule_from_words(GREEDY, must_not="猫").matches(GREEDY.encode("小猫们"))


def test_phrases_as_sequences_of_tokens():
    """With `by_tokens`, for tokenizers of unknown spelling, and for marks."""
    catalogue, cat = GREEDY.encode("cat catalogue"), GREEDY.encode("cat")
    assert len(catalogue) == 2
    longer = [*cat, *GREEDY.encode("s")]
    assert rule_from_words(GREEDY, must="cat", by_tokens=True).matches(longer)
    assert not rule_from_words(GREEDY, must="cat").matches(longer)
    plain = pieces(
        ["cat", "##s"], tokenizers.pre_tokenizers.Whitespace(), tokenizers.decoders.WordPiece()
    )
    assert rule_from_words(plain, must="cat").matches(range(2, 4))
    unknown = rule_from_words(BYTES, must=["cat", "<unk>"], in_order=True)
    assert unknown.matches([*BYTES.encode("cat"), BYTES.unknown])
    with pytest.raises(ValueError, match="for a vocabulary of"):
        rule_from_words(GREEDY, must="cat").compile(9)
