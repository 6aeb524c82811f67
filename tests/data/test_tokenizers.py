"""Tokenizers: round trips, the end mark, vocabularies, and errors of damaged files."""

import json
import lzma
import pickle
import sys

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from bighmm.data.tokenizers import SentencePieces, Subwords, Words, load_tokenizer, open_tokenizer
from tokenizer_files import LINES, bpe, sentencepiece_model


@pytest.fixture(params=["words", "raw", "tokenizers", "sentencepiece"])
def tokenizer(request, tmp_path):
    if request.param == "words":
        return Words.build(LINES)
    if request.param == "raw":
        return Words.build(LINES, split="words", lowercase=True)
    if request.param == "tokenizers":
        return open_tokenizer(bpe(tmp_path / "tiny.json"))
    return open_tokenizer(sentencepiece_model(tmp_path / "tiny.model"))


def test_a_newline_becomes_the_end_mark(tokenizer):
    a, b = tokenizer.encode("the cat"), tokenizer.encode("the dog sat")
    assert a and b and tokenizer.end not in a + b
    end = tokenizer.end
    assert tokenizer.encode("the cat\n") == [*a, end]
    assert tokenizer.encode("the cat\n\nthe dog sat\n") == [*a, end, end, *b, end]
    assert tokenizer.encode("the cat\nthe dog sat") == [*a, end, *b]
    assert tokenizer.encode("") == []
    assert tokenizer.encode("\n") == [end]
    assert tokenizer.encode_lines(["the cat", ""]) == [[*a, end], [end]]


def test_decode_is_the_inverse_of_encode(tokenizer):
    text = "the cat sat\n\nthe dog sat\nthe mat"
    ids = tokenizer.encode(text)
    assert all(type(id) is int and 0 <= id < tokenizer.size for id in ids)
    assert tokenizer.decode(ids) == text
    assert tokenizer.decode([]) == ""
    assert all(tokenizer.token(id) for id in ids)
    for wrong in (-1, tokenizer.size):
        with pytest.raises(ValueError, match=f"token id {wrong} is outside"):
            tokenizer.decode([wrong])
        with pytest.raises(ValueError, match=f"token id {wrong} is outside"):
            tokenizer.token(wrong)


def test_half_characters_are_refused(tokenizer):
    with pytest.raises(ValueError, match="a text is not Unicode: its character 2 is"):
        tokenizer.encode("a \ud800")


def test_a_saved_or_pickled_tokenizer_is_the_same(tokenizer, tmp_path):
    folder = tmp_path / "saved"
    folder.mkdir()
    tokenizer.save(folder)
    for again in (load_tokenizer(folder), pickle.loads(pickle.dumps(tokenizer))):
        assert again.kind == tokenizer.kind
        assert again.fingerprint() == tokenizer.fingerprint()
        assert (again.size, again.end, again.unknown) == (
            tokenizer.size,
            tokenizer.end,
            tokenizer.unknown,
        )
        assert again.encode("the cat ran\n") == tokenizer.encode("the cat ran\n")


def test_ids_are_ordered_by_count_and_include_both_marks():
    words = Words.build(LINES)
    assert words.words == ["<eos>", "the", "cat", "sat", "<unk>", "a", "dog", "mat"]
    assert words.counts == [3, 3, 2, 2, 1, 1, 1, 1]
    assert words.encode("the zebra\n") == [1, words.unknown, words.end]
    assert words.encode("<unk>") == [words.unknown]
    assert words.decode(words.encode("the zebra")) == "the <unk>"


def test_the_vocabulary_has_unk_even_if_it_does_not_occur():
    words = Words.build(["a b"])
    assert words.words[-1] == "<unk>" and words.counts[-1] == 0
    assert words.encode("c") == [words.unknown]


def test_min_count_and_max_size():
    words = Words.build(LINES, min_count=2)
    assert words.words == ["<unk>", "<eos>", "the", "cat", "sat"]
    assert words.counts == [4, 3, 3, 2, 2]
    words = Words.build(LINES, max_size=4)
    assert words.words == ["<unk>", "<eos>", "the", "cat"]
    assert words.size == 4 and sum(words.counts) == 14
    assert Words.build(LINES, max_size=100).size == 8


def test_build_from_words_and_lowercase():
    assert Words.build([line.split() for line in LINES]).words == Words.build(LINES).words
    words = Words.build([["The", "CAT"], ["the"]], lowercase=True)
    assert "the" in words.words and "The" not in words.words
    assert words.encode("THE cat") == words.encode("the Cat")


def test_the_fingerprint_depends_on_vocabulary_and_settings():
    first = Words.build(LINES)
    assert first.fingerprint() == Words.build(iter(LINES)).fingerprint()
    assert first.fingerprint() != Words.build(LINES[:2]).fingerprint()
    assert first.fingerprint() != Words.build(LINES, lowercase=True).fingerprint()


def test_raw_text_is_split_into_words_and_joined_again():
    text = (
        'He said "don\'t (ever) do that", e.g. in the U.S. for $3.50 -- or 1,000; '
        "see os.path.join() and/or 'well-known' 50% [1]... Really?"
    )
    words = Words.build([text], split="words")
    for whole in ("don't", "e.g.", "U.S.", "3.50", "--", "1,000", "os.path.join", "well-known"):
        assert whole in words.words
    for mark in '()",;$%[].?':
        assert mark in "".join(words.words)
    assert words.decode(words.encode(text)) == text


@settings(deadline=None, max_examples=50)
@given(st.text())
def test_a_round_trip_of_raw_text_keeps_every_visible_character(text):
    words = Words.build([text, "x"], split="words")
    shown = words.decode(words.encode(text))
    assert "".join(shown.split()) == "".join(text.replace("<eos>", "\n").split())


@settings(deadline=None, max_examples=50)
@given(st.lists(st.text(alphabet="ab \t\u00a0é"), max_size=4))
def test_a_round_trip_of_text_split_at_whitespace_keeps_its_words(lines):
    words = Words.build([*lines, "x"])
    shown = words.decode(words.encode("\n".join(lines)))
    assert [line.split() for line in shown.split("\n")] == [line.split() for line in lines or [""]]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "empty"),
        (["<eos>", "<unk>", "a b"], "'a b' is empty or holds whitespace"),
        (["<eos>", "<unk>", ""], "'' is empty"),
        (["<eos>", "<unk>", "a", "a"], "'a' is in the word list twice"),
        (["<eos>", "a"], "lacks <unk>"),
        (["<unk>", "a"], "lacks <eos>"),
    ],
)
def test_errors_of_wrong_word_lists(words, message):
    with pytest.raises(ValueError, match=message):
        Words(words)


def test_errors_of_wrong_settings():
    with pytest.raises(ValueError, match="min_count is 0"):
        Words.build(LINES, min_count=0)
    with pytest.raises(ValueError, match="max_size is 2"):
        Words.build(LINES, max_size=2)
    with pytest.raises(ValueError, match="split is 'letters'"):
        Words.build(LINES, split="letters")
    with pytest.raises(ValueError, match="no word occurs 9 times"):
        Words.build(LINES, min_count=9)
    with pytest.raises(ValueError, match="no word occurs"):
        Words.build([])
    with pytest.raises(ValueError, match="'a b' is empty or holds whitespace"):
        Words.build([["a b"]])


def test_end_mark_of_tokenizer_files(tmp_path):
    named = open_tokenizer(bpe(tmp_path / "a.json", end="<|endoftext|>", extra=("<unk>", "[SEP]")))
    assert named.token(named.end) == "<|endoftext|>"
    assert named.token(named.unknown) == "<unk>"
    with pytest.raises(ValueError, match=r"a.json has no end mark; one of <eos>, </s>"):
        open_tokenizer(bpe(tmp_path / "a.json", end="<stop>"))
    # a saved tokenizer names its end mark in tokenizer_config.json
    chosen = Subwords((tmp_path / "a.json").read_bytes(), end="<stop>")
    chosen.save(tmp_path)
    for opened in (load_tokenizer(tmp_path), open_tokenizer(tmp_path / "tokenizer.json")):
        assert opened.token(opened.end) == "<stop>"
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": 5}')
    with pytest.raises(ValueError, match="eos_token must be a token, not 5"):
        open_tokenizer(tmp_path / "tokenizer.json")


def test_tokenizers_open_from_xz_files_and_from_folders(tmp_path):
    plain = open_tokenizer(bpe(tmp_path / "tiny.json"))
    packed = tmp_path / "tiny.json.xz"
    packed.write_bytes(lzma.compress((tmp_path / "tiny.json").read_bytes()))
    assert open_tokenizer(packed).fingerprint() == plain.fingerprint()
    packed.write_bytes(packed.read_bytes()[:-40])
    with pytest.raises(ValueError, match=r"tiny.json.xz is damaged"):
        open_tokenizer(packed)
    words = Words.build(LINES)
    words.save(tmp_path)
    assert open_tokenizer(tmp_path).fingerprint() == words.fingerprint()
    assert open_tokenizer(str(tmp_path / "vocab.json")).fingerprint() == words.fingerprint()


def test_end_mark_and_unknown_of_a_sentencepiece_model(tmp_path):
    tokenizer = open_tokenizer(sentencepiece_model(tmp_path / "tiny.model"))
    assert tokenizer.kind == "sentencepiece"
    assert (tokenizer.token(tokenizer.end), tokenizer.token(tokenizer.unknown)) == ("</s>", "<unk>")
    with pytest.raises(ValueError, match="damaged or is not a SentencePiece model"):
        SentencePieces(b"no model")


def test_error_if_sentencepiece_is_not_installed(tmp_path, monkeypatch):
    (tmp_path / "tiny.model").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with pytest.raises(ValueError, match=r"bighmm\[sentencepiece\]"):
        open_tokenizer(tmp_path / "tiny.model")


def changed(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_a_vocabulary_with_an_endless_gap(tmp_path):
    path = bpe(tmp_path / "tokenizer.json")
    content = json.loads(path.read_text())
    content["model"]["vocab"]["the"] = 2**32 - 1
    changed(path, model=content["model"], added_tokens=content["added_tokens"])
    with pytest.raises(ValueError, match="has the id 4294967295 but only"):
        open_tokenizer(path)


@pytest.mark.parametrize("end", [3, [], {"content": 3}, "none"], ids=str)
def test_an_end_mark_that_is_none(tmp_path, end):
    bpe(tmp_path / "tokenizer.json")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": end}))
    with pytest.raises(ValueError, match=r"eos_token must be|has no end mark"):
        load_tokenizer(tmp_path)


def replace(pattern, content, kind="String"):
    return {"type": "Replace", "pattern": {kind: pattern}, "content": content}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"normalizer": [replace("a", "aa")] * 40}, "more than 1024 times longer"),
        ({"normalizer": [replace("", "x", "Regex")] * 40}, "more than 1024 times longer"),
        ({"normalizer": [replace("a", "a" * 9000)]}, "more than 1024 times longer"),
        ({"normalizer": [{"type": "ByteLevel"}] * 40}, "more than 1024 times longer"),
        ({"decoder": [replace("a", "aa")] * 40}, "more than 1024 times longer"),
        ({"normalizer": [{"type": "Prepend", "prepend": "x" * 9000}]}, "characters before a text"),
        ({"normalizer": [{"type": "NFC"}] * 300}, "more than 256 steps"),
    ],
    ids=range(7),
)
def test_steps_that_make_a_text_longer(tmp_path, changes, reason):
    path = bpe(tmp_path / "tokenizer.json")
    for part, steps in changes.items():
        changed(path, **{part: {"type": "Sequence", f"{part}s": steps}})
    with pytest.raises(ValueError, match=rf"tokenizer\.json cannot be used: .*{reason}"):
        open_tokenizer(path)


def test_steps_that_are_usual(tmp_path):
    path = bpe(tmp_path / "tokenizer.json")
    steps = [{"type": "Prepend", "prepend": "▁"}, replace(" ", "▁"), replace(" {2,}", " ", "Regex")]
    changed(path, normalizer={"type": "Sequence", "normalizers": steps})
    assert open_tokenizer(path).size


def test_what_the_library_refuses_in_use(tmp_path):
    words = tokenizers.models.WordLevel({"a": 0, "</s>": 1}, unk_token="[UNK]")
    made = Subwords(tokenizers.Tokenizer(words).to_str().encode())
    with pytest.raises(ValueError, match="the tokenizer cannot encode a text: "):
        made.encode("other")


def test_errors_of_missing_and_damaged_files(tmp_path):
    with pytest.raises(ValueError, match="no tokenizer in"):
        load_tokenizer(tmp_path)
    with pytest.raises(ValueError, match="does not exist"):
        open_tokenizer(tmp_path / "none.json")
    (tmp_path / "merges.txt").write_text("a b")
    with pytest.raises(ValueError, match=r"merges.txt is of an unknown kind"):
        open_tokenizer(tmp_path / "merges.txt")
    for content, message in [
        ("{", "not JSON"),
        ("[]", "no JSON object"),
        ('{"a": 1}', "not a file of the tokenizers library"),
        ("[" * 100_000, "nested more than"),
        ('{"kind": "words"}', "has no field 'words'"),
        ('{"kind": "words", "words": [1]}', "words = [1] is not of the kind list of str"),
        ('{"kind": "words", "words": ["a"], "counts": ["x"]}', "counts = ['x'] is not"),
        ('{"kind": "words", "words": ["a"], "counts": [-1]}', "counts = [-1] is not"),
        ('{"kind": "words", "words": ["a"], "lowercase": 1}', "lowercase = 1 is not of the kind"),
        ('{"kind": "words", "words": ["a"], "lowercased": true}', "did you mean 'lowercase'"),
        ('{"kind": "words", "words": ["a"]}', "lacks <eos>"),
    ]:
        (tmp_path / "vocab.json").write_text(content)
        with pytest.raises(ValueError, match=r"vocab.json") as error:
            load_tokenizer(tmp_path)
        assert message in str(error.value) and "\n" not in str(error.value)


def test_the_vocabulary_file_is_plain_json_in_utf_8(tmp_path):
    Words.build(["naïve café"]).save(tmp_path)
    text = (tmp_path / "vocab.json").read_text(encoding="utf-8")
    assert '"naïve"' in text
    assert set(json.loads(text)) == {"kind", "split", "lowercase", "words", "counts"}
