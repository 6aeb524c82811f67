"""Labels: nearest centroids, cached results, interrupted runs, and errors."""

import json

import numpy as np
import pytest
import torch

from bighmm.base.files import write_sealed
from bighmm.base.json_files import read_object
from bighmm.data.clusters import brown_clusters
from bighmm.data.corpus import prepare
from bighmm.data.labels import open_labels
from bighmm.distill import labelling
from bighmm.distill.kmeans import nearest
from bighmm.distill.labelling import LabelSettings, make_labels
from bighmm.distill.teachers import RandomTeacher, Reading
from bighmm.model.support import Blocked, Dense

SMALL = LabelSettings(cluster_tokens=900, label_tokens=2000, reading=Reading(32, 16), iterations=10)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    monkeypatch.setattr(labelling, "PIECE", 300)


@pytest.fixture
def teacher(corpus):
    return RandomTeacher(corpus.tokenizer, 8, device=torch.device("cpu"))


def all_vectors(corpus, teacher):
    """The vectors of the whole text, rounded to float16 as in the files."""
    ids = torch.from_numpy(corpus.split("train").astype(np.int64))
    return teacher.hidden(ids.unsqueeze(0))[0].half().float()


def test_every_token_has_the_nearest_centroid(corpus, teacher, tmp_path):
    labels = make_labels(corpus, teacher, 12, SMALL, out=tmp_path / "labels")
    assert {path.name for path in labels.folder.iterdir()} == (
        {"labels.bin", "centroids.safetensors", "manifest.json"}
    )
    assert labels.states.dtype == np.uint16 and len(labels.states) == 2000
    tensors = labels.centroids()
    assert tensors["centroids"].shape == (12, 8) and int(tensors["counts"].sum()) == 900
    wanted, _ = nearest(all_vectors(corpus, teacher)[:2000], tensors["centroids"])
    assert (labels.states == wanted.numpy()).mean() > 0.999  # all except ties
    result = labels.manifest["result"]
    counts = np.bincount(labels.states, minlength=12)
    assert result["used"] == (counts > 0).sum() == 12
    assert result["largest_share"] == pytest.approx(counts.max() / 2000)
    assert result["clustered"] == 900 and result["inertia"] > 0 and result["seconds"] >= 0


def test_later_tokens_have_no_state(corpus, teacher):
    labels = make_labels(corpus, teacher, 5, SMALL)
    assert labels.between(1998, 2003).tolist() == [*labels.states[1998:], -1, -1, -1]
    assert labels.between(2100, 2102).tolist() == [-1, -1]
    assert labels.between(0, 3).tolist() == labels.states[:3].tolist()


def test_all_tokens_can_be_labelled(corpus, teacher):
    settings = LabelSettings(cluster_tokens=900, label_tokens=None, iterations=3)
    there = len(corpus.split("train"))
    assert len(make_labels(corpus, teacher, 4, settings).states) == there
    everything = LabelSettings(iterations=3)  # for more tokens than the corpus has
    labels = make_labels(corpus, teacher, 4, everything)
    assert len(labels.states) == there and labels.manifest["result"]["clustered"] == there


def test_more_tokens_can_be_clustered_than_labelled(corpus, teacher):
    settings = LabelSettings(cluster_tokens=1000, label_tokens=10, iterations=3)
    labels = make_labels(corpus, teacher, 20, settings)
    assert len(labels.states) == 10 and labels.manifest["result"]["clustered"] == 1000


def test_clustered_pieces_are_evenly_distributed(corpus):
    plan = labelling._Plan.of(corpus, Dense(3, corpus.tokenizer.size), SMALL, 8)
    assert plan.bounds[:2] == [(0, 300), (300, 600)] and plan.bounds[-1] == (1800, 2000)
    assert plan.clustered == [0, 2, 4]


def test_labels_from_principal_components(corpus, teacher):
    settings = LabelSettings(pca=3, cluster_tokens=900, label_tokens=500, iterations=5)
    labels = make_labels(corpus, teacher, 6, settings)
    found = labels.centroids()
    assert found["centres"].shape == (6, 3) and found["pca.components"].shape == (3, 8)
    restored = found["centres"] @ found["pca.components"] + found["pca.mean"]
    torch.testing.assert_close(found["centroids"], restored)
    x = all_vectors(corpus, teacher)[:500]
    wanted, _ = nearest((x - found["pca.mean"]) @ found["pca.components"].T, found["centres"])
    assert (labels.states == wanted.numpy()).mean() > 0.99
    assert 0 < labels.manifest["result"]["variance_kept"] < 1


def test_labels_of_a_blocked_model(corpus, teacher):
    classes = torch.from_numpy(brown_clusters(corpus, 5).classes.astype(np.int64))
    support = Blocked.of(classes, 20)
    labels = make_labels(corpus, teacher, support, SMALL)
    tokens = corpus.split("train")[:2000]
    assert (labels.states // 4 == classes.numpy()[tokens]).all()
    labels.check_states(support.label_key())
    with pytest.raises(ValueError, match="20 states in 5 blocks, with other words in its blocks"):
        labels.check_states(Blocked.of(classes.flip(0), 20).label_key())
    with pytest.raises(ValueError, match="in 5 blocks, not dense with 20 states"):
        labels.check_states(Dense(20, len(classes)).label_key())


def test_more_than_65536_states(corpus, teacher):
    block_of = torch.arange(corpus.tokenizer.size)
    each = -(-(1 << 16) // len(block_of)) + 1
    labels = make_labels(corpus, teacher, Blocked.of(block_of, each * len(block_of)), SMALL)
    assert labels.states.dtype == np.uint32
    assert (labels.states // each == corpus.split("train")[:2000]).all()


def test_labels_from_a_teacher_with_another_tokenizer(corpus, teachers):
    """The vector of a word depends on its last letter, so several states are used."""
    ends = {corpus.tokenizer.token(int(i))[-1] for i in set(corpus.split("train"))}
    first = make_labels(corpus, teachers.characters, len(ends), SMALL)
    assert first.manifest["result"]["used"] > 3
    assert first.manifest["teacher"] == {"kind": "characters"}


class TestExistingLabels:
    def test_labels_in_the_cache_are_opened(self, corpus, teacher, monkeypatch):
        first = make_labels(corpus, teacher, 7, SMALL)
        assert first.folder.parent == corpus.folder.parent
        assert first.folder.name.startswith("labels-")
        monkeypatch.setattr(teacher, "hidden", None)  # must not be called
        assert make_labels(corpus, teacher, 7, SMALL).folder == first.folder

    def test_labels_in_a_given_folder_are_opened(self, corpus, teacher, tmp_path):
        for _ in range(2):
            labels = make_labels(corpus, teacher, 7, SMALL, out=tmp_path / "mine")
        assert labels.folder == tmp_path / "mine"
        with pytest.raises(ValueError, match="mine already holds other labels or other files"):
            make_labels(corpus, teacher, 8, SMALL, out=tmp_path / "mine")

    def test_other_requests_have_other_folders(self, corpus, teacher):
        other = RandomTeacher(corpus.tokenizer, 8, seed=2, device=torch.device("cpu"))
        more = LabelSettings(**{**vars(SMALL), "label_tokens": 2001})
        every = [
            make_labels(corpus, *request)
            for request in ((teacher, 7, SMALL), (other, 7, SMALL), (teacher, 8, SMALL))
        ]
        every.append(make_labels(corpus, teacher, 7, more))
        assert len({labels.folder for labels in every}) == 4


@pytest.mark.parametrize("stage", ["embedding", "clustering", "labelling"])
@pytest.mark.parametrize("pca", [None, 2])
def test_an_interrupted_request_continues(corpus, teacher, tmp_path, stage, pca, monkeypatch):
    settings = LabelSettings(**{**vars(SMALL), "pca": pca})
    whole = make_labels(corpus, teacher, 9, settings, out=tmp_path / "whole")

    def stop(now, done, total):
        if now == stage and (done < total or stage == "clustering"):
            raise KeyboardInterrupt

    target = tmp_path / "stopped"
    with pytest.raises(KeyboardInterrupt):
        make_labels(corpus, teacher, 9, settings, out=target, progress=stop)
    assert not target.exists() and (tmp_path / "stopped.partial").is_dir()
    (tmp_path / "stopped.partial" / ".fit.json.0123456789abcdef.tmp").touch()
    for name in ("vectors.bin", "labels.bin"):  # as a process killed while writing leaves them
        if (path := tmp_path / "stopped.partial" / name).exists():
            with path.open("ab") as file:
                file.write(b"123")
    pieces, embed = [], labelling.embed
    monkeypatch.setattr(labelling, "embed", lambda *args: pieces.append(1) or embed(*args))
    resumed = make_labels(corpus, teacher, 9, settings, out=target)
    assert not (tmp_path / "stopped.partial").exists()
    assert {path.name for path in target.iterdir()} == {p.name for p in whole.folder.iterdir()}
    assert np.array_equal(resumed.states, whole.states)
    assert torch.equal(resumed.centroids()["centroids"], whole.centroids()["centroids"])
    # Of seven pieces three are clustered; no piece is embedded a second time.
    assert len(pieces) == {"embedding": 6, "clustering": 4, "labelling": 4}[stage]


def test_another_request_starts_again(corpus, teacher, tmp_path):
    def stop(stage, *_):
        if stage == "labelling":
            raise KeyboardInterrupt

    target = tmp_path / "labels"
    with pytest.raises(KeyboardInterrupt):
        make_labels(corpus, teacher, 9, SMALL, out=target, progress=stop)
    other = make_labels(corpus, teacher, 4, SMALL, out=target)
    assert np.array_equal(other.states, make_labels(corpus, teacher, 4, SMALL).states)


def test_error_of_two_processes_in_one_folder(corpus, teacher, tmp_path):
    target = tmp_path / "labels"

    def again(*_):
        make_labels(corpus, teacher, 9, SMALL, out=target)

    with pytest.raises(ValueError, match=r"labels is being written by another process \(pid "):
        make_labels(corpus, teacher, 9, SMALL, out=target, progress=again)


class TestErrors:
    def test_labels_of_another_corpus(self, corpus, teacher, text_file, tmp_path):
        labels = make_labels(corpus, teacher, 4, SMALL)
        other = tmp_path / "other.txt"
        other.write_text(text_file.read_text(encoding="utf-8").replace("cat", "cow"))
        with pytest.raises(ValueError, match=r"for the corpus small.txt .*this one \(other.txt\)"):
            open_labels(labels.folder, prepare(other))
        with pytest.raises(ValueError, match="differs in its text or vocabulary"):
            open_labels(labels.folder, prepare(text_file, min_count=100))

    def test_no_labels(self, corpus, tmp_path):
        with pytest.raises(ValueError, match="holds no labels; `bighmm distill` makes them"):
            open_labels(tmp_path, corpus)

    def test_damaged_files(self, corpus, teacher, tmp_path):
        labels = make_labels(corpus, teacher, 4, SMALL, out=tmp_path / "labels")
        path = labels.folder / "labels.bin"
        content = path.read_bytes()
        for damaged, message in (
            (content + b"1", "labels.bin is damaged: it has 4001 bytes and should have 4000"),
            (content[2:] + content[:2], "labels.bin is damaged: its sha256 is not"),
        ):
            path.write_bytes(damaged)
            with pytest.raises(ValueError, match=message):
                open_labels(labels.folder, corpus)
        path.unlink()
        with pytest.raises(ValueError, match=r"has no labels\.bin; it is not complete"):
            open_labels(labels.folder, corpus)
        path.write_bytes(content)
        (labels.folder / "centroids.safetensors").write_bytes(b"?")
        with pytest.raises(ValueError, match=r"centroids.safetensors is damaged"):
            labels.centroids()
        with pytest.raises(ValueError, match=r"centroids.safetensors is damaged"):
            open_labels(labels.folder, corpus)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"format": 0}, "is not what this version writes"),
            ({"dtype": "O"}, "dtype = 'O' is not of the kind <u2 | <u4"),
            ({"dtype": "<u4"}, "labels.bin is damaged: it has 4000 bytes and should have 8000"),
            ({"tokens": 10**12}, "labels.bin is damaged"),
            ({"tokens": "many"}, "tokens = 'many' is not of the kind int"),
            ({"states": {"kind": "dense", "states": 3}}, "the number 3, and they are 0 to 2"),
            ({"states": {"kind": "dense"}}, "states has no field 'states'"),
            ({"states": 4}, "states must be a section, not 4"),
            ({"corpus": []}, "corpus must be a section"),
            ({"files": {}}, "does not list centroids.safetensors"),
            ({"more": 1}, "unknown field 'more'"),
        ],
        ids=str,
    )
    def test_a_manifest_with_another_value(self, corpus, teacher, tmp_path, change, message):
        folder = make_labels(corpus, teacher, 4, SMALL, out=tmp_path / "labels").folder
        manifest = read_object(folder / "manifest.json")
        write_sealed(folder / "manifest.json", manifest | change)
        with pytest.raises(ValueError, match=message):
            open_labels(folder, corpus)
        (folder / "manifest.json").write_text("{")
        with pytest.raises(ValueError, match=r"manifest.json is damaged"):
            open_labels(folder, corpus)

    def test_labels_from_before_there_were_hashes(self, corpus, teacher, tmp_path):
        labels = make_labels(corpus, teacher, 4, SMALL, out=tmp_path / "labels")
        manifest = read_object(labels.folder / "manifest.json")
        del manifest["files"]
        (labels.folder / "manifest.json").write_text(json.dumps(manifest))
        assert (open_labels(labels.folder, corpus).states == labels.states).all()

    def test_wrong_settings(self, corpus, teacher):
        with pytest.raises(ValueError, match="900 tokens cannot make 901 clusters"):
            make_labels(corpus, teacher, 901, SMALL)
        with pytest.raises(ValueError, match="8 wide and have no 9 principal components"):
            make_labels(corpus, teacher, 4, LabelSettings(pca=9))
        with pytest.raises(ValueError, match="the model knows 3 tokens but the corpus has"):
            make_labels(corpus, teacher, Dense(4, 3), SMALL)
        with pytest.raises(ValueError, match="must be at least 1, not 0, 10000000, None, 40"):
            LabelSettings(cluster_tokens=0)
        with pytest.raises(ValueError, match="there is no pool 'max'; use last or mean"):
            LabelSettings(pool="max")
