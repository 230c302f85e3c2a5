"""A server that chooses the model learns no more of an image by errors than by releases."""

import math

import pytest
import torch
from gated_site import audited, good_reply, leave
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import make_reply

from grandrounds.privacy.mechanisms.dp_sgd import PrivateStep, RecordLevelOptions
from grandrounds.protocol.messages import Payload, decode_result, encode_payload

RUNS = 400


def told_apart(first, second, epsilon, delta):
    """The empirical lower bound on epsilon from a threshold on the log likelihood ratio, at a confidence of about 99.9 %."""
    scores = torch.cat([first, second])
    margin = 3.3 * math.sqrt(0.25 / len(first))
    bounds = [0.0]
    for threshold in scores.quantile(torch.linspace(0.02, 0.98, 49, dtype=scores.dtype)):
        true, false = float((first > threshold).double().mean()), float((second > threshold).double().mean())
        for hit, miss in ((true, false), (1 - false, 1 - true)):
            if hit - margin > delta:
                bounds.append(math.log(max(hit - margin - delta, 1e-12) / min(miss + margin, 1.0)))
    return max(bounds)


def test_an_error_of_training_is_a_release_like_any_other(site):
    """Booked, of the same form, and with the same noise: the update is zero where the training has failed."""
    spread = []
    for reply in (good_reply(site), make_reply(ReturnCode.EXECUTION_EXCEPTION)):
        values = []
        for _ in range(20):
            context, _ = site.admit()
            left = leave(reply, context)
            assert left.get_return_code() == ReturnCode.OK
            result = decode_result(left, site.asked)
            assert (result.samples, sorted(result.releases), result.facts) == (1, ["update"], {})
            values.append(torch.cat(list(result.update.values())))
        assert audited(site)[-1]["outcome"] == "released"
        spread.append(torch.stack(values).std())
    assert float(spread[0] / spread[1]) == pytest.approx(1.0, rel=0.35)


def test_values_that_are_not_finite_are_replaced_as_well(site):
    reply = good_reply(site)
    reply["DXO"]["data"]["update"].data["w"][1] = float("inf")
    context, _ = site.admit()
    left = leave(reply, context)
    assert left.get_return_code() == ReturnCode.OK
    assert "NaN or infinite" in audited(site)[-1]["in_place_of"]


def test_a_model_with_enormous_weights_is_not_trained(site):
    parts = {"global": {**site.asked.parts["global"], "w": torch.tensor([0.0, 3e38, 0.0])}}
    _, came_in = site.admit(message=encode_payload(Payload(1, site.asked.values, parts)))
    assert "DXO" not in came_in
    assert "weight of 3e+38" in audited(site)[-1]["detail"]


class Overflowing(torch.nn.Module):
    """A network of the server's making: its output overflows for images that are bright in one pixel, and no others."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor([[1.0], [0.5]]))

    def forward(self, images):
        bright = (images[:, 0, 0, :1] - 0.9).clamp(min=0.0)
        return (images.mean(dim=(2, 3))[:, :1] + bright * 3e38 * 3e38) * self.weight.T


@pytest.mark.parametrize("multiplier", [2.0])
def test_an_image_that_makes_the_gradient_overflow_changes_a_private_step_within_epsilon(multiplier):
    """Likelihood-ratio test over repeated runs: no error, and the step's outcomes differ by no more than is booked."""
    options = RecordLevelOptions(clip=1.0, noise_multiplier=multiplier, sampling_rate=1.0, steps=1)
    plain = torch.full((8, 1, 2, 2), 0.4)
    target = plain.clone()
    target[0, 0, 0, 0] = 1.0
    outcomes = []
    for images in (plain, target):
        network = Overflowing()
        runs = []
        for _ in range(RUNS):
            step = PrivateStep(network, torch.nn.functional.cross_entropy, len(images), options)
            step.set_gradients(images, torch.zeros(len(images), dtype=torch.int64))
            runs.append(network.weight.grad.double().flatten() * len(images))
        outcomes.append(torch.stack(runs))
    assert bool(torch.isfinite(torch.cat(outcomes)).all())
    direction = outcomes[1].mean(dim=0) - outcomes[0].mean(dim=0)
    assert float(direction.norm()) <= 1.0 + 5 * multiplier * math.sqrt(2 / RUNS), (
        "one image moves the sum by the clip at most"
    )
    scores = [runs @ direction for runs in outcomes]
    epsilon = math.sqrt(2 * math.log(1.25 / 1e-2)) / multiplier
    assert told_apart(scores[1], scores[0], epsilon, 1e-2) <= epsilon
