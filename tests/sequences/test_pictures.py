"""The drawing of a model for notebooks, and its way to the hub."""

import xml.etree.ElementTree as ElementTree

import huggingface_hub.hub_mixin as hub_mixin
import numpy as np
import pytest

from bighmm.sequences import SequenceHMM
from models import random_hmm

START, MOVES = [0.6, 0.4], [[0.7, 0.3], [0.01, 0.99]]


def drawn(model):
    page = model._repr_html_()
    svg = page[page.index("<svg") : page.index("</svg>") + len("</svg>")]
    return page, ElementTree.fromstring(svg)


def test_states_moves_and_symbols():
    model = SequenceHMM.from_tables(START, MOVES, [[0.1, 0.9], [0.6, 0.4]], symbols=["<b>", "&"])
    page, svg = drawn(model)
    name = "{http://www.w3.org/2000/svg}"
    texts = [text.text for text in svg.iter(f"{name}text")]
    assert "0" in texts and "1" in texts and "& 0.90" in texts and "<b> 0.60" in texts
    said = [title.text for title in svg.iter(f"{name}title")]
    assert said == ["0.700", "0.300", "0.990"]  # less likely moves are left out
    assert "2 states, 2 symbols" in page and "<b>" not in page


@pytest.mark.parametrize("states, circles", [(1, 1), (12, 12), (30, 12)])
def test_large_models_are_drawn_in_part(states, circles):
    draw = np.random.default_rng(0)
    start, moves, words = (
        draw.dirichlet(np.ones(n), k) for n, k in ((states, 1), (states, states), (3, states))
    )
    page, svg = drawn(SequenceHMM.from_tables(start[0], moves, words))
    bold = [t for t in svg.iter("{http://www.w3.org/2000/svg}text") if t.get("font-weight")]
    assert len(bold) == circles and ("most used are drawn" in page) == (states > 12)


def test_blocks_and_models_that_are_not_fitted():
    drawn(SequenceHMM.from_hmm(random_hmm("blocked-flat", end=None)))
    assert SequenceHMM(2)._repr_html_() == "<code>SequenceHMM(n_states=2)</code>"


def test_push_to_hub(monkeypatch, tmp_path):
    uploaded = {}

    class Api:
        def __init__(self, **_):
            pass

        def create_repo(self, repo_id, **_):
            return type("Url", (), {"repo_id": repo_id})()

        def upload_folder(self, *, folder_path, **_):
            uploaded.update({path.name: path.read_bytes() for path in folder_path.iterdir()})
            return "https://example.org/commit"

    monkeypatch.setattr(hub_mixin, "HfApi", Api)
    model = SequenceHMM.from_tables(START, MOVES, np.eye(2), symbols=["x", "y"])
    assert model.push_to_hub("someone/clicks").startswith("https://")
    assert set(uploaded) == {"config.json", "model.safetensors", "README.md"}
    assert b"library_name: bighmm" in uploaded["README.md"]
    for name, content in uploaded.items():
        (tmp_path / name).write_bytes(content)
    assert SequenceHMM.from_pretrained(tmp_path).score([["x", "y"]]) == model.score([["x", "y"]])
    monkeypatch.setattr("bighmm.sequences.estimator.hub_folder", lambda name, **_: tmp_path)
    assert SequenceHMM.from_pretrained("someone/clicks").symbols_ == ["x", "y"]
