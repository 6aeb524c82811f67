"""Corpora: layouts of sources, files that are written, the cache, and errors."""

import hashlib
import itertools
import json
import lzma
import os
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest
import tokenizers

from bighmm.base import verified
from bighmm.base.files import write_json, write_sealed
from bighmm.base.json_files import read_object
from bighmm.base.locks import locked_name, temporary_name
from bighmm.data import corpus as corpora
from bighmm.data.clusters import brown_clusters
from bighmm.data.corpus import describe, is_prepared, open_corpus, prepare, write_corpus
from bighmm.data.tokenizers import Words

PTB = {"train": "a b\na <unk>\nc c b\n", "valid": "b a\n", "test": "c\nz\n"}
WIKI_TRAIN = """ \n = First article = \n \n Some text here . \n \n = = A section = = \n
 more text \n = 3 rows = \n \n = Second = \n \n Last text . \n"""


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setenv("BIGHMM_CACHE", str(folder))
    return folder


def write(folder, files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        content = text.encode()
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(lzma.compress(content) if name.endswith(".xz") else content)
    return folder


def ptb(folder):
    names = {"train": "ptb.train.txt.xz", "valid": "ptb.valid.txt", "test": "ptb.test.txt"}
    return write(folder, {names[split]: text for split, text in PTB.items()})


def texts(corpus, name):
    """The documents of a split, as text."""
    ids, bounds = corpus.split(name), corpus.documents(name)
    assert bounds[0] == 0 and bounds[-1] == len(ids) and (np.diff(bounds) > 0).all()
    return [corpus.tokenizer.decode(ids[a:b]) for a, b in itertools.pairwise(bounds)]


def test_prepare_the_penn_treebank(tmp_path):
    corpus = prepare(ptb(tmp_path / "ptb"))
    assert texts(corpus, "train") == ["a b\n", "a <unk>\n", "c c b\n"]
    assert texts(corpus, "test") == ["c\n", "<unk>\n"]
    assert sorted(corpus.tokenizer.words) == ["<eos>", "<unk>", "a", "b", "c"]
    ids = corpus.split("train")
    assert isinstance(ids, np.memmap) and ids.dtype == np.uint16 and ids.ndim == 1
    assert corpus.documents("train").dtype == np.int64
    with pytest.raises(ValueError, match="no split 'dev'"):
        corpus.split("dev")


def test_prepare_wikitext(tmp_path):
    files = {"wiki.train.tokens": WIKI_TRAIN, "wiki.valid.tokens.xz": " = V = \n \n text \n"}
    corpus = prepare(write(tmp_path / "wiki", files | {"wiki.test.tokens": " = T = \n \n \n"}))
    assert texts(corpus, "train") == [
        "\n= First article =\n\nSome text here .\n\n= = A section = =\n\nmore text\n= 3 rows =\n\n",
        "= Second =\n\nLast text .\n",
    ]
    assert texts(corpus, "valid") == ["= <unk> =\n\ntext\n"]
    lines = WIKI_TRAIN.count("\n")
    assert corpus.manifest["splits"]["train"]["lines"] == lines
    assert len(corpus.split("train")) == len(WIKI_TRAIN.split()) + lines


def test_prepare_raw_text_with_splits(tmp_path):
    train = "\ufeffOne line, here.\r\nTwo lines here.\r\n\r\n\r\nThree.\n  \nFour, here\n"
    files = {"train.txt.xz": train, "valid.txt": "One.", "test.txt": "Two\n\nOne"}
    corpus = prepare(write(tmp_path / "web", files), min_count=1)
    assert texts(corpus, "train") == [
        "One line, here.\nTwo lines here.\n",
        "Three.\n",
        "Four, here\n",
    ]
    assert texts(corpus, "test") == ["Two\n", "One\n"]
    assert "line" in corpus.tokenizer.words and "Two" in corpus.tokenizer.words


def test_without_blank_lines_each_line_of_raw_text_is_a_document(tmp_path):
    files = {"train.txt": "a b\nb a\na\n", "valid.txt": "a\nb\n", "test.txt": "b\n"}
    corpus = prepare(write(tmp_path / "web", files))
    assert texts(corpus, "train") == ["a b\n", "b a\n", "a\n"]
    assert texts(corpus, "valid") == ["a\n", "b\n"]


@pytest.mark.parametrize("blank", [True, False])
def test_a_single_file_is_divided_by_position(tmp_path, blank):
    path = tmp_path / "book.txt"
    path.write_text(("\n\n" if blank else "\n").join(f"word {i:03d}" for i in range(100)))
    corpus = prepare(path, min_count=1, valid_fraction=0.1, test_fraction=0.05)
    counts = {name: corpus.manifest["splits"][name]["documents"] for name in corpora.SPLITS}
    assert counts == {"train": 85, "valid": 10, "test": 5}
    assert texts(corpus, "train")[-1] == "word 084\n"
    assert texts(corpus, "valid")[0] == "word <unk>\n"  # the vocabulary has words of train only
    other = prepare(path, min_count=1)
    assert other.folder != corpus.folder and other.manifest["splits"]["test"]["documents"] == 5


def test_every_split_has_at_least_one_document(tmp_path):
    (tmp_path / "long.txt").write_text("a b\n\na\n\n" + "a b " * 1000)
    corpus = prepare(tmp_path / "long.txt", min_count=1)
    assert [len(corpus.documents(name)) - 1 for name in corpora.SPLITS] == [1, 1, 1]
    (tmp_path / "short.txt").write_text("a a\nb b\n")
    with pytest.raises(ValueError, match=r"short.txt has 2 lines of text; at least 3"):
        prepare(tmp_path / "short.txt")


def test_prepare_a_folder_of_text_files(tmp_path):
    files = {
        "b.txt": "second file\n",
        "a/one.md": "first file\nstill the first\n",
        "c.txt.xz": "third\n\nfourth",
        ".hidden/x.txt": "hidden",
        "d.bin": "\0",
    }
    corpus = prepare(write(tmp_path / "many", files), min_count=1, lowercase=True)
    assert texts(corpus, "train") == ["first file\nstill the first\n", "second file\n"]
    names = [file["name"] for file in corpus.manifest["source"]["files"]]
    assert names == ["a/one.md", "b.txt", "c.txt.xz"]


def test_a_second_call_opens_the_cached_corpus(tmp_path, monkeypatch):
    source = ptb(tmp_path / "ptb")
    first = prepare(source)
    stamps = {path: path.stat().st_mtime_ns for path in first.folder.iterdir()}

    def fail(*_):
        raise AssertionError("encoded again")

    monkeypatch.setattr(corpora, "encode_source", fail)
    again = prepare(str(source))
    assert again.folder == first.folder and again.fingerprint == first.fingerprint
    assert stamps == {path: path.stat().st_mtime_ns for path in first.folder.iterdir()}
    for settings in ({"min_count": 2}, {"lowercase": True}, {"max_size": 4}, {"split": "words"}):
        with pytest.raises(AssertionError, match="encoded again"):
            prepare(source, **settings)
    (source / "ptb.valid.txt").write_text("a a\n")
    with pytest.raises(AssertionError, match="encoded again"):
        prepare(source)


def test_the_cache_folder_is_an_argument(tmp_path, cache):
    corpus = prepare(ptb(tmp_path / "ptb"), cache=tmp_path / "elsewhere")
    assert corpus.folder.parent == tmp_path / "elsewhere" and not cache.exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"cache folder .* cannot be written"):
        prepare(tmp_path / "ptb", cache=tmp_path / "file" / "below")


def test_a_failure_leaves_no_files(tmp_path, cache, monkeypatch):
    source = ptb(tmp_path / "ptb")
    encode = Words.encode_lines

    def fail(self, lines):
        if "b a" in lines:
            raise RuntimeError("in the middle")
        return encode(self, lines)

    with monkeypatch.context() as patch:
        patch.setattr(Words, "encode_lines", fail)
        with pytest.raises(RuntimeError, match="in the middle"):
            prepare(source)
    assert list(cache.iterdir()) == []
    (source / "ptb.test.txt").write_bytes(b"a\n\xff\n")
    with pytest.raises(ValueError, match="not UTF-8"):
        prepare(source)
    assert list(cache.iterdir()) == []


def test_a_killed_process_leaves_no_corpus(tmp_path, cache):
    source = ptb(tmp_path / "ptb")
    code = """
        import os, sys
        from bighmm.data import corpus
        from bighmm.data.tokenizers import Words
        Words.save = lambda self, folder: os._exit(9)
        corpus.prepare(sys.argv[1])
    """
    killed = subprocess.run([sys.executable, "-c", textwrap.dedent(code), source])
    assert killed.returncode == 9
    assert all(path.name.startswith(".") for path in cache.iterdir())
    assert any(path.is_dir() for path in cache.iterdir())  # with what it had written
    assert list(cache.iterdir()) != [prepare(source).folder] == list(cache.iterdir())


def test_another_process_may_write_the_same_corpus_first(tmp_path, monkeypatch):
    source = ptb(tmp_path / "ptb")
    first = prepare(source, cache=tmp_path / "one")
    encode_source = corpora.encode_source

    def slow(folder, *rest):
        encode_source(folder, *rest)
        first.folder.rename(folder.parent / first.folder.name)

    monkeypatch.setattr(corpora, "encode_source", slow)
    again = prepare(source, cache=tmp_path / "two")
    assert again.fingerprint == first.fingerprint
    assert list((tmp_path / "two").iterdir()) == [again.folder]


def test_errors_name_the_damaged_file(tmp_path):
    source = ptb(tmp_path / "ptb")
    folder = prepare(source).folder
    assert open_corpus(folder, verify=True).folder == folder

    def damaged(name, content, message, **options):
        path = folder / name
        original = path.read_bytes()
        if content is None:
            path.unlink()
        else:
            path.write_bytes(content)
        with pytest.raises(ValueError, match=message) as error:
            open_corpus(folder, **options)
        assert "\n" not in str(error.value)
        path.write_bytes(original)

    manifest = read_object(folder / "manifest.json")
    tokens = (folder / "train.bin").read_bytes()
    damaged("manifest.json", None, "not a prepared corpus; it has no manifest.json")
    damaged("manifest.json", b"{", "manifest.json is damaged")
    damaged("manifest.json", b"[]", "manifest.json is damaged")
    damaged("manifest.json", b'{"format": 1}', "manifest.json is damaged")
    damaged("manifest.json", json.dumps(manifest | {"format": 0}).encode(), "is of format 0")
    damaged("train.bin", tokens[:-1], "train.bin is damaged: it has")
    damaged("train.bin", tokens[2:] + tokens[:2], "train.bin is damaged: its sha256 is not")
    damaged("valid.bin", None, "lacks valid.bin")
    damaged("test.documents.bin", b"", "test.documents.bin is damaged")
    damaged("vocab.json", b"{", "vocab.json is damaged")
    damaged("vocab.json", None, "no tokenizer in")
    other = (folder / "vocab.json").read_bytes().replace(b'"c"', b'"d"')
    damaged("vocab.json", other, "not the one the corpus was encoded with")
    # prepare writes a damaged folder of the cache again
    (folder / "train.bin").write_bytes(tokens[:-1])
    assert (prepare(source).folder / "train.bin").read_bytes() == tokens


@pytest.mark.parametrize(
    "change",
    [
        {"dtype": "O"},
        {"dtype": "<u4"},
        {"dtype": ">u2"},
        {"dtype": ["<u2"]},
        {"splits": {}},
        {"splits": 3},
        {"source": {}},
        {"settings": 1},
        {"tokenizer": {"kind": "words", "size": 10**9, "fingerprint": "x"}},
        {"more": 1},
    ],
    ids=str,
)
@pytest.mark.parametrize("sealed", [True, False])
def test_a_manifest_with_another_value(tmp_path, change, sealed):
    folder = prepare(ptb(tmp_path / "ptb")).folder
    write_manifest(folder, corpora.open_corpus(folder).manifest | change, sealed)
    with pytest.raises(ValueError, match="; prepare the corpus again") as error:
        open_corpus(folder)
    assert "\n" not in str(error.value)


def write_manifest(folder, manifest, sealed=True):
    (write_sealed if sealed else write_json)(folder / "manifest.json", manifest)


@pytest.mark.parametrize("field", ["tokens", "lines", "documents", "unknown", "sha256"])
@pytest.mark.parametrize("value", [-1, 10**12, 2.5, True, None, "x", [], 10**400], ids=str)
def test_a_split_with_another_value(tmp_path, field, value):
    folder = prepare(ptb(tmp_path / "ptb")).folder
    manifest = open_corpus(folder).manifest
    manifest["splits"]["train"][field] = value
    write_manifest(folder, manifest)
    if value != 10**12 or field in ("tokens", "documents", "sha256"):  # others are only shown
        with pytest.raises(ValueError, match="; prepare the corpus again"):
            open_corpus(folder)


@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        ("train.bin", [0, 1, 2, 3, 5, 0, 1, 2, 3, 4]),  # there are five words
        ("train.documents.bin", [0, 3, 2, 10]),
        ("train.documents.bin", [1, 3, 6, 10]),
        ("train.documents.bin", [0, 3, 6, 9]),
        ("train.documents.bin", [0, -3, 6, 10]),
        ("train.documents.bin", [0, 3, 2**60, 10]),
    ],
)
def test_numbers_are_checked_even_if_their_hash_is_right(tmp_path, name, numbers):
    folder = prepare(ptb(tmp_path / "ptb")).folder
    manifest = open_corpus(folder).manifest
    content = np.array(numbers, "<u2" if name == "train.bin" else "<i8").tobytes()
    assert len(content) == (folder / name).stat().st_size
    (folder / name).write_bytes(content)
    key = "sha256" if name == "train.bin" else "documents_sha256"
    manifest["splits"]["train"][key] = hashlib.sha256(content).hexdigest()
    write_manifest(folder, manifest)
    with pytest.raises(ValueError, match=f"{name} is damaged: it .*; prepare the corpus again"):
        open_corpus(folder)


def test_files_are_read_once_unless_they_change(tmp_path, monkeypatch):
    folder = prepare(ptb(tmp_path / "ptb")).folder
    checked, check = [], verified._check
    monkeypatch.setattr(verified, "_check", lambda p, *rest: (checked.append(p), check(p, *rest)))
    open_corpus(folder)
    open_corpus(folder)
    assert len(checked) == 12  # they are new, and may change within the same time stamp
    monkeypatch.setattr(verified, "SETTLED", 0.0)
    open_corpus(folder)
    checked.clear()
    open_corpus(folder)
    assert checked == []
    open_corpus(folder, verify=True)
    assert len(checked) == 6
    path, content = folder / "train.bin", (folder / "train.bin").read_bytes()
    path.write_bytes(content[2:] + content[:2])
    os.utime(path, ns=(0, 0))
    with pytest.raises(ValueError, match=r"train\.bin is damaged"):
        open_corpus(folder)


def test_a_line_without_end(tmp_path):
    """Of text whose lines are sentences; raw text is cut into sentences."""
    folder = ptb(tmp_path / "ptb")
    (folder / "ptb.train.txt.xz").write_bytes(lzma.compress(b"a" * (1 << 25)))
    with pytest.raises(ValueError, match=r"line 1 of .*\.txt\.xz is longer than 16,777,216 bytes"):
        prepare(folder)


def test_content_of_the_manifest(tmp_path):
    corpus = prepare(ptb(tmp_path / "ptb"))
    manifest = read_object(corpus.folder / "manifest.json")
    assert manifest == corpus.manifest
    train = manifest["splits"]["train"]
    assert (train["tokens"], train["lines"], train["documents"], train["unknown"]) == (10, 3, 3, 1)
    assert manifest["splits"]["test"]["unknown"] == 1
    assert manifest["settings"]["min_count"] == 1 and manifest["dtype"] == "<u2"
    assert manifest["tokenizer"]["fingerprint"] == corpus.tokenizer.fingerprint()
    file = manifest["source"]["files"][0]
    assert file["name"] == "ptb.train.txt.xz" and len(file["sha256"]) == 64 and file["bytes"] > 0
    assert str(tmp_path) not in json.dumps(manifest)


def test_describe_gives_figures_as_json(tmp_path):
    figures = describe(prepare(ptb(tmp_path / "ptb")), most=2)
    assert json.loads(json.dumps(figures)) == figures
    assert figures["most_frequent"] == [{"token": "<eos>", "count": 3}, {"token": "a", "count": 2}]
    assert figures["splits"]["train"]["longest_line"] == 3
    assert figures["splits"]["test"]["unknown_rate"] == 0.25
    assert figures["tokenizer"]["size"] == 5 and figures["source"]["kind"] == "ptb"


def test_prepare_with_a_tokenizer_file(tmp_path):
    vocabulary = {"</s>": 0, "[UNK]": 1, "a": 2, "b": 70000}
    model = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    model.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    model.save(str(tmp_path / "words.json"))
    source = ptb(tmp_path / "ptb")
    corpus = prepare(source, tokenizer=tmp_path / "words.json")
    assert corpus.split("train").dtype == np.uint32
    assert corpus.split("train").tolist() == [2, 70000, 0, 2, 1, 0, 1, 1, 70000, 0]
    assert corpus.tokenizer.size == 70001
    assert open_corpus(corpus.folder).fingerprint == corpus.fingerprint
    with pytest.raises(ValueError, match="min_count is for word vocabularies"):
        prepare(source, tokenizer=tmp_path / "words.json", min_count=2)


def documents_of_ids():
    words = Words.build(["a b c d"])
    ids = {"train": [[2, 3, 0], [4, 1]], "valid": [[2]], "test": [[3, 3, 0]]}
    return words, {name: [np.array(d) for d in documents] for name, documents in ids.items()}


def test_write_corpus_from_documents_of_ids(tmp_path):
    words, documents = documents_of_ids()
    corpus = write_corpus(
        tmp_path / "corpus", words, documents, {"kind": "ids", "name": "some ids"}
    )
    for name, expected in documents.items():
        ids, bounds = corpus.split(name), corpus.documents(name)
        found = [ids[a:b].tolist() for a, b in itertools.pairwise(bounds)]
        assert found == [document.tolist() for document in expected]
    assert describe(open_corpus(tmp_path / "corpus", verify=True))["splits"]["train"] == {
        "tokens": 5,
        "lines": 2,
        "documents": 2,
        "unknown_tokens": 0,
        "unknown_rate": 0,
        "longest_line": 2,
    }
    with pytest.raises(ValueError, match="outside the vocabulary; ids are 0 to 5"):
        write_corpus(
            tmp_path / "corpus", words, documents | {"test": [np.array([6])]}, {"name": "wrong"}
        )
    with pytest.raises(ValueError, match="some ids holds no text in valid"):
        write_corpus(tmp_path / "corpus", words, documents | {"valid": []}, {"name": "some ids"})
    assert open_corpus(tmp_path / "corpus").fingerprint == corpus.fingerprint


def test_prepare_only_opens_a_prepared_corpus(tmp_path, cache):
    words, documents = documents_of_ids()
    corpus = write_corpus(
        tmp_path / "corpus", words, documents, {"kind": "ids", "name": "some ids"}
    )
    assert is_prepared(tmp_path / "corpus") and not is_prepared(tmp_path)
    for tokenizer in (None, tmp_path / "corpus"):
        found = prepare(tmp_path / "corpus", tokenizer=tokenizer)
        assert found.folder == tmp_path / "corpus" and found.fingerprint == corpus.fingerprint
    assert not cache.exists()
    with pytest.raises(ValueError, match="prepared corpus and has its vocabulary; leave out min_c"):
        prepare(tmp_path / "corpus", min_count=2)
    with pytest.raises(ValueError, match="has another vocabulary than"):
        prepare(tmp_path / "corpus", tokenizer=prepare(ptb(tmp_path / "ptb")).folder)


def test_a_text_of_several_chunks_is_written_completely(tmp_path):
    lines = [f"w{i % 7} w{i % 11}" for i in range(10_000)]
    source = write(tmp_path / "ptb", {f"ptb.{name}.txt": "\n".join(lines) for name in PTB})
    corpus = prepare(source)
    assert corpus.tokenizer.decode(corpus.split("train")) == "\n".join(lines) + "\n"
    assert len(corpus.documents("train")) == 10_001


def test_errors_of_sources_that_cannot_be_read(tmp_path):
    with pytest.raises(ValueError, match="nowhere does not exist"):
        prepare(tmp_path / "nowhere")
    source = ptb(tmp_path / "ptb")
    (source / "ptb.valid.txt").unlink()
    with pytest.raises(ValueError, match=r"lacks ptb.valid.txt"):
        prepare(source)
    with pytest.raises(ValueError, match=r"lacks valid.txt"):
        prepare(write(tmp_path / "web", {"train.txt": "a\n", "test.txt": "a\n"}))
    (tmp_path / "latin.txt").write_bytes("one\ntwo\ncaf\u00e9 au lait\n".encode("latin-1"))
    with pytest.raises(ValueError, match=r"latin.txt is not UTF-8 text: byte 11 \(line 3\)"):
        prepare(tmp_path / "latin.txt")
    (tmp_path / "cut.txt.xz").write_bytes(lzma.compress(b"a b c\n" * 100)[:-30])
    with pytest.raises(ValueError, match=r"cut.txt.xz is damaged"):
        prepare(tmp_path / "cut.txt.xz")


def test_errors_of_empty_sources(tmp_path):
    for content in ("", "\n \n\n"):
        (tmp_path / "empty.txt").write_text(content)
        with pytest.raises(ValueError, match=r"empty.txt holds no text"):
            prepare(tmp_path / "empty.txt")
    (tmp_path / "folder").mkdir()
    with pytest.raises(ValueError, match="folder holds no text"):
        prepare(tmp_path / "folder")
    source = ptb(tmp_path / "ptb")
    (source / "ptb.test.txt").write_text("")
    with pytest.raises(ValueError, match="holds no text in test"):
        prepare(source)


@pytest.mark.parametrize("fractions", [(0, 0.1), (0.1, 0), (0.5, 0.5), (-0.1, 0.2)])
def test_fractions_must_leave_text_for_every_split(tmp_path, fractions):
    (tmp_path / "a.txt").write_text("a\nb\nc\n")
    with pytest.raises(ValueError, match="valid_fraction is"):
        prepare(tmp_path / "a.txt", valid_fraction=fractions[0], test_fraction=fractions[1])


def test_temporary_folders_of_other_corpora_are_removed(tmp_path, cache):
    """Those of killed processes; those of living ones are locked."""
    cache.mkdir(parents=True, exist_ok=True)
    dead, living = (temporary_name(cache / name) for name in ("text-abc", "text-def"))
    for folder in (dead, living):
        folder.mkdir()
    with locked_name(cache / "text-def"):
        prepare(ptb(tmp_path / "ptb"))
    assert not dead.exists() and living.exists()


@pytest.mark.parametrize("damage", ["missing", "damaged", "empty"])
def test_several_at_a_time_write_one_corpus(tmp_path, monkeypatch, damage):
    """All see that it has to be written; one writes it, and all get it."""
    source = ptb(tmp_path / "ptb")
    folder = prepare(source).folder
    wanted = {path.name: path.read_bytes() for path in folder.iterdir()}
    if damage == "damaged":
        (folder / "train.bin").write_bytes(b"1")
    else:
        for path in folder.iterdir():
            path.unlink()
        if damage == "missing":
            folder.rmdir()
    together, own, opened = threading.Barrier(4), threading.local(), corpora.open_corpus

    def open_together(folder):
        try:
            return opened(folder)
        except ValueError:
            if not hasattr(own, "waited"):
                own.waited = together.wait()
            raise

    encoded, encode_source = [], corpora.encode_source
    monkeypatch.setattr(corpora, "open_corpus", open_together)
    monkeypatch.setattr(corpora, "encode_source", lambda *a: encoded.append(1) or encode_source(*a))
    found = []

    def ask():
        try:
            found.append(prepare(source).split("train").tolist())
        except Exception as error:
            found.append(error)
            together.abort()

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [np.frombuffer(wanted["train.bin"], "<u2").tolist()] * 4
    assert len(encoded) == 1 and list(folder.parent.iterdir()) == [folder]
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == wanted


@pytest.mark.skipif(os.name != "posix", reason="limits the size of files")
@pytest.mark.parametrize("space", [0, 8])
def test_a_full_disk_of_the_cache(tmp_path, cache, space):
    """The sentence names the folder and says what to do."""
    source = ptb(tmp_path / "ptb")
    code = f"""
        import resource, signal, sys
        from bighmm.data.corpus import prepare
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, ({space}, {space}))
        try:
            prepare(sys.argv[1])
        except ValueError as error:
            sys.exit(str(error))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), source], capture_output=True, text=True
    )
    assert done.stderr == (
        f"the cache folder {cache} cannot be written (File too large); make room there, or "
        "set the environment variable BIGHMM_CACHE to another folder\n"
    )
    assert list(cache.iterdir()) == []


def test_a_text_that_cannot_be_read_is_not_taken_for_the_cache(tmp_path, cache, monkeypatch):
    source = ptb(tmp_path / "ptb")

    def fail(*_):
        raise PermissionError(13, "Permission denied", str(source / "ptb.valid.txt"))

    monkeypatch.setattr(corpora, "encode_source", fail)
    with pytest.raises(PermissionError):
        prepare(source)
    assert list(cache.iterdir()) == []


def test_clusters_that_cannot_be_cached(tmp_path, monkeypatch):
    corpus = prepare(ptb(tmp_path / "ptb"))
    wanted = brown_clusters(corpus, 2).classes
    (path,) = corpus.folder.glob("brown.*.paths")
    path.unlink()

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("bighmm.base.files._flush_file", full)
        assert (brown_clusters(corpus, 2).classes == wanted).all() and not path.exists()
    assert (brown_clusters(corpus, 2).classes == wanted).all() and path.exists()
