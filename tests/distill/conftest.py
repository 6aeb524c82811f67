"""Small corpora, and teachers whose vectors show which ids they have read."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from bighmm.data.corpus import prepare
from bighmm.distill.teachers import Pieces
from tiny_lm import save_language_model

TEXT = (
    'The cat sat on the "mat", and the dog (a big one) slept.\n'
    "A dog's life isn't bad: the cat thinks so, too.\n"
    "Naïve cafés cost 3.50 € in Zürich; 漢字 and 😀 don't.\n"
    "The mat was red, the dog was big and the cat was small.\n"
)


@pytest.fixture(scope="session")
def text_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "small.txt"
    path.write_text(TEXT * 60, encoding="utf-8")
    return path


@pytest.fixture
def corpus(text_file):
    """About 2,600 training tokens of 35 words, of which some are rare."""
    return prepare(text_file)


class Characters:
    """A teacher whose tokens are characters; a vector is a character code and its place."""

    width, causal, device = 2, True, torch.device("cpu")
    name = "characters"

    def description(self):
        return {"kind": self.name}

    def shares_vocabulary(self, tokenizer):
        return False

    def tokenize(self, text):
        places = np.arange(len(text))
        return Pieces(np.array([ord(c) for c in text]), places, places + 1)

    def hidden(self, ids):
        return torch.stack([ids, torch.arange(ids.shape[1]).expand_as(ids)], 2).float()


class Syllables(Characters):
    """A teacher with pieces of at most two letters of a word, and none for white space."""

    def tokenize(self, text):
        spans = []
        for place, character in enumerate(text):
            if character.isspace():
                continue
            joins = spans and spans[-1][1] == place and place - spans[-1][0] < 2
            if joins:
                spans[-1] = (spans[-1][0], place + 1)
            else:
                spans.append((place, place + 1))
        starts, ends = np.array(spans, np.int64).reshape(-1, 2).T
        return Pieces(np.arange(len(starts)), starts, ends)


@pytest.fixture
def teachers():
    return SimpleNamespace(characters=Characters(), syllables=Syllables())


@pytest.fixture(scope="session")
def tiny_lm(tmp_path_factory):
    return save_language_model(tmp_path_factory.mktemp("tiny_lm"))
