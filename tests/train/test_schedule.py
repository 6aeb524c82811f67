"""Learning rates: what they are, when they fall, and that they survive an interruption."""

import itertools
import json
import math

import pytest

from bighmm.train.recipe import TrainingSettings
from bighmm.train.schedule import Cosine, Plateau, make_schedule


def rates_after(schedule, losses):
    """The rate after each check."""
    rates = []
    for loss in losses:
        schedule.checked(loss)
        rates.append(schedule.rate(0))
    return rates


def test_plateau_by_default_divides_by_four_after_eight_checks_without_a_new_best():
    settings = TrainingSettings(schedule="plateau", lr=1.0)
    assert settings.checks_per_epoch == 4  # so that eight checks are two epochs
    rates = rates_after(make_schedule(settings, 100), [5.0] + [6.0] * 17)
    assert rates == [1.0] * 8 + [1 / 4] * 8 + [1 / 16] * 2


def test_plateau_waits_anew_after_a_new_best():
    rates = rates_after(Plateau(1.0, factor=2, patience=3), [5, 6, 6, 4, 6, 6, 4, 6])
    assert rates == [1, 1, 1, 1, 1, 1, 0.5, 0.5]  # the second 4 is no better than the first


def test_plateau_goes_on_where_it_was():
    losses = [5.0, 6.0, 4.0] + [4.5] * 9
    whole = rates_after(Plateau(1.0, 4, 3), losses)
    for cut in range(len(losses)):
        before, after = Plateau(1.0, 4, 3), Plateau(1.0, 4, 3)
        first = rates_after(before, losses[:cut])
        after.restore(json.loads(json.dumps(before.state(), allow_nan=False)))
        assert first + rates_after(after, losses[cut:]) == whole


def test_cosine_rises_then_falls():
    settings = TrainingSettings(schedule="cosine", lr=2.0, warmup=0.1, final_lr=0.25)
    schedule = make_schedule(settings, 100)
    rates = [schedule.rate(step) for step in range(101)]
    assert rates[:10] == pytest.approx([2.0 * (i + 1) / 10 for i in range(10)])
    assert rates[10] == 2.0
    assert rates[55] == pytest.approx(2.0 * (1 + 0.25) / 2)  # half way
    assert rates[33] == pytest.approx(2.0 * (0.25 + 0.75 * (1 + math.cos(math.pi * 23 / 90)) / 2))
    assert rates[100] == pytest.approx(0.5)
    assert all(a > b for a, b in itertools.pairwise(rates[10:]))
    assert schedule.rate(1000) == pytest.approx(0.5)


def test_constant_keeps_the_rate_after_the_rise():
    schedule = make_schedule(TrainingSettings(schedule="constant", lr=2.0, warmup=0.5), 4)
    assert [schedule.rate(step) for step in range(5)] == [1.0, 2.0, 2.0, 2.0, 2.0]


@pytest.mark.parametrize("warmup", [0.0, 1.0])
def test_all_or_nothing_of_the_run_is_warm_up(warmup):
    settings = TrainingSettings(schedule="cosine", lr=1.0, warmup=warmup)
    rates = [make_schedule(settings, 4).rate(step) for step in range(4)]
    assert rates == pytest.approx(
        [0.25, 0.5, 0.75, 1.0]
        if warmup
        else [(1 + math.cos(math.pi * i / 4)) / 2 for i in range(4)]
    )


def test_cosine_is_a_function_of_the_step_alone():
    one, other = Cosine(1.0, 5, 50, 0.1), Cosine(1.0, 5, 50, 0.1)
    one.checked(3.0)
    other.restore(json.loads(json.dumps(one.state())))
    assert [one.rate(s) for s in range(50)] == [other.rate(s) for s in range(50)]
