"""Sums leave a site only for the network that it builds itself from the job."""

from dataclasses import replace

import pytest

from grandrounds.errors import MessageError
from grandrounds.methods.ridge.executor import require_own_network
from grandrounds.protocol.problem import Problem

PROBLEM = Problem("phantom", ("a", "b"), head="depths", trainable="head")
IMAGENET = replace(PROBLEM, backbone="efficientnet_lite0", weights="imagenet", norm="frozen")


def test_the_network_of_the_job_is_accepted():
    require_own_network(PROBLEM, 3, (PROBLEM.to_dict(), 3), True)
    require_own_network(IMAGENET, 4, (IMAGENET.to_dict(), 3), True)
    require_own_network(PROBLEM, 3, None, False)
    require_own_network(replace(IMAGENET, intensities="standardised"), 3, (IMAGENET.to_dict(), 3), True)


@pytest.mark.parametrize("changed", [{"trainable": "all"}, {"trainable": "from:blocks.2"}, {"head": "linear"}])
@pytest.mark.parametrize("signed", [True, False])
def test_a_network_that_the_server_could_send_is_refused_also_in_simulations(changed, signed):
    asked = replace(PROBLEM, **changed)
    with pytest.raises(MessageError, match=rf"trainable={asked.trainable}"):
        require_own_network(asked, 3, (asked.to_dict(), 3), signed)


@pytest.mark.parametrize(
    ("asked", "seed", "stated"),
    [
        (PROBLEM, 4, (PROBLEM.to_dict(), 3)),
        (IMAGENET, 3, (replace(IMAGENET, weights="theirs").to_dict(), 3)),
        (IMAGENET, 3, (replace(IMAGENET, backbone="resnet18").to_dict(), 3)),
        (PROBLEM, 3, (replace(PROBLEM, image_size=32).to_dict(), 3)),
        (PROBLEM, 3, None),
    ],
    ids=["seed", "weights", "backbone", "size", "no job"],
)
def test_another_network_than_that_of_the_signed_job_is_refused(asked, seed, stated):
    with pytest.raises(MessageError):
        require_own_network(asked, seed, stated, True)
