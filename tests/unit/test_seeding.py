"""Every purpose has a stream of its own, the same in every process."""

import subprocess
import sys

import numpy as np
import torch

from grandrounds.seeding import derive_seed, numpy_generator, torch_generator


def test_a_seed_is_the_first_63_bits_of_the_hash_of_its_purpose():
    # printf 'int:1\x1fstr:site-1' | sha256sum
    assert derive_seed(1, "site-1") == 0x2A43A507A36EB919 >> 1


def test_order_type_and_grouping_of_a_purpose_count():
    purposes = [(1, 2), (2, 1), ("1", 2), (1, "2"), (12,), ("12",), (1, 2, ""), ("1", "2")]
    assert len({derive_seed(*purpose) for purpose in purposes}) == len(purposes)


def test_another_process_with_another_hash_seed_derives_the_same_seed():
    code = "from grandrounds.seeding import derive_seed; print(derive_seed(7, 'round', 3, 'site-1'))"
    environment = {"PYTHONHASHSEED": "12345", "PYTHONPATH": ":".join(sys.path)}
    found = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert found.stdout == f"{derive_seed(7, 'round', 3, 'site-1')}\n"


def test_generators_repeat_and_do_not_touch_the_global_ones():
    before = torch.random.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    first, again = torch_generator(1, "a"), torch_generator(1, "a")
    assert torch.equal(torch.rand(5, generator=first), torch.rand(5, generator=again))
    assert np.array_equal(numpy_generator(1, "a").random(5), numpy_generator(1, "a").random(5))
    assert not np.array_equal(numpy_generator(1, "a").random(5), numpy_generator(1, "b").random(5))
    assert torch.equal(before[0], torch.random.get_rng_state())
    assert np.array_equal(before[1], np.random.get_state()[1])  # noqa: NPY002


def test_streams_of_two_purposes_are_not_correlated():
    draws = np.stack([numpy_generator(1, "site", number).random(2000) for number in range(4)])
    correlation = np.corrcoef(draws) - np.eye(4)
    assert np.abs(correlation).max() < 0.1
