"""Random numbers as a function of a key."""

import torch

from bighmm.base import randomness


def test_known_values_of_splitmix64():
    found = randomness.scrambled(torch.tensor([1, 2])).tolist()
    assert [x % 2**64 for x in found] == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4]


def test_keys_differ_between_seeds_and_steps():
    keys = {int(randomness.key(seed, step)) for seed in range(30) for step in range(30)}
    assert len(keys) == 900


def test_a_step_may_be_a_tensor():
    assert torch.equal(randomness.key(5, torch.tensor(7)), randomness.key(5, 7))


def test_every_bit_is_set_half_of_the_time():
    numbers = randomness.noise(randomness.key(0, 0), 4096)
    assert len(numbers.unique()) == 4096
    for bit in range(64):
        share = ((numbers >> bit) & 1).double().mean()
        assert abs(float(share) - 0.5) < 0.05, bit
