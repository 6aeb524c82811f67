"""Training of two-level models: blocks that occur, and tables by Baum-Welch."""

import numpy as np
import pytest
import torch

from bighmm.base import randomness
from bighmm.data.batches import Batch
from bighmm.hmm import HMM
from bighmm.model import params
from bighmm.model.options import NeuralOptions, ScalarOptions
from bighmm.model.support import Blocked
from bighmm.train.expectation_maximisation import ExpectationMaximisation, baum_welch
from bighmm.train.losses import Likelihood, Window
from bighmm.train.recipe import TrainingSettings
from bighmm.train.schedule import make_schedule

VOCABULARY, BLOCKS, STATES = 30, 10, 40
SUPPORT = Blocked.of(torch.arange(VOCABULARY) % BLOCKS, STATES)


def batches(number, rows=3, time=4, seed=0):
    """Batches that follow each other; some rows are short, or empty, or missing."""
    generator = np.random.default_rng(seed)
    for n in range(number):
        here = rows - (n % 5 == 4)
        ids = generator.integers(VOCABULARY, size=(here, time))
        lengths = generator.integers(0 if n % 3 == 2 else 1, time + 1, size=here)
        lengths[0] = time
        yield Batch(ids, lengths, continues=n > 0)


def on_device(batch):
    return Window(torch.from_numpy(batch.ids), torch.from_numpy(batch.lengths))


@pytest.mark.parametrize("ahead", [1, 4])
def test_prepared_steps_have_room_for_all_blocks(ahead):
    """As many blocks as `prepare` says give what counting them gives, also in the next windows."""
    module = params.build("neural", NeuralOptions(width=8), SUPPORT, None, seed=1)
    counted, prepared = Likelihood(module, 0.5), Likelihood(module, 0.5)
    assert module.for_some_blocks
    all_batches = [b for b in batches(24) if len(b.ids) == 3]
    states = [loss.initial_state(3) for loss in (counted, prepared)]
    for step, batch in enumerate(all_batches):
        if step % ahead == 0:
            prepared.prepare(all_batches[step : step + ahead])
        key = randomness.key(1, step)
        first, states[0] = counted(on_device(batch), states[0], key)
        again, states[1] = prepared(on_device(batch), states[1], key)
        torch.testing.assert_close(again, first)
        torch.testing.assert_close(states[1]["states"], states[0]["states"])


def test_steps_after_others_that_were_not_prepared():
    module = params.build("neural", NeuralOptions(width=8), SUPPORT, None, seed=1)
    likelihood = Likelihood(module, 0.5)
    few = Batch(np.zeros((3, 4), dtype=np.int64), np.full(3, 4), continues=True)
    first = likelihood.prepare([few, few])
    likelihood.prepare([])  # another state has been restored
    assert likelihood.prepare([few]) == 8 and first == 8


def test_baum_welch_of_tables_in_two_levels():
    """It is Baum-Welch of the one table that they stand for."""
    options = ScalarOptions(transitions="two-level")
    module = params.build("scalar", options, SUPPORT, None, seed=2).double()
    settings = TrainingSettings(optimizer="baum-welch", state_dropout=0.0, full_batch=True)
    update = ExpectationMaximisation(module, settings, make_schedule(settings, 10))
    ids = torch.randint(VOCABULARY, (6, 9), generator=torch.Generator().manual_seed(0))
    fitted = baum_welch(HMM.of(module()), ids, iterations=4)
    window = Window(ids, torch.full((6,), 9))
    for expected in fitted.log_probs:
        update.begin()
        loss, _ = update.accumulate(window, update.initial_state(6), randomness.key(1, 0))
        assert float(loss) * ids.numel() == pytest.approx(-expected, rel=1e-9)
        update.apply(1.0)
    torch.testing.assert_close(
        HMM.of(module()).transitions.log_probs(), fitted.hmm.transitions.log_probs()
    )


@pytest.mark.parametrize("kind, options", [("neural", NeuralOptions), ("scalar", ScalarOptions)])
def test_without_blocks(kind, options):
    from bighmm.model.support import Dense

    with pytest.raises(ValueError, match="two-level transitions need blocks, which a dense"):
        params.build(kind, options(transitions="two-level"), Dense(4, 5), None)
