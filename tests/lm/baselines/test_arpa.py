"""ARPA files: their vocabulary, names that mean something there, packed and hostile files."""

import gzip
import json
import lzma
import math
import resource
import subprocess
import sys

import numpy as np
import pytest

from bighmm.data.tokenizers import Words
from bighmm.lm.baselines import arpa
from bighmm.lm.baselines.arpa import read_arpa, read_arpa_with_words, write_arpa
from bighmm.lm.baselines.kneser_ney import KneserNey
from bighmm.lm.baselines.ngram import NgramLM
from bighmm.lm.opening import open_model
from bighmm.lm.options import NgramOptions

WORDS = ["<eos>", "<unk>", "the", "naïve", "cat"]
IDS = np.array([2, 4, 0, 2, 3, 4, 0, 1, 2, 4, 3, 0, 4, 0])
KENLM = """\\data\\
ngram 1=5
ngram 2=4

\\1-grams:
-0.9\t<unk>\t0
0\t<s>\t-0.3
-0.6\t</s>\t0
-0.5\tcat\t-0.2
-0.4\tthe\t-0.1

\\2-grams:
-0.2\tcat </s>
-0.1\t<s> the
-0.3\tthe cat
-1.1\tthe <unk>

\\end\\
"""


@pytest.fixture
def lm():
    return NgramLM(NgramOptions(order=3), KneserNey.fit(IDS, 5, 0, 3), Words(WORDS))


@pytest.fixture
def kenlm(tmp_path):
    path = tmp_path / "kenlm.arpa"
    path.write_text(KENLM)
    return path


@pytest.mark.parametrize("name", ["lm.arpa", "lm.arpa.gz", "lm.arpa.xz"])
def test_a_model_and_back(lm, tmp_path, name):
    """Words and their ids stay, so figures compare."""
    lm.to_arpa(tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    unpack = {"gz": gzip.decompress, "xz": lzma.decompress}.get(name[-2:], bytes)
    assert unpack((tmp_path / name).read_bytes()).startswith(b"\\data\\\nngram 1=6\n")
    read = NgramLM.from_arpa(tmp_path / name)
    assert read.tokenizer.words == WORDS and read.options.order == 3
    assert read.tokenizer.fingerprint() == lm.tokenizer.fingerprint()
    np.testing.assert_allclose(read.model.log_probs(IDS), lm.model.log_probs(IDS), atol=1e-6)
    read.save_pretrained(tmp_path / "model")
    again = open_model(str(tmp_path / "model"))
    np.testing.assert_array_equal(again.model.log_probs(IDS), read.model.log_probs(IDS))


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress])
def test_a_packed_file_of_another_name(kenlm, pack):
    kenlm.write_bytes(pack(kenlm.read_bytes()))
    with pytest.raises(ValueError, match=r"it is packed, so its name must end in .gz or .xz"):
        read_arpa_with_words(kenlm)


def test_the_vocabulary_of_a_file(kenlm):
    model, words = read_arpa_with_words(kenlm)
    assert words == ["<unk>", "<eos>", "cat", "the"] and model.end == 1
    lm = NgramLM.from_arpa(kenlm)
    scores = model.log_probs(np.array(lm.encode("the cat\nthe dog\n")[:-1])) / math.log(10)
    np.testing.assert_allclose(scores, [-0.1, -0.3, -0.2, -0.1, -1.1])
    assert lm.perplexity(lm.encode("cat the cat\n")).perplexity < 100


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (KENLM.replace("<unk>", "<UNK>"), ["<unk>", "<eos>", "cat", "the"]),
        (KENLM.replace("<unk>", "dog"), ["dog", "<eos>", "cat", "the", "<unk>"]),
        (KENLM.replace("</s>", "."), ["<unk>", ".", "cat", "the", "<eos>"]),
        (KENLM.replace("cat", "<eos>"), ["<unk>", "<eos>", "<eos>_", "the"]),
        (
            KENLM.replace("<s>", "dog").replace("0\tdog", "-1\tdog"),
            ["<unk>", "dog", "<eos>", "cat", "the"],
        ),
    ],
    ids=["UNK", "no unk", "no end", "eos is a word", "no start"],
)
def test_marks_of_a_file(tmp_path, text, words):
    """Those that it lacks have probability zero."""
    (tmp_path / "lm.arpa").write_text(text)
    model, found = read_arpa_with_words(tmp_path / "lm.arpa")
    assert found == words
    probs = model.next_probs([])
    lacking = {"<unk>"} if "dog" in text and "<unk>" not in text else set()
    lacking |= {"<eos>"} if "</s>" not in text else set()
    assert {word for word, prob in zip(found, probs, strict=True) if prob == 0} == lacking


@pytest.mark.parametrize("unknown", [1, None])
def test_words_that_are_called_like_marks(tmp_path, unknown):
    words = ["<eos>", "[UNK]", "<s>", "</s>", "<s>_", "<unk>"]
    model = KneserNey.fit(np.array([2, 3, 0, 4, 1, 2, 5, 0, 3, 2, 0]), 6, 0, 2)
    path = tmp_path / "lm.arpa"
    write_arpa(model, path, words, unknown)
    names = [line.split("\t")[1] for line in path.read_text().splitlines()[5:12]]
    rest = ["[UNK]", "<unk>"] if unknown is None else ["<unk>", "<unk>_"]
    assert names == ["</s>", rest[0], "<s>__", "</s>_", "<s>_", rest[1], "<s>"]
    read = read_arpa(path, words, 0, unknown)
    test = np.array([2, 2, 3, 5, 0, 4, 1, 0])
    np.testing.assert_allclose(read.log_probs(test), model.log_probs(test), atol=1e-6)


def test_the_vocabulary_of_a_text_with_marks(tmp_path):
    """As people prepare texts for other programs; the words come back."""
    words = Words.build(["<s> the cat </s>", "<s> the <s>_ </s>"] * 3)
    ids = [id for line in words.encode_lines(["<s> the cat </s>", "<s> <s>_ </s>"]) for id in line]
    model = KneserNey.fit(np.array(ids), words.size, words.end, 3)
    lm = NgramLM(NgramOptions(order=3), model, words)
    lm.to_arpa(tmp_path / "lm.arpa")
    read = NgramLM.from_arpa(tmp_path / "lm.arpa")
    assert read.tokenizer.words == words.words and "<s>" in words.words
    np.testing.assert_allclose(read.model.log_probs(ids), model.log_probs(ids), atol=1e-6)


def test_a_vocabulary_with_marks_that_a_file_does_not_predict(kenlm):
    """As a subword tokenizer's, whose `<s>` is a token that no text holds."""
    words = ["<unk>", "<s>", "</s>", "cat", "the"]
    model = read_arpa(kenlm, words, end=2, unknown=0)
    probs = model.next_probs([4])
    np.testing.assert_allclose(np.log10(probs[3]), -0.3)
    assert probs[1] == 0 and (probs[[0, 2, 3, 4]] > 0).all()
    closed = KENLM.replace("5\n", "4\n", 1).replace("2=4", "2=3")
    closed = closed.replace("-0.9\t<unk>\t0\n", "").replace("-1.1\tthe <unk>\n", "")
    kenlm.write_text(closed)
    assert read_arpa(kenlm, words, 2, 0).next_probs([])[0] == 0
    with pytest.raises(ValueError, match="the word dog is not among the 1-grams above"):
        read_arpa(kenlm, [*words, "dog"], 2, 0)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("cat\t", "c\xa0t\t", "has a space in it"),
        ("-0.5\tcat", "-0.5\tthe", "the 1-gram the is there twice"),
        ("the cat", "the dog", "the word dog is not in the vocabulary"),
        ("-0.5\tcat", "-0.5\t" + "c" * 1000, "words are more than 0 MiB"),
        ("ngram 2=4\n", "".join(f"ngram {n}=0\n" for n in range(2, 99)), "higher order than 64"),
    ],
)
def test_refusals(kenlm, monkeypatch, old, new, message):
    monkeypatch.setattr(arpa, "MOST_WORDS", 1000)
    kenlm.write_text(KENLM.replace(old, new, 1))
    with pytest.raises(ValueError, match=message) as error:
        read_arpa_with_words(kenlm)
    assert "\n" not in str(error.value) and str(kenlm) in str(error.value)


def test_words_that_are_not_utf8(kenlm):
    kenlm.write_bytes(KENLM.encode().replace(b"cat", b"c\xfft"))
    with pytest.raises(ValueError, match="line 9: the word c�t is not UTF-8"):
        read_arpa_with_words(kenlm)


@pytest.mark.parametrize(("at_once", "again"), [(2, 1), (2, 3), (1 << 16, 1)])
def test_n_grams_in_parts(tmp_path, monkeypatch, at_once, again):
    """However many are read at once; one that is there twice is found, wherever it stands."""
    ids = np.random.default_rng(0).integers(0, 5, 200)
    model = KneserNey.fit(ids, 5, 0, 3)
    path = tmp_path / "lm.arpa"
    write_arpa(model, path, WORDS)
    monkeypatch.setattr(arpa, "N_GRAMS_AT_ONCE", at_once)
    read, _ = read_arpa_with_words(path)
    np.testing.assert_array_equal(read.levels[2].keys, model.levels[2].keys)
    np.testing.assert_allclose(read.log_probs(ids), model.log_probs(ids), atol=1e-6)
    lines = path.read_text().splitlines()
    place = lines.index("\\2-grams:")
    lines[place + 1 + again] = lines[place + 1]
    path.write_text("\n".join(lines))
    with pytest.raises(ValueError, match="n-gram twice"):
        read_arpa_with_words(path)


def test_a_packed_file_that_repeats_an_n_gram_without_end(tmp_path):
    """The memory that reading it takes does not grow with what it unpacks to."""
    head = KENLM.partition("\\2-grams:")[0].replace("2=4", f"2={10**15}").encode()
    path = tmp_path / "bomb.arpa.gz"
    path.write_bytes(gzip.compress(head + b"\\2-grams:\n" + b"-0.1 <s> the\n" * 3_000_000))
    assert path.stat().st_size < 200_000
    code = (
        "import resource, sys\nfrom bighmm.lm.baselines.arpa import read_arpa_with_words\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        f"try: read_arpa_with_words({str(path)!r})\nexcept ValueError as error: print(error)\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    said, grown = done.stdout.splitlines()
    assert "above it is an n-gram twice" in said
    assert int(grown) * 1024 < 2**26 * (resource.getpagesize() // 4096)


@pytest.mark.parametrize(
    ("before", "message"),
    [
        (b"\n" * 20_000, "line 10001: it has more than 10,000 empty lines"),
        (b"# words\n" * 20_000, r"line 10001: there is no .data. in the 10,000 lines up to here"),
    ],
    ids=["empty", "comments"],
)
def test_a_file_that_does_not_begin(tmp_path, before, message):
    path = tmp_path / "late.arpa.gz"
    path.write_bytes(gzip.compress(before[: len(before) // 4] + KENLM.encode()))
    read_arpa_with_words(path)
    path.write_bytes(gzip.compress(before + KENLM.encode()))
    with pytest.raises(ValueError, match=message):
        read_arpa_with_words(path)


class TestCommand:
    @pytest.fixture
    def run(self, lm, tmp_path):
        lm.save_pretrained(tmp_path / "run" / "model")
        return tmp_path / "run"

    def test_there_and_back(self, run, ask, bighmm, tmp_path):
        file, folder = tmp_path / "lm.arpa.gz", tmp_path / "imported"
        found = ask("arpa", "export", run, "--out", file)
        assert found["order"] == 3 and found["vocabulary"] == 5 and found["n_grams"][0] == 6
        said = bighmm("arpa", "import", file, "--out", folder)
        assert said.status == 0 and "5 words" in said.out and str(folder) in said.out
        lines = ask("score", folder, stdin=b"the cat\n")["lines"]
        expected = ask("score", run, stdin=b"the cat\n")["lines"]
        assert lines[0]["log_prob"] == pytest.approx(expected[0]["log_prob"], abs=1e-6)
        with_own = tmp_path / "own"
        ask("arpa", "import", file, "--out", with_own, "--tokenizer", run)
        assert json.loads((with_own / "vocab.json").read_text())["words"] == WORDS

    def test_lines_of_probability_zero(self, kenlm, ask, tmp_path):
        kenlm.write_text(KENLM.replace("<unk>", "dog"))
        ask("arpa", "import", kenlm, "--out", tmp_path / "model")
        (line,) = ask("score", tmp_path / "model", stdin=b"the bird\n")["lines"]
        assert line["log_prob"] is None and line["tokens"] == 3

    @pytest.mark.parametrize(
        ("words", "said"),
        [
            (["export", "RUN", "--out", "RUN"], "already exists; choose another --out"),
            (["import", "KENLM", "--out", "RUN"], "already exists; choose another --out"),
            (["export", "RUN", "--out", "NEW/lm.arpa"], "there is no folder"),
            (["export", "RUN", "--out", "NEW", "--tokenizer", "RUN"], "--tokenizer is for import"),
            (["import", "RUN", "--out", "NEW"], "cannot be read: it is not a regular file"),
            (["import", "KENLM", "--out", "NEW", "--tokenizer", "RUN"], "naïve is not among"),
        ],
    )
    def test_mistakes(self, run, kenlm, bighmm, tmp_path, words, said):
        places = {"RUN": run, "KENLM": kenlm, "NEW": tmp_path / "new"}
        named = [str(places.get(word, word)).replace("NEW", str(places["NEW"])) for word in words]
        done = bighmm("arpa", *named)
        assert done.status == 2 and said in done.err and done.err.count("\n") == 1
        assert not places["NEW"].exists()

    def test_other_models(self, bighmm, tmp_path):
        from bighmm.lm.baselines import find

        kind = find("lstm")
        kind.model(kind.options(width=4), Words(WORDS), 1).save_pretrained(tmp_path / "lstm")
        done = bighmm("arpa", "export", tmp_path / "lstm", "--out", tmp_path / "lm.arpa")
        assert done.status == 2 and "is not an n-gram model, so it has no ARPA file" in done.err
