"""Folders of Ctrl-G, compared with a copy of its class."""

import json
import zipfile

import pytest
import torch
from huggingface_hub import PyTorchModelHubMixin
from safetensors.torch import load_file, save_file

from bighmm import HMM
from bighmm.interop import from_ctrlg, to_ctrlg
from models import KINDS, ragged, random_hmm


class CtrlgHMM(torch.nn.Module, PyTorchModelHubMixin):
    """The parameters of ctrlg.HMM with their names, and the likelihood they define."""

    def __init__(self, hidden_states: int, vocab_size: int, eos_token_id: int) -> None:
        super().__init__()
        size = (hidden_states, vocab_size)
        self.alpha_exp = torch.nn.Parameter(torch.rand(size[0], size[0]).softmax(1))
        self.beta = torch.nn.Parameter(torch.randn(size).log_softmax(1))
        self.gamma = torch.nn.Parameter(torch.randn(hidden_states))
        self.eos_token_id = eos_token_id

    @torch.no_grad()
    def log_prob(self, tokens: list[int]) -> float:
        state = self.gamma.softmax(0) * self.beta[:, tokens[0]].exp()
        for token in tokens[1:]:
            state = (state @ self.alpha_exp) * self.beta[:, token].exp()
        return float(state.sum().log())


TEXTS = [[1, 2, 0], [0], [4, 4, 3, 1, 2, 0], [3, 1]]  # 0 is the end mark; the last text has none


@pytest.mark.parametrize("reset", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_texts_keep_their_probability(kind, reset, tmp_path):
    hmm = random_hmm(kind, states=6, vocabulary=5, seed=6, end=0, reset=reset, dtype=torch.float32)
    to_ctrlg(hmm, tmp_path / "hmm")
    theirs = CtrlgHMM.from_pretrained(tmp_path / "hmm")
    back = from_ctrlg(tmp_path / "hmm")
    assert theirs.eos_token_id == back.end == 0 and not back.reset
    assert back.num_states == len(theirs.gamma) == (7 if reset else 6)
    for text in TEXTS:
        wanted = float(hmm.log_prob(torch.tensor([text])))
        assert float(back.log_prob(torch.tensor([text]))) == pytest.approx(wanted, abs=1e-5)
        assert theirs.log_prob(text) == pytest.approx(wanted, abs=1e-5)


def test_only_end_marks_follow_an_end_mark(tmp_path):
    to_ctrlg(random_hmm("dense-table", end=0), tmp_path / "hmm")
    back = from_ctrlg(tmp_path / "hmm")
    for more in ([0], [0, 0, 0]):
        longer = float(back.log_prob(torch.tensor([[1, 2, 0, *more]])))
        assert longer == pytest.approx(float(back.log_prob(torch.tensor([[1, 2, 0]]))))
    assert float(back.log_prob(torch.tensor([[1, 0, 2]]))) == -torch.inf
    assert set(back.sample(5, length=20, prefix=[1, 0]).view(-1).tolist()) == {0}


def test_probabilities_of_zero_are_written_without_nan(tmp_path):
    """With a state that emits only the end mark, and one that never emits it."""
    emission = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.5, 0.5], [0.25, 0.75, 0.0]])
    move = torch.tensor([[1.0, 0.0, 0.0], [0.2, 0.3, 0.5], [0.5, 0.5, 0.0]])
    hmm = HMM.from_probs(torch.tensor([0.1, 0.6, 0.3]), move, emission, end=0)
    to_ctrlg(hmm, tmp_path / "hmm")
    written = load_file(tmp_path / "hmm" / "model.safetensors")
    assert all(bool(tensor.isfinite().all()) for tensor in written.values())
    for rows in (written["alpha_exp"], written["beta"].exp(), written["gamma"].exp()):
        torch.testing.assert_close(rows.sum(-1), torch.ones_like(rows.sum(-1)))
    back = from_ctrlg(tmp_path / "hmm")
    for text in ([0], [1, 0], [2, 1, 1, 0], [1, 2, 2]):
        wanted = hmm.log_prob(torch.tensor([text]))
        torch.testing.assert_close(back.log_prob(torch.tensor([text])), wanted)


@pytest.mark.parametrize("older", [False, True])
def test_reads_folders_that_ctrlg_wrote(older, tmp_path):
    torch.manual_seed(0)
    theirs = CtrlgHMM(4, 5, 3)
    theirs.save_pretrained(tmp_path / "hmm")
    if older:
        (tmp_path / "hmm" / "model.safetensors").unlink()
        state = theirs.state_dict() | {"gamma": theirs.gamma.detach().unsqueeze(0)}
        torch.save(state, tmp_path / "hmm" / "pytorch_model.bin")
    hmm = from_ctrlg(tmp_path / "hmm")
    assert hmm.end == 3
    tokens, _ = ragged(5, [6, 6, 6], seed=3)
    for row in tokens.tolist():
        assert float(hmm.log_prob(torch.tensor([row]))) == pytest.approx(
            theirs.log_prob(row), abs=1e-5
        )
    to_ctrlg(hmm, tmp_path / "again")
    again = from_ctrlg(tmp_path / "again")
    for one, other in zip(hmm.tables(), again.tables(), strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=0)


def test_writing_an_hmm_without_an_end_mark(tmp_path):
    hmm = random_hmm("dense-table", end=None)
    with pytest.raises(ValueError, match="needs an end mark from 0 to 4, not None; give end="):
        to_ctrlg(hmm, tmp_path / "hmm")
    to_ctrlg(hmm, tmp_path / "hmm", end=2)
    assert from_ctrlg(tmp_path / "hmm").num_states == hmm.num_states
    with pytest.raises(ValueError, match="more than the limit of 3"):
        to_ctrlg(hmm, tmp_path / "hmm", end=2, limit=3)


def spoil(folder, **changes):
    tensors = load_file(folder / "model.safetensors")
    tensors |= {name: change(tensors[name]) for name, change in changes.items()}
    remaining = {name: t.contiguous() for name, t in tensors.items() if t is not None}
    save_file(remaining, folder / "model.safetensors")


def set_config(folder, **values):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | values))


@pytest.mark.parametrize(
    "harm, sentence",
    [
        (lambda f: spoil(f, alpha_exp=lambda t: t[:3]), r"alpha_exp in .* has the shape \(3, 4\)"),
        (lambda f: spoil(f, beta=lambda t: t.T), r"beta in .* says \(4, 5\)"),
        (lambda f: spoil(f, gamma=lambda t: t[:2]), r"gamma in .* has the shape \(2,\)"),
        (lambda f: spoil(f, gamma=lambda t: t * torch.nan), "gamma in .* is no distribution"),
        (lambda f: spoil(f, beta=lambda t: t + 1), "row 0 of beta in .* sums to 2.7"),
        (lambda f: spoil(f, alpha_exp=lambda t: t * torch.nan), "row 0 of alpha_exp in .* nan"),
        (lambda f: spoil(f, alpha_exp=lambda t: -t), "row 0 of alpha_exp in .* must sum to one"),
        (lambda f: spoil(f, gamma=lambda t: None), "has no gamma, so it is not a Ctrl-G HMM"),
        (lambda f: (f / "model.safetensors").write_bytes(b"x"), "is damaged"),
        (lambda f: (f / "model.safetensors").unlink(), "has neither model.safetensors nor"),
        (lambda f: (f / "config.json").unlink(), "has no config.json"),
        (lambda f: set_config(f, vocab_size="5"), "vocab_size must be a whole number, not '5'"),
        (lambda f: set_config(f, eos_token_id=9), "the end mark 9 outside its 5 words"),
    ],
)
def test_errors_of_damaged_folders(harm, sentence, tmp_path):
    CtrlgHMM(4, 5, 3).save_pretrained(tmp_path / "hmm")
    harm(tmp_path / "hmm")
    with pytest.raises(ValueError, match=sentence):
        from_ctrlg(tmp_path / "hmm")


def test_a_packed_file_of_torch(tmp_path):
    """It is refused before there is memory for what it unpacks to."""
    CtrlgHMM(4, 5, 3).save_pretrained(tmp_path)
    stored, packed = tmp_path / "stored.bin", tmp_path / "pytorch_model.bin"
    torch.save(load_file(tmp_path / "model.safetensors"), stored)
    (tmp_path / "model.safetensors").unlink()
    with zipfile.ZipFile(stored) as old, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as new:
        for part in old.infolist():
            new.writestr(part.filename, old.read(part))
    with pytest.raises(ValueError, match=r"pytorch_model\.bin is damaged: its parts are packed"):
        from_ctrlg(tmp_path)
    packed.write_bytes(b"PK\x03\x04" + b"x" * 100)
    with pytest.raises(ValueError, match=r"pytorch_model\.bin is damaged: File is not a zip file"):
        from_ctrlg(tmp_path)


@pytest.mark.parametrize("size", [4, 10**6], ids=str)
def test_a_file_of_torch_that_repeats_one_number(size, tmp_path):
    CtrlgHMM(4, 5, 3).save_pretrained(tmp_path)
    set_config(tmp_path, hidden_states=size)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["alpha_exp"] = torch.ones(1).expand(size, size)
    (tmp_path / "model.safetensors").unlink()
    torch.save(tensors, tmp_path / "pytorch_model.bin")
    with pytest.raises(ValueError, match="alpha_exp has fewer numbers than its shape says"):
        from_ctrlg(tmp_path)


def test_error_of_a_missing_folder(tmp_path):
    with pytest.raises(ValueError, match=r"there is no folder .*nothing$"):
        from_ctrlg(tmp_path / "nothing")


def test_an_earlier_save_is_replaced(tmp_path):
    folder = tmp_path / "mywork"
    to_ctrlg(random_hmm("dense-table", states=3, end=0), folder)
    to_ctrlg(random_hmm("dense-table", states=5, end=0), folder)
    assert from_ctrlg(folder).num_states == 6
    folder.rename(tmp_path / "mywork.previous")  # the state between the two renames
    assert from_ctrlg(folder).num_states == 6
    to_ctrlg(random_hmm("dense-table", states=3, end=0), folder)
    assert from_ctrlg(folder).num_states == 4
    assert [path.name for path in tmp_path.iterdir()] == ["mywork"]


@pytest.mark.parametrize(
    "files",
    [
        {"thesis.txt": "years of work"},
        {"config.json": '{"hidden_states": 4, "vocab_size": 5, "eos_token_id": 0}', "a.txt": ""},
        {"config.json": '{"model_type": "gpt2"}', "model.safetensors": ""},
        {"config.json": "{", "model.safetensors": ""},
        {"model.safetensors": ""},
    ],
)
def test_a_folder_with_other_files_is_not_replaced(files, tmp_path):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=r"holds other files than an earlier save") as error:
        to_ctrlg(random_hmm("dense-table", end=0), tmp_path)
    assert "\n" not in str(error.value)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == files


def test_a_file_is_not_replaced(tmp_path):
    (tmp_path / "mywork").write_text("years of work")
    with pytest.raises(ValueError, match="mywork is a file"):
        to_ctrlg(random_hmm("dense-table", end=0), tmp_path / "mywork")
    assert (tmp_path / "mywork").read_text() == "years of work"
