"""Teachers without downloads: windows, random vectors, and networks of this library."""

import numpy as np
import pytest
import torch

from bighmm.data.tokenizers import Words
from bighmm.distill.teachers import RandomTeacher, Reading, open_teacher, teacher_vectors
from bighmm.lm.baselines.neural import LSTMLM, LSTMOptions
from bighmm.lm.baselines.transformer import TransformerLM, TransformerOptions

WORDS = Words.build(["one two three four five six"])
CPU = torch.device("cpu")


class Places:
    """A teacher whose vectors are the number of tokens before and after a token in its window."""

    width, device = 2, CPU

    def __init__(self, causal):
        self.causal = causal
        self.windows = []

    def hidden(self, ids):
        self.windows += ids.tolist()
        places = torch.arange(ids.shape[1]).expand_as(ids)
        return torch.stack([places, ids.shape[1] - 1 - places], 2).float()


@pytest.mark.parametrize("count", [1, 2, 7, 8, 9, 12, 13, 50, 51, 97])
@pytest.mark.parametrize("causal", [True, False])
def test_every_token_has_its_context(count, causal):
    teacher = Places(causal)
    found = teacher_vectors(teacher, np.arange(count), Reading(window=8, context=4))
    before, after = found.T.long()
    places = torch.arange(count)
    assert (before >= places.clamp(max=4 if causal else 2)).all()
    if not causal:
        assert (after >= (count - 1 - places).clamp(max=2)).all()
    assert all(len(window) == min(8, count) for window in teacher.windows)
    assert len(teacher.windows) == max(1, -(-(count - 4) // 4))


def test_vectors_of_an_empty_text():
    assert teacher_vectors(Places(True), np.zeros(0, np.uint16), Reading()).shape == (0, 2)


def test_errors_of_wrong_windows():
    for window, context in ((8, 8), (8, -1), (0, 0)):
        with pytest.raises(ValueError, match=f"not {context} of {window} tokens"):
            Reading(window, context)


def test_error_of_vectors_that_are_not_finite():
    teacher = Places(True)
    teacher.hidden = lambda ids: torch.full((*ids.shape, 2), torch.nan)
    with pytest.raises(ValueError, match="not finite; try another layer"):
        teacher_vectors(teacher, np.arange(5), Reading())


NINE = Words([*"abcdefg", "<eos>", "<unk>"])


def test_a_random_teacher_is_for_one_vocabulary():
    """Another one of the same size has other words."""
    teacher = RandomTeacher(NINE, device=CPU)
    assert teacher.shares_vocabulary(Words(NINE.words))
    assert not teacher.shares_vocabulary(Words([*"ABCDEFG", "<eos>", "<unk>"]))
    with pytest.raises(ValueError, match="was made for another vocabulary"):
        teacher.tokenize("a")


def test_random_vectors_are_sums_over_previous_tokens():
    teacher = RandomTeacher(NINE, width=5, seed=3, device=CPU)
    ids = torch.tensor([[1, 2, 1, 4]])
    e = teacher.words
    torch.testing.assert_close(teacher.hidden(ids)[0, 3], e[4] + e[1] / 2 + e[2] / 4 + e[1] / 8)
    same, other = (RandomTeacher(NINE, width=5, seed=s, device=CPU) for s in (3, 4))
    assert torch.equal(same.words, e) and not torch.equal(other.words, e)
    assert teacher.description() != other.description()
    # Windows make no difference, because tokens before the context have almost no weight.
    long = np.arange(300) % 9
    whole = teacher.hidden(torch.from_numpy(long).unsqueeze(0))[0]
    torch.testing.assert_close(teacher_vectors(teacher, long, Reading(64, 16)), whole)


@pytest.mark.parametrize(
    "lm",
    [
        TransformerLM(TransformerOptions(width=8, layers=2, heads=2, context=6), WORDS, seed=1),
        LSTMLM(LSTMOptions(width=8, layers=1), WORDS, seed=1),
    ],
    ids=lambda lm: lm.family,
)
class TestNetworks:
    def test_vectors_are_those_of_the_network(self, lm, tmp_path):
        lm.save_pretrained(tmp_path / "run" / "model")
        teacher = open_teacher(str(tmp_path / "run"), WORDS, layer=-1)
        assert teacher.width == 8 and teacher.causal and teacher.shares_vocabulary(WORDS)
        ids = torch.tensor([[1, 2, 3, 4, 5]])
        with torch.no_grad():
            wanted, _ = lm.params.hidden(ids, lm.params.begin(1, WORDS.end), None)
        torch.testing.assert_close(teacher.hidden(ids), wanted)
        # The vector of a word predicts the next word.
        started = torch.cat([torch.tensor([[WORDS.end]]), ids], 1)
        logits = teacher.hidden(started)[:, -1] @ lm.params.words.T
        torch.testing.assert_close(logits.log_softmax(1), lm.predictor().next_token(ids))

    def test_fresh_weights_depend_on_the_seed(self, lm, tmp_path):
        lm.save_pretrained(tmp_path)
        ids = torch.tensor([[1, 2, 3]])
        trained = open_teacher(str(tmp_path), WORDS)
        fresh = [open_teacher(str(tmp_path), WORDS, fresh=True, seed=s) for s in (5, 5, 6)]
        first, same, other = (teacher.hidden(ids) for teacher in fresh)
        assert torch.equal(first, same) and not torch.equal(first, other)
        assert not torch.equal(first, trained.hidden(ids))
        described = [teacher.description() for teacher in (trained, *fresh)]
        assert described[1] == described[2] and described[0] != described[1] != described[3]

    def test_error_of_another_vocabulary(self, lm, tmp_path):
        lm.save_pretrained(tmp_path)
        teacher = open_teacher(str(tmp_path), Words.build(["other words"]))
        assert not teacher.shares_vocabulary(Words.build(["other words"]))
        with pytest.raises(ValueError, match="has another vocabulary than the corpus"):
            teacher.tokenize("one two")

    def test_vectors_of_every_layer(self, lm, tmp_path):
        lm.save_pretrained(tmp_path)
        ids = torch.tensor([[1, 2, 3, 4, 5]])
        if lm.family == "lstm":
            with pytest.raises(ValueError, match="is no transformer and has no --layer 1; leave"):
                open_teacher(str(tmp_path), WORDS, layer=1)
            return
        usual = open_teacher(str(tmp_path), WORDS)  # two thirds of two layers
        embeddings, lower, last = (open_teacher(str(tmp_path), WORDS, layer=n) for n in (0, 1, 2))
        assert usual.description() == lower.description() != last.description()
        torch.testing.assert_close(usual.hidden(ids), lower.hidden(ids))
        torch.testing.assert_close(embeddings.hidden(ids), lm.params.words[ids].detach())
        norm, top = lm.params.backbone.norm, lm.params.backbone.layers[1]
        with pytest.MonkeyPatch.context() as patch, torch.no_grad():
            patch.setattr(top, "forward", lambda x, turn, mask: x)  # the identity
            wanted, _ = lm.params.hidden(ids, lm.params.begin(1, WORDS.end), None)
        torch.testing.assert_close(norm(lower.hidden(ids)).detach(), wanted)
        with pytest.raises(ValueError, match="has no layer 3; it has 0"):
            open_teacher(str(tmp_path), WORDS, layer=3)


def test_error_of_a_layer_of_random_vectors():
    with pytest.raises(ValueError, match="random vectors have no --layer 2; leave it out"):
        open_teacher("random", WORDS, layer=2)


def test_errors_of_unknown_teachers(tmp_path):
    for name in ("nowhere/at/all", str(tmp_path / "nothing"), "surely-no-model", "a b"):
        with pytest.raises(ValueError, match=f"there is no teacher {name}; give"):
            open_teacher(name, WORDS)
    with pytest.raises(ValueError, match=r"no config.json, and 0 .gguf files"):
        open_teacher(str(tmp_path), WORDS)


def test_errors_of_models_without_vectors(tmp_path):
    (tmp_path / "config.json").write_text('{"format": 1, "kind": "neural"}')
    with pytest.raises(ValueError, match="holds a model of family 'hmm', which has no vectors"):
        open_teacher(str(tmp_path), WORDS)
    (tmp_path / "config.json").write_text('{"format": 1, "family": "ngram"}')
    with pytest.raises(ValueError, match="holds a model of family 'ngram', which has no vectors"):
        open_teacher(str(tmp_path), WORDS)
