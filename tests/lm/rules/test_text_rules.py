"""Regular expressions over text and JSON schemas, compared with Python's `re` on decoded tokens."""

import itertools
import json
import re

import pytest
import tokenizers
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bighmm import constraints as c
from bighmm.data.tokenizers import Subwords, Words, open_tokenizer
from bighmm.lm.rules.spelling import token_bytes
from models import random_hmm
from tokenizer_files import bpe, sentencepiece_model

DIGITS = Words.build(["12 3 é 1"])
ACCENTS = Words.build(["é ü"])
PROSE = Words.build(["the cat , ( ) / \" ' $ () é 's …"], split="words")
SPELLED = [i for i in range(PROSE.size) if i not in (PROSE.end, PROSE.unknown)]
sentences = st.lists(st.sampled_from(SPELLED), max_size=12)


def pieces(tokens, decoder):
    """A tokenizer of exactly these tokens."""
    vocabulary = {token: id for id, token in enumerate(["</s>", *tokens])}
    model = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary))
    model.decoder = decoder
    model.add_special_tokens(["</s>"])
    return Subwords(model.to_str().encode())


LLAMA = tokenizers.decoders.Sequence(
    [
        tokenizers.decoders.Replace("▁", " "),
        tokenizers.decoders.ByteFallback(),
        tokenizers.decoders.Fuse(),
        tokenizers.decoders.Strip(" ", 1, 0),
    ]
)
FALLBACK = pieces(["▁a", "▁", "a", "b", "<0xC3>", "<0xA9>"], LLAMA)
METASPACE = pieces(["▁a", "▁", "a", "b", "<0xC3>"], tokenizers.decoders.Metaspace())
BYTES = pieces(["Ġa", "Ġ", "a", "ab", "Ã", "©"], tokenizers.decoders.ByteLevel())


def test_bytes_of_tokens(tmp_path):
    assert set(token_bytes(DIGITS)) == {None, b"12", b"3", "é".encode(), b"1"}
    assert token_bytes(FALLBACK) == [None, b" a", b" ", b"a", b"b", b"\xc3", b"\xa9"]
    assert token_bytes(METASPACE) == [None, b" a", b" ", b"a", b"b", b"<0xC3>"]
    assert token_bytes(BYTES) == [None, b" a", b" ", b"a", b"ab", b"\xc3", b"\xa9"]
    for tokenizer in (
        open_tokenizer(bpe(tmp_path / "tiny.json")),
        open_tokenizer(sentencepiece_model(tmp_path / "tiny.model")),
    ):
        contents = token_bytes(tokenizer)
        for text in ("the cat sat", "the mat"):
            joined = b"".join(contents[i] for i in tokenizer.encode(text)).decode()
            assert joined.removeprefix(" ") == text
    with pytest.raises(ValueError, match="not one that decodes by WordPiece"):
        token_bytes(pieces(["a", "##b"], tokenizers.decoders.WordPiece()))


class TestText:
    @pytest.mark.parametrize(
        ("tokenizer", "pattern"),
        [
            (DIGITS, "1.* 3"),
            (DIGITS, "(1|12 )+é?"),
            (DIGITS, ""),
            (DIGITS, "[0-9]*( [0-9]{2})*"),
            (ACCENTS, "é( ü)*"),
            (PROSE, "the .*"),
            (PROSE, r"(the|cat)(, (the|cat))*\)?"),
            (PROSE, '"[^"]{3,8}"( [^"]*)?'),
            (PROSE, ".*[\"'](the|cat)[\"'].*"),
            (PROSE, "[^ ]*"),
            (METASPACE, " *a+b"),
            (METASPACE, " a"),
            (FALLBACK, "(a b?)*é?"),
            (FALLBACK, " *a"),
            (BYTES, " a(ab|é)*"),
            (BYTES, "(aa b|a)?.*"),
        ],
    )
    def test_expressions_match_as_in_python(self, tokenizer, pattern):
        rule = c.text_regex(pattern, tokenizer)
        plain = re.compile(pattern)
        tokens = [i for i in range(tokenizer.size) if i not in (tokenizer.end, tokenizer.unknown)]
        matched = 0
        for n in range(5 if len(tokens) < 10 else 4):
            for ids in itertools.product(tokens, repeat=n):
                text = tokenizer.decode(ids)
                if "\ufffd" not in text:  # U+FFFD stands for bytes that are no character
                    assert rule.matches(ids) == bool(plain.fullmatch(text)), text
                    matched += rule.matches(ids)
        assert matched
        assert not rule.matches([tokenizer.end])

    @settings(max_examples=60, deadline=None)
    @given(sentences, st.lists(sentences, max_size=5))
    def test_rules_are_about_the_decoded_text_of_words(self, ids, others):
        """Exactly the words that decode to the text satisfy the rule, whatever quotes are open."""
        text = PROSE.decode(ids)
        rule = c.text_regex(re.escape(text), PROSE)
        assert rule.matches(ids)
        for other in [*others, *(ids[:n] for n in range(len(ids))), ids[::-1]]:
            assert rule.matches(other) == (PROSE.decode(other) == text)

    @pytest.mark.parametrize(
        "pattern",
        [
            r"the cat( the|\(|\)|,|/| é)*",
            '("[^"]{3,12}" ?)+',
            "[^']*'[^']*' cat.*",
        ],
    )
    def test_sampled_words_match_the_expression(self, pattern):
        hmm = random_hmm("dense-table", states=6, vocabulary=PROSE.size, end=PROSE.end)
        rule = c.text_regex(pattern, PROSE)
        for row in hmm.sample(30, rule=rule, max_length=14).tolist():
            assert re.fullmatch(pattern, PROSE.decode(row[: row.index(PROSE.end)]))

    def test_sampled_words_match_a_json_schema(self):
        hmm = random_hmm("dense-table", states=6, vocabulary=PROSE.size, end=PROSE.end)
        rule = c.json_schema({"type": "string", "minLength": 10, "maxLength": 12}, PROSE)
        for row in hmm.sample(30, rule=rule, max_length=14).tolist():
            assert 10 <= len(json.loads(PROSE.decode(row[: row.index(PROSE.end)]))) <= 12

    def test_alternatives_without_tokens_are_left_out(self):
        """Alternatives with characters that no token has cannot match; the others still can."""
        rule = c.text_regex("a(b|xyz)", BYTES)
        assert rule.matches([4]) and rule.compile(BYTES.size).shortest == 1
        assert c.text_regex("xyz", BYTES).compile(BYTES.size).shortest is None

    def test_sampled_subwords_match_a_json_schema(self):
        tokens = [*'{}[]":,0123456789', "name", "age", '{"', '":', "true", "null", "ab"]
        tokenizer = pieces(tokens, tokenizers.decoders.ByteLevel())
        hmm = random_hmm("blocked-flat", states=6, vocabulary=tokenizer.size, end=0)
        schema = {
            "type": "object",
            "properties": {"name": {"enum": ["ab", "true"]}, "age": {"type": "integer"}},
            "required": ["name", "age"],
        }
        rule = c.json_schema(schema, tokenizer)
        for row in hmm.sample(20, rule=rule, max_length=40).tolist():
            found = json.loads(tokenizer.decode(row[: row.index(0)]))
            assert found["name"] in ("ab", "true") and isinstance(found["age"], int)
        both = rule & c.contains([[tokens.index("7") + 1]])
        (row,) = hmm.sample(1, rule=both, max_length=40, generator=torch.Generator()).tolist()
        assert "7" in tokenizer.decode(row)

    def test_errors_of_expressions_and_schemas(self):
        with pytest.raises(ValueError, match=r"the expression '\(' cannot be used"):
            c.text_regex("(", DIGITS)
        with pytest.raises(ValueError, match=r"the JSON schema .* cannot be used"):
            c.json_schema("{", DIGITS)
        with pytest.raises(ValueError, match="for a vocabulary of 6 tokens"):
            c.text_regex("1", DIGITS).compile(9)
        hmm = random_hmm("dense-table", vocabulary=BYTES.size)
        with pytest.raises(ValueError, match="no sequence of tokens can satisfy the rule text 'xy"):
            hmm.sample(1, rule=c.text_regex("xyz", BYTES))
