"""Text without line breaks is cut into sentences; other text stays as it is."""

import lzma

import pytest

from bighmm.base import reading
from bighmm.data.corpus import prepare
from bighmm.data.sentences import LONGEST, WINDOW, are_too_long, sentences
from bighmm.data.whole import encode_whole

WORDS = ["one", "two", "three", "four", "five", "six", "seven"]


def test_sentences():
    line = 'He said "Stop!" and went. Was it 3.5 km? "Yes." (It was.) Then the end'
    assert list(sentences(line)) == [
        'He said "Stop!"',
        "and went.",
        "Was it 3.5 km?",
        '"Yes."',
        "(It was.)",
        "Then the end",
    ]
    assert list(sentences("今日は。明日は！終")) == ["今日は。", "明日は！", "終"]
    assert list(sentences("   ")) == []


def test_windows_where_no_sentence_ends():
    words = [f"w{i}" for i in range(3 * LONGEST)]
    found = list(sentences(" ".join(words)))
    assert all(len(part.split()) <= WINDOW for part in found)
    assert " ".join(found).split() == words
    without_spaces = "x" * 5000
    found = list(sentences(without_spaces))
    assert "".join(found) == without_spaces and max(map(len, found)) <= LONGEST


@pytest.mark.parametrize(
    "lines, cut",
    [
        (["a short line"] * 5, False),
        (["one line"], True),
        (["two", "", "lines"], True),
        ([], False),
        (["word " * 2000] * 10, True),
        (["word " * 200] * 10, False),
    ],
)
def test_which_text_is_cut(lines, cut):
    assert are_too_long(lines) == cut
    assert are_too_long(lines, few=0) == (cut and len(lines) > 3)


@pytest.mark.parametrize("packed", [False, True])
def test_a_file_of_one_line(tmp_path, monkeypatch, bighmm, packed):
    monkeypatch.setattr(reading, "PIECE", 8000)
    monkeypatch.setattr(reading, "MOST_LINE", 9000)  # which pieces do not need
    text = " ".join(f"{WORDS[i % 7]} {WORDS[i * i % 7]} follows." for i in range(1000))
    path = tmp_path / ("one.txt.xz" if packed else "one.txt")
    path.write_bytes(lzma.compress(text.encode()) if packed else text.encode())
    corpus = prepare(path)
    assert corpus.manifest["source"]["cut"] == "sentences"
    lines = sum(corpus.manifest["splits"][s]["lines"] for s in ("train", "valid", "test"))
    assert 1000 <= lines <= 1000 + len(text) // 7000  # some were cut where a piece ends
    words = "".join(corpus.tokenizer.decode(corpus.split(s)) for s in ("train", "valid", "test"))
    assert words.split() == text.split()
    whole = encode_whole(path, corpus.tokenizer)  # whose lines are long, so they are cut, too
    assert len(whole.tokens) == sum(len(corpus.split(s)) for s in ("train", "valid", "test"))
    two = tmp_path / "two.txt"
    two.write_text("one two. three four.\nfive six.\n")
    assert (encode_whole(two, corpus.tokenizer).tokens == corpus.tokenizer.end).sum() == 2
    done = bighmm("data", path)
    assert done.status == 0 and "cut into sentences" in done.out
    small = ("--states", 4, "--blocks", 2, "--width", 4, "--epochs", 0.1)
    done = bighmm("train", "--data", path, *small, "--out", tmp_path / "run")
    assert done.status == 0 and "so its sentences are the lines" in done.err


def test_pieces_end_at_spaces_and_between_characters(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "PIECE", 10)
    path = tmp_path / "a.txt"
    content = "abc defg hijk\nüüüüüüüüü x\nshort\n".encode()
    path.write_bytes(content)
    pieces = list(reading.read_pieces(path))
    assert b"".join(pieces) == content
    for piece in pieces:
        piece.decode()
    assert pieces[0] == b"abc defg"
