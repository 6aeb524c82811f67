"""Mixed batches: the share of each text, streams of their own, and a last stretch without one."""

import numpy as np
import pytest

from bighmm.data.mixed import Text, mixed_batches, rows_of

END = 0


def text(first, documents, size):
    """Documents of one size whose tokens are first, first + 1, …, each ending with the end mark."""
    tokens = np.arange(first, first + documents * size, dtype=np.uint16)
    tokens[size - 1 :: size] = END
    return Text(tokens, np.arange(documents + 1) * size)


REAL, MORE = text(1, 40, 7), text(1000, 300, 11)


def mixed(kind="streams", share=0.75, epochs=3.0, batch=8, seed=1, window=7):
    return mixed_batches(
        kind,
        REAL,
        MORE,
        end=END,
        batch=batch,
        window=window,
        seed=seed,
        share=share,
        mixed_epochs=epochs,
    )


def is_more(batch):
    """Whether each row is of the second text."""
    return (batch.ids.max(1) >= 1000).tolist()


@pytest.mark.parametrize("kind", ["streams", "ordered", "rotated", "windows", "sentences"])
def test_every_batch_has_the_share(kind):
    batches = mixed(kind, window=11)
    for step in range(3):
        batch = batches.batch(step)
        assert is_more(batch) == [False] * 2 + [True] * 6
        assert (batch.ids[np.arange(11) >= batch.lengths[:, None]] == 0).all()


def test_documents():
    assert is_more(mixed("documents", window=11).batch(0)) == [False] * 2 + [True] * 6


def test_share_is_of_whole_rows():
    assert [rows_of(16, share) for share in (0.9, 0.5, 0.001, 0.999, 1)] == [14, 8, 1, 15, 16]
    for share in (0, -1, 1.5, float("nan")):
        with pytest.raises(ValueError, match="share must be above 0 and at most 1, not"):
            rows_of(16, share)
    with pytest.raises(ValueError, match="a batch of 1 row cannot be shared by two texts"):
        rows_of(1, 0.5)


def test_all_rows_may_be_of_the_second_text():
    assert is_more(mixed(share=1).batch(0)) == [True] * 8


def test_an_epoch_has_the_steps_of_the_first_text_alone():
    batches = mixed()
    assert batches.steps_per_epoch == 280 / 8 / 7 == 5
    assert batches.tokens_per_step == 56 and batches.shape == (8, 7)


def test_a_batch_is_a_function_of_seed_and_step():
    steps = (3, 0, 17, 8, 3)
    for step in steps:
        one, other = mixed(epochs=5).batch(step), mixed(epochs=5).batch(step)
        assert np.array_equal(one.ids, other.ids)
        assert np.array_equal(one.continues, other.continues)
    batches = mixed(epochs=5)
    again = [batches.batch(step) for step in steps]
    assert all(
        np.array_equal(found.ids, mixed(epochs=5).batch(step).ids)
        for step, found in zip(steps, again, strict=True)
    )
    assert not np.array_equal(mixed(seed=2).batch(0).ids, mixed(seed=1).batch(0).ids)


def test_rows_go_on_in_their_own_text():
    """Each text has every token once before any comes again, and says where it begins anew."""
    batches = mixed(epochs=100)
    found = [batches.batch(step) for step in range(160)]  # 2 and 6 rows of 280 and 3300 tokens
    for rows, own, steps in ((slice(0, 2), REAL, 20), (slice(2, 8), MORE, 79)):
        part = [np.broadcast_to(batch.continues, 8)[rows] for batch in found]
        assert [bool(c.all()) for c in part] == [step % steps > 0 for step in range(160)]
        assert all(c.all() or not c.any() for c in part)
        inside = [np.arange(b.ids.shape[1]) < b.lengths[:, None] for b in found[:steps]]
        pairs = zip(found[:steps], inside, strict=True)
        once = [batch.ids[rows][here[rows]] for batch, here in pairs]
        assert sorted(np.concatenate(once).tolist()) == sorted(own.tokens.tolist())
    assert found[0].continues is False and found[1].continues is True
    assert found[20].continues.tolist() == [False] * 2 + [True] * 6


def test_the_last_stretch_is_of_the_first_text_alone():
    batches, alone = mixed(epochs=1.4), mixed(epochs=0)
    assert [any(is_more(batches.batch(step))) for step in range(10)] == [True] * 7 + [False] * 3
    for step in range(3):
        one, other = batches.batch(7 + step), alone.batch(step)
        assert np.array_equal(one.ids, other.ids) and one.continues == (step > 0)
