"""Steps of the server's optimizers against numbers computed by hand, and what may not be combined with them."""

import math

import pytest
import torch

from grandrounds.federation.server.aggregate import ServerOptimizer, ServerOptimizerOptions

ROUNDS = [{"weight": torch.tensor([2.0, 0.0]), "mean": torch.tensor(4.0)} for _ in range(2)]


def steps(**options):
    optimizer = ServerOptimizer(ServerOptimizerOptions(**options), ["weight"])
    return [optimizer.step(mean) for mean in ROUNDS]


def test_without_an_optimizer_the_mean_is_the_step_to_the_bit():
    assert all(torch.equal(step["weight"], ROUNDS[0]["weight"]) for step in steps())


def test_momentum_adds_what_is_left_of_earlier_rounds():
    first, second = steps(server_optimizer="momentum", server_momentum=0.5, server_learning_rate=0.1)
    torch.testing.assert_close(first["weight"], torch.tensor([0.2, 0.0]))  # m = 2
    torch.testing.assert_close(second["weight"], torch.tensor([0.3, 0.0]))  # m = 1 + 2


@pytest.mark.parametrize(
    ("name", "seconds"),
    [
        ("adam", (0.5 * 1 + 0.5 * 4, 0.5 * 2.5 + 0.5 * 4)),
        (
            "yogi",
            (1 + 0.5 * 4, 3 + 0.5 * 4),
        ),  # it is below the square, so it grows by half of that
    ],
)
def test_adaptive_steps_are_those_of_the_algorithm(name, seconds):
    """Momentum 1/2, beta_2 1/2, tau 1, so the second moment starts at 1; the first moments are 1 and 1.5."""
    options = {"server_momentum": 0.5, "server_beta2": 0.5, "server_adaptivity": 1.0, "server_learning_rate": 0.1}
    found = steps(server_optimizer=name, **options)
    for step, first, second in zip(found, (1.0, 1.5), seconds, strict=True):
        torch.testing.assert_close(step["weight"], torch.tensor([0.1 * first / (math.sqrt(second) + 1), 0.0]))


def test_yogi_lowers_a_second_moment_that_is_above_the_square():
    options = ServerOptimizerOptions("yogi", server_beta2=0.5, server_adaptivity=3.0, server_momentum=0.0)
    found = ServerOptimizer(options, ["weight"]).step({"weight": torch.tensor([2.0])})
    torch.testing.assert_close(found["weight"], torch.tensor([2 / (math.sqrt(9 - 0.5 * 4) + 3)]))


def test_what_is_not_trained_moves_by_its_mean():
    assert all(step["mean"] == 4 for step in steps(server_optimizer="yogi"))


def test_a_resumed_run_goes_on_with_its_moments():
    options = ServerOptimizerOptions("adam")
    whole, first, resumed = (ServerOptimizer(options, ["weight"]) for _ in range(3))
    whole.step(ROUNDS[0])
    first.step(ROUNDS[0])
    resumed.load_state_dict(first.state_dict())
    assert torch.equal(whole.step(ROUNDS[1])["weight"], resumed.step(ROUNDS[1])["weight"])
