"""HMMLM: a model as a folder, and what is said of a folder that is not one."""

import dataclasses
import json
import re
import subprocess
import sys

import numpy as np
import pytest
import tokenizers
import torch
from huggingface_hub import hub_mixin

from bighmm.base.files import replace_folder, sha256_of, write_sealed
from bighmm.base.json_files import read_object
from bighmm.base.tensor_files import read_tensors, write_tensors
from bighmm.data.corpus import prepare
from bighmm.data.tokenizers import Subwords, Words
from bighmm.lm import hmmlm as module
from bighmm.lm.cards import about_run, card_of
from bighmm.lm.hmmlm import HMMLM
from bighmm.lm.opening import open_model
from bighmm.model.params.neural import NeuralOptions
from bighmm.model.params.scalar import ScalarOptions
from bighmm.model.support import PerToken
from models import random_support

LINES = ["the cat sat on the mat", "the dog sat", "a cat and a dog"]
TEXT = "the cat sat\na dog sat on the mat\n"
STATES = 12

NEURAL = NeuralOptions(width=4, init_scale=1.0)
OPTIONS = {
    "scalar": ("scalar", ScalarOptions()),
    "neural": ("neural", NEURAL),
    "mlp": ("neural", dataclasses.replace(NEURAL, entering="mlp")),
    "factored": ("neural", dataclasses.replace(NEURAL, embeddings="factored")),
}
CASES = [(o, s) for o in OPTIONS for s in ("dense", "blocked", "per_token")]
CASES = [(o, s) for o, s in CASES if o != "factored" or s == "blocked"]


def words():
    return Words.build(LINES)


def subwords():
    known = ["<unk>", "</s>", "the", "cat", "sat", "on"]
    vocabulary = {word: id for id, word in enumerate(known)}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return Subwords(made.to_str().encode())


TOKENIZERS = {"words": words, "subwords": subwords}


def model(options="neural", support="blocked", tokenizer=None, seed=0):
    tokenizer = tokenizer or words()
    kind, chosen = OPTIONS[options]
    return HMMLM(
        kind, chosen, random_support(support, STATES, tokenizer.size), tokenizer, seed=seed
    )


@pytest.fixture
def folder(tmp_path):
    model().save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def change_config(folder, **changes):
    """Other values, with a seal that fits them."""
    config = read_object(folder / "config.json") | changes
    config = {key: value for key, value in config.items() if value is not None}
    write_sealed(folder / "config.json", config)


def one_sentence(folder, *parts):
    """What loading the folder says."""
    with pytest.raises(ValueError) as error:
        HMMLM.from_pretrained(folder)
    said = str(error.value)
    assert "\n" not in said
    for part in parts:
        assert part in said
    return said


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
@pytest.mark.parametrize("options, support", CASES)
def test_round_trip(tmp_path, options, support, tokenizer):
    lm = model(options, support, TOKENIZERS[tokenizer]())
    lm.save_pretrained(tmp_path)
    read = HMMLM.from_pretrained(tmp_path)
    assert (read.parameterisation, read.options) == (lm.parameterisation, lm.options)
    assert type(read.params.support) is type(lm.params.support)
    assert read.tokenizer.fingerprint() == lm.tokenizer.fingerprint()
    ids = torch.tensor([lm.encode(TEXT)])
    assert read.encode(TEXT) == ids[0].tolist() and read.decode(ids[0]) == lm.decode(ids[0])
    assert torch.equal(read.hmm().log_prob(ids), lm.hmm().log_prob(ids))
    assert torch.equal(read.hmm().next_token(ids), lm.hmm().next_token(ids))
    assert read.hmm().end == lm.tokenizer.end


def test_a_string_names_a_folder_too(folder):
    ids = torch.tensor([model().encode(TEXT)])
    found = HMMLM.from_pretrained(str(folder)).hmm().log_prob(ids)
    assert torch.equal(found, model().hmm().log_prob(ids))


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
@pytest.mark.parametrize("support", ["dense", "blocked", "per_token"])
def test_files_of_a_model(tmp_path, support, tokenizer):
    model("scalar", support, TOKENIZERS[tokenizer]()).save_pretrained(tmp_path)
    expected = {"config.json", "model.safetensors", "README.md"}
    if tokenizer == "words":
        expected |= {"vocab.json"}
    else:
        expected |= {"tokenizer.json", "tokenizer_config.json"}
    if support == "blocked":
        expected |= {"blocks.json"}
    assert {path.name for path in tmp_path.iterdir()} == expected
    listed = json.loads((tmp_path / "config.json").read_text())["files"]
    assert set(listed) == expected - {"config.json", "README.md"}


def test_blocks_are_readable(folder):
    blocks = json.loads((folder / "blocks.json").read_text())["block_of"]
    assert blocks == model().params.support.partition.block_of.tolist()


def test_saving_over_another_model(tmp_path):
    model("neural", "blocked", subwords()).save_pretrained(tmp_path)
    model("neural", "dense", words()).save_pretrained(tmp_path)
    read = HMMLM.from_pretrained(tmp_path)
    assert read.tokenizer.fingerprint() == words().fingerprint()
    assert not (tmp_path / "blocks.json").exists()


@pytest.mark.parametrize(
    "there",
    [
        {"vocab.json": "[]"},
        {"tokenizer.json": "{}"},
        {"model.safetensors": ""},
        {"config.json": '{"model_type": "gpt2"}', "tokenizer.json": "{}", "notes.txt": ""},
        {"config.json": '{"format": "bighmm.SequenceHMM 1"}', "model.safetensors": ""},
        {"manifest.json": "{}", "vocab.json": "[]"},
        {"config.json": "{"},
    ],
    ids=lambda there: ",".join(there),
)
def test_saving_keeps_what_is_not_a_model(there, tmp_path):
    for name, text in there.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match="not of an earlier model of this library") as error:
        model().save_pretrained(tmp_path)
    assert "\n" not in str(error.value)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == there


def test_saving_to_a_file(tmp_path):
    (tmp_path / "file").write_text("years of work")
    with pytest.raises(ValueError, match="file is a file, so no model can be saved there"):
        model().save_pretrained(tmp_path / "file")
    assert (tmp_path / "file").read_text() == "years of work"


def test_saving_beside_other_files(tmp_path):
    (tmp_path / "notes.txt").write_text("years of work")
    (tmp_path / "README.md").write_text("about it")
    for seed in (0, 1):
        model(seed=seed).save_pretrained(tmp_path)
    assert HMMLM.from_pretrained(tmp_path).parameterisation == "neural"
    assert (tmp_path / "notes.txt").read_text() == "years of work"
    assert (tmp_path / "README.md").read_text() == "about it"


@pytest.mark.parametrize("earlier", [False, True])
def test_saving_again_where_it_was_interrupted(earlier, tmp_path, monkeypatch):
    if earlier:
        model().save_pretrained(tmp_path)

    def fail(path, tensors):
        path.write_bytes(b"half")
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(module, "write_tensors", fail)
        with pytest.raises(OSError, match="no space left"):
            model().save_pretrained(tmp_path)
    one_sentence(tmp_path, "does not list the model's files")
    model().save_pretrained(tmp_path)
    assert HMMLM.from_pretrained(tmp_path).parameterisation == "neural"


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "vocab.json", "blocks.json"])
def test_missing_file(folder, name):
    (folder / name).unlink()
    one_sentence(folder, f"has no {name}; it is not complete")


@pytest.mark.parametrize("name", ["model.safetensors", "vocab.json", "blocks.json"])
@pytest.mark.parametrize("damage", ["one byte", "cut", "empty"])
def test_damaged_file(folder, name, damage):
    content = (folder / name).read_bytes()
    middle = len(content) // 2
    flipped = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
    damaged = {"one byte": flipped, "cut": content[:middle], "empty": b""}[damage]
    (folder / name).write_bytes(damaged)
    one_sentence(folder, f"{name} is damaged")


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_parameters_that_are_no_numbers(tmp_path, value):
    lm = model()
    with torch.no_grad():
        next(lm.params.parameters()).view(-1)[0] = value
    lm.save_pretrained(tmp_path)
    one_sentence(tmp_path, "holds NaN or infinity")


def test_parameters_that_are_too_large(tmp_path):
    lm = model()
    with torch.no_grad():
        for parameter in lm.params.parameters():
            parameter.fill_(3e38)
    lm.save_pretrained(tmp_path)
    read = HMMLM.from_pretrained(tmp_path)
    with pytest.raises(ValueError, match="so large that they give no probabilities"):
        read.hmm()


@pytest.mark.parametrize("opened", [open_model, HMMLM.from_pretrained])
@pytest.mark.parametrize("place", ["run", "run/model"])
@pytest.mark.parametrize("step", ["load_tokenizer", "TensorFile", "check_state"])
def test_replaced_while_it_is_opened(tmp_path, monkeypatch, opened, place, step):
    """A training replaces the model between two files that are read of it."""
    lms = [model(seed=seed) for seed in (1, 2)]

    def put(lm):
        replace_folder(tmp_path / "run" / "model", lm.save_pretrained, keep_previous=False)

    put(lms[0])
    inner, calls = getattr(module, step), []

    def step_meanwhile(*given):
        calls.append(step)
        if len(calls) == 1:
            put(lms[1])
        return inner(*given)

    monkeypatch.setattr(module, step, step_meanwhile)
    ids = [model().encode(TEXT)]
    found = float(opened(tmp_path / place).hmm().log_prob(ids))
    assert found in [float(lm.hmm().log_prob(ids)) for lm in lms]
    assert len(calls) == (1 if step == "check_state" else 2)  # by then all files were open


@pytest.mark.parametrize(("value", "right"), [(-1e30, False), (2e4, False), (100.0, True)])
def test_transitions_that_rounding_spoils(tmp_path, value, right):
    """log p(j | i) is s_ij − c_i, and c_i of such a row loses the logarithm of their number."""
    lm = model("scalar", "dense")
    with torch.no_grad():
        lm.params.transition[2] = value
    lm.save_pretrained(tmp_path)
    read = HMMLM.from_pretrained(tmp_path)
    if right:
        total = read.hmm().next_token([[1, 2]]).exp().sum()
        assert abs(float(total) - 1) < 1e-4
        return
    with pytest.raises(ValueError, match="so large that they give no probabilities"):
        read.hmm()


@pytest.mark.parametrize(
    "content", [b'{"format": 1', b"", b"\xff", b"[1]", b"{}", b'{"format": 2}']
)
def test_damaged_config(folder, content):
    (folder / "config.json").write_bytes(content)
    one_sentence(folder, "config.json")


@pytest.mark.parametrize("key", ["format", "kind", "options", "support", "files"])
def test_config_lacks_a_field(folder, key):
    change_config(folder, **{key: None})
    one_sentence(folder, "config.json")


@pytest.mark.parametrize(
    "changes, says",
    [
        ({"kind": "nural"}, "no parameterisation 'nural'"),
        ({"options": {"depth": 3}}, "depth"),
        ({"options": 3}, "options must be a section, not 3"),
        ({"options": {"width": "wide"}}, "options: width = 'wide' is not of the kind int"),
        ({"options": {"width": 2**70}}, "options: width = 1180591620717411303424 is not"),
        ({"options": {"relu": 0}}, "options: relu = 0 is not of the kind bool"),
        ({"options": {"scaled": 3}}, "options: scaled = 3 is not of the kind bool"),
        ({"options": {"network": "mlq"}}, "options: network = 'mlq' is not of the kind mlp"),
        ({"options": {"layers": 10**9}}, "layers must be from 0 to 256"),
        ({"options": {"width": 10**15}}, "config.json describes no model"),
        ({"options": {"init_scale": -1.0}}, "finite and not below 0, not -1.0"),
        (
            {"options": {"network": "transformer", "backbone": '{"width": 8, "layers": 1e9}'}},
            "the backbone has no field 'heads'",
        ),
        ({"options": {"network": "transformer", "backbone": "[" * 9999}}, "nested more than"),
        ({"support": "blocked"}, "support = 'blocked' is not of the kind dict"),
        ({"support": {"kind": "free", "states": STATES}}, "needs the tensor states"),
        ({"support": {"kind": "dense", "states": STATES, "more": 1}}, "unknown field 'more'"),
        ({"support": {"kind": "dense", "states": 0}}, "states = 0 is not of the kind"),
        ({"support": {"kind": [], "states": 3}}, "does not describe a support"),
        ({"vocabulary": 3}, "vocabulary = 3 is not of the kind str"),
        ({"depth": 3}, "unknown field 'depth'"),
        ({"files": {"model.safetensors": "x", "vocab.json": 3}}, "files = {"),
        ({"files": {"vocab.json": "x"}}, "does not list model.safetensors"),
        ({"support": {"kind": "blncked", "states": STATES}}, "no support 'blncked'"),
        ({"support": {"kind": "blocked", "states": STATES + 1}}, "13 states cannot be shared"),
        ({"files": ["model.safetensors"]}, "does not list the model's files"),
    ],
    ids=str,
)
def test_config_that_describes_no_model(folder, changes, says):
    change_config(folder, **changes)
    one_sentence(folder, "config.json", says)


def test_opening_does_not_wait_for_a_compiler(folder):
    """Shapes are found without torch's decompositions, whose import takes seconds."""
    code = "import sys; from bighmm import HMMLM; HMMLM.from_pretrained(sys.argv[1]); "
    code += "sys.exit('sympy' in sys.modules)"
    subprocess.run([sys.executable, "-c", code, folder], check=True)


def test_a_size_of_another_model(folder):
    change_config(folder, options={"size": 10**18})
    one_sentence(folder, "model.safetensors does not fit its configuration")


@pytest.mark.parametrize("states", [2 * STATES, 10**9 // STATES * STATES, 2**60 // 4 * 4])
def test_weights_of_another_model(folder, states, monkeypatch):
    change_config(folder, support={"kind": "blocked", "states": states})
    monkeypatch.setattr(HMMLM, "__init__", None)  # nothing is made before sizes are compared
    one_sentence(folder)


def test_a_changed_configuration_is_noticed(folder):
    text = (folder / "config.json").read_text()
    (folder / "config.json").write_text(text.replace('"skip": true', '"skip": false'))
    one_sentence(folder, "config.json is damaged: its content is not what was saved")
    config = json.loads(text)
    del config["seal"]  # as the first version wrote it
    (folder / "config.json").write_text(json.dumps(config))
    assert HMMLM.from_pretrained(folder).options.skip
    del config["options"]["skip"]  # which is true if it is missing
    (folder / "config.json").write_text(json.dumps(config))
    one_sentence(folder, "config.json is damaged: options has no field 'skip'")


def test_files_of_other_names_are_not_opened(folder):
    files = read_object(folder / "config.json")["files"]
    change_config(folder, files=files | {"../../secret": "x"})
    one_sentence(folder, "it lists '../../secret', which is not its file")


def test_another_tokenizer_beside_the_weights_is_noticed(folder):
    subwords().save(folder)
    one_sentence(folder, "is not the one its model was made with")


def rehashed(folder, name):
    files = read_object(folder / "config.json")["files"]
    change_config(folder, files=files | {name: sha256_of(folder / name)})


@pytest.mark.parametrize(
    "content",
    [
        "7",
        '{"block_of": [Infinity]}',
        '{"block_of": [0, -1]}',
        '{"block_of": [0.5]}',
        '{"block_of": [[0]]}',
        '{"block_of": []}',
        '{"block_of": [0, 1000000000]}',
        '{"block_of": [9223372036854775807]}',
        '{"block_of": {"0": 0}}',
        '{"blocks": [0]}',
    ],
)
def test_blocks_that_are_none(folder, content):
    (folder / "blocks.json").write_text(content)
    rehashed(folder, "blocks.json")
    one_sentence(folder)


@pytest.mark.parametrize("wrong", [STATES, -2, None])
def test_lists_of_states_that_are_none(tmp_path, wrong):
    folder = tmp_path
    model("scalar", support="per_token").save_pretrained(folder)
    tensors = {n: t.clone() for n, t in read_tensors(folder / "model.safetensors").items()}
    if wrong is None:
        tensors["support.states"] = tensors["support.states"].float()
    else:
        tensors["support.states"][3, 0] = wrong
    write_tensors(folder / "model.safetensors", tensors)
    rehashed(folder, "model.safetensors")
    one_sentence(folder, "config.json describes no model")


def test_a_configuration_without_end_is_not_read(folder):
    (folder / "config.json").unlink()
    (folder / "config.json").symlink_to("/dev/zero")
    one_sentence(folder, "config.json cannot be read: it is not a regular file")


def test_support_and_tokenizer_must_agree():
    with pytest.raises(ValueError, match="knows 3 tokens but the tokenizer has 10"):
        HMMLM("scalar", ScalarOptions(), random_support("dense", 4, 3), words())


def test_seed_decides_the_parameters():
    ids = torch.tensor([words().encode(TEXT)])
    one, same, other = (model(seed=seed).hmm().log_prob(ids) for seed in (1, 1, 2))
    assert torch.equal(one, same) and not torch.equal(one, other)


def test_hmm_is_cached_until_it_is_cleared():
    lm = model("scalar")
    before = lm.hmm()
    assert lm.hmm() is before
    with torch.no_grad():
        lm.params.start[0] += 5
    assert lm.hmm() is before
    lm.clear_cache()
    assert lm.hmm() is not before
    assert float(lm.hmm().start[0]) > float(before.start[0])


@pytest.mark.parametrize("options", OPTIONS)
def test_hmm_asks_for_no_gradient(options):
    assert not model(options).hmm().log_prob([[1, 2, 3]]).requires_grad


def test_moving_clears_the_cache():
    lm = model()
    before = lm.hmm()
    assert lm.to("cpu") is lm and lm.hmm() is not before


def corpus_of(path, lines):
    path.mkdir()
    for name in ("train", "valid", "test"):
        (path / f"ptb.{name}.txt").write_text("\n".join(lines) + "\n")
    return prepare(path)


def test_perplexity_of_a_corpus(tmp_path):
    corpus = corpus_of(tmp_path / "ptb", LINES)
    lm = model(tokenizer=corpus.tokenizer)
    found = lm.perplexity(corpus, split="valid")
    ids = lm.encode("\n".join(LINES) + "\n")
    assert (found.split, found.tokens) == ("valid", len(ids))
    assert found.vocabulary == corpus.tokenizer.fingerprint()
    assert lm.perplexity(corpus).split == "test"
    for given in (ids, torch.tensor(ids), np.array(ids, dtype=np.uint16)):
        assert lm.perplexity(given) == dataclasses.replace(found, split=None)
    carried = lm.perplexity(ids, convention="carry")
    assert carried.convention == "carry" and carried.log_prob != found.log_prob
    expected = float(dataclasses.replace(lm.hmm(), reset=False).log_prob([ids]))
    assert carried.log_prob == pytest.approx(expected)


def test_perplexity_of_another_vocabulary(tmp_path):
    corpus = corpus_of(tmp_path / "ptb", [*LINES, "zebra"])
    mine = words().fingerprint()[:12]
    with pytest.raises(ValueError, match=f"another vocabulary .* than the model .{mine}"):
        model().perplexity(corpus)


def test_perplexity_needs_tokens():
    with pytest.raises(ValueError, match="at least one token"):
        model().perplexity([])


def test_loading_through_the_hub(folder, monkeypatch):
    asked = {}

    def download(name, **options):
        asked.update(options, name=name)
        return str(folder)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    read = HMMLM.from_pretrained("someone/a-model", revision="v1")
    ids = torch.tensor([read.encode(TEXT)])
    assert torch.equal(read.hmm().log_prob(ids), model().hmm().log_prob(ids))
    assert (asked["name"], asked["revision"]) == ("someone/a-model", "v1")


@pytest.mark.parametrize("name", ["runs/none/model", "./none", "~/no such", "nowhere"])
def test_no_such_model(name, tmp_path, monkeypatch):
    """One sentence; the hub is asked once, and only for what can be a name there."""
    asked = []

    def download(name, **_):
        asked.append(name)
        raise OSError("Got: ConnectError\nPlease check your connection")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    monkeypatch.setattr(hub_mixin, "hf_hub_download", lambda **_: pytest.fail("asked twice"))
    said = one_sentence(name, f"there is no folder {name}")
    assert asked == (["nowhere"] if name == "nowhere" else [])
    assert said.endswith("no such model: Got: ConnectError" if asked else name)


def test_the_folder_of_a_run(tmp_path, monkeypatch):
    model().save_pretrained(tmp_path / "run" / "model")
    ids = torch.tensor([model().encode(TEXT)])
    wanted = model().hmm().log_prob(ids)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in (tmp_path / "run", str(tmp_path / "run"), "~/run", "~/run/model"):
        assert torch.equal(HMMLM.from_pretrained(name).hmm().log_prob(ids), wanted)
    (tmp_path / "run" / "model").rename(tmp_path / "run" / "model.previous")
    assert torch.equal(HMMLM.from_pretrained(tmp_path / "run").hmm().log_prob(ids), wanted)


def test_pushing_uploads_the_folder(monkeypatch):
    uploaded = set()

    class Api:
        def __init__(self, **_):
            pass

        def create_repo(self, repo_id, **_):
            return type("Url", (), {"repo_id": repo_id})()

        def upload_folder(self, *, folder_path, **_):
            uploaded.update(path.name for path in folder_path.iterdir())

    monkeypatch.setattr(hub_mixin, "HfApi", Api)
    model().push_to_hub("someone/a-model")
    assert uploaded >= {"config.json", "model.safetensors", "vocab.json", "blocks.json"}


def test_model_card_says_what_is_known(folder, tmp_path):
    card = (folder / "README.md").read_text()
    assert re.search("^library_name: bighmm$", card, re.M)
    assert "license" not in card and "pushed" not in card and "perplexity" not in card.lower()
    assert f"{STATES:,} states" in card and "open_model" in card
    lm = HMMLM.from_pretrained(folder)
    lm.save_pretrained(tmp_path / "licensed", model_card_kwargs={"license": "cc-by-4.0"})
    card = (tmp_path / "licensed" / "README.md").read_text()
    assert re.search("^license: cc-by-4.0$", card, re.M)


def test_model_card_of_a_run(folder):
    lm = open_model(folder)
    figures = {"tokens": 9, "perplexity": 4.0, "unigram_perplexity": 6.0}
    recipe = {
        "corpus": {"data": "/there/text.txt"},
        "training": {"epochs": 2.0},
        "mixed": {"more": None},
        "initial": {"init_from": "/runs/small", "labels": None, "centroids": True},
    }
    counted = {"valid": 5.0, "test": 5.5}
    result = {"recipe": recipe, "steps": 3, "valid": figures, "test": figures}
    card = about_run(lm, result | {"kneser_ney": counted}, 100)
    assert "It began with the model `small`, the centroids of the labels." in card
    assert "| unigram | Kneser-Ney |" in card and "| test | 9 | 4.00 | 6.00 | 5.50 |" in card
    recipe["initial"] = {}
    card = about_run(lm, result | {"kneser_ney": None}, 100)
    assert "Kneser-Ney" not in card and "began" not in card
    assert "- hmm" in card_of(card) and "- hmm" not in card_of("# Language model (NgramLM)\n")


def test_a_free_support_is_saved_with_the_weights(tmp_path):
    lm = model("scalar", "per_token")
    lm.save_pretrained(tmp_path)
    read = HMMLM.from_pretrained(tmp_path).params.support
    assert isinstance(read, PerToken) and torch.equal(read.table, lm.params.support.table)


@pytest.mark.parametrize("length", [-1, -2])
def test_texts_of_less_than_no_words(length):
    lm = model()
    rule = lm.rule(must=["cat"])
    for ask in (
        lambda: lm.sample(1, length=length, prefix="the cat"),
        lambda: lm.rule_log_prob(rule, length),
    ):
        with pytest.raises(ValueError, match=f"at least 0 tokens after its prefix, not {length}"):
            ask()
