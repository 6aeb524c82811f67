import numpy as np
import pytest


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """200 lines of 12 words, drawn from a Markov chain."""
    generator = np.random.default_rng(0)
    chain = generator.dirichlet(np.full(12, 0.1), size=12)
    lines = []
    for _ in range(200):
        word, line = 0, []
        for _ in range(generator.integers(2, 9)):
            word = generator.choice(12, p=chain[word])
            line.append(f"w{word}")
        lines.append(" ".join(line))
    path = tmp_path_factory.mktemp("chain") / "text.txt"
    path.write_text("\n".join(lines))
    return path
