"""Every question without numba, and which threads small models wake."""

import json
import os
import subprocess
import sys

import pytest

ASK = """
import json, os, sys, warnings
if {blocked}:
    sys.modules["numba"] = None  # as if it were not installed
import numpy as np
import torch

torch.set_num_threads(4)
from bighmm.sequences import SequenceHMM
from bighmm.train.expectation_maximisation import baum_welch

warnings.simplefilter("ignore")
draw = np.random.default_rng(0)
tables = [draw.dirichlet(np.ones(n), m) for n, m in ((3, None), (3, 3), (4, 3))]
model = SequenceHMM.from_tables(*tables, iterations=2, init_params="")
long = draw.integers(0, 4, 40_000)  # enough for torch to use its threads, were it asked
symbols = long[:100]
before = len(os.listdir("/proc/self/task")) if os.path.isdir("/proc/self/task") else 0
hmm, ids = model.hmm_, torch.from_numpy(symbols[None, :40].copy())
gapped = [0, None, 3, 1]
found = [
    model.score(symbols),
    model.decode(symbols[:50])[0],
    model.predict(symbols[:50]).tolist(),
    model.predict_proba(symbols[:5]).tolist(),
    model.score(gapped),
    baum_welch(hmm, ids, iterations=3).log_probs,
    hmm.expected_counts(ids).transition.tolist(),
    hmm.best_paths(ids, 2).log_prob.tolist(),
    model.fit(symbols).history_,
    model.next_proba(gapped).tolist(),
]
if not {blocked}:
    model.score(long), model.predict(long), model.predict_proba(long), model.fit(long)
woken = len(os.listdir("/proc/self/task")) - before if before else 0
found.append(hmm.sample(2, 9, generator=torch.Generator().manual_seed(0)).tolist())
print(json.dumps([woken, "numba" in sys.modules and not {blocked}, found]))
"""


def ask(blocked):
    program = ASK.format(blocked=blocked)
    environment = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def flat(value):
    return [x for part in value for x in flat(part)] if isinstance(value, list) else [value]


def test_without_numba_and_without_waking_threads():
    pytest.importorskip("numba")
    _, used, plain = ask(blocked=True)
    assert not used
    woken, used, fast = ask(blocked=False)
    assert used
    assert woken < 3  # as many as torch's pool of four has besides the main thread
    assert flat(fast) == pytest.approx(flat(plain), rel=1e-9)
