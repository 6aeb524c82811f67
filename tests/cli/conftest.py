"""A tiny model, trained once."""

import random

import pytest
import torch

from bighmm.cli.main import main

SMALL = [
    *("--states", "24", "--blocks", "4", "--width", "8"),
    *("--batch", "8", "--window", "8", "--epochs", "1", "--device", "cpu"),
    # All that would be chosen for the text otherwise.
    *("--start", "factored", "--state-dropout", "0.5", "--averaging", "0"),
    *("--checks-per-epoch", "4"),
]


@pytest.fixture(autouse=True)
def one_thread():
    """Tiny models gain nothing by more, and lose much where the other cores are busy."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def tiny_text() -> str:
    """300 lines of 40 words; each word is followed by one of three others."""
    draw = random.Random(0)
    lines = []
    for _ in range(300):
        words = [draw.randrange(40)]
        for _ in range(5):
            words.append((7 * words[-1] + draw.randrange(3)) % 40)
        lines.append(" ".join(f"w{word:02}" for word in words))
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="session")
def small():
    """The flags of a tiny model."""
    return SMALL


@pytest.fixture(scope="session")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "tiny.txt"
    path.write_text(tiny_text())
    return path


@pytest.fixture(scope="session")
def trained(text, tmp_path_factory):
    """The folder of a finished run; no test may change it."""
    run = tmp_path_factory.mktemp("trained") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BIGHMM_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
        main(["train", "--data", str(text), *SMALL, "--out", str(run)])
    return run
