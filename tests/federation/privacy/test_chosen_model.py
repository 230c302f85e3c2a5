"""A server that chooses the model learns no more of an image by errors than by releases."""

import json
import math
import shutil
from types import SimpleNamespace

import pytest
import torch
from gated_site import audited, good_reply, leave
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import make_reply

from grandrounds.federation.site.executor import SiteExecutor
from grandrounds.privacy.gate.audit import Reason
from grandrounds.privacy.mechanisms.dp_sgd import PrivateStep
from grandrounds.privacy.mechanisms.record_level import RecordLevelOptions
from grandrounds.protocol.messages import REASON_HEADER, Payload, Result, model_update
from grandrounds.protocol.paths import LOCK
from grandrounds.protocol.spending import TRAINING_GATE
from grandrounds.protocol.wire import decode_result, encode_payload, encode_result

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


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
@pytest.mark.parametrize("part", ["global", "scored"])
def test_weights_in_whole_numbers_are_weights(site, part, dtype):
    """A network takes them as they are: they must be small, and a task that has them has a model."""
    for value, admitted in ((7, True), (torch.iinfo(dtype).min, False), (torch.iinfo(dtype).max, False)):
        parts = {part: {"w": torch.tensor([value, 0], dtype=dtype)}}
        context, came_in = site.admit("validate", encode_payload(Payload(1, site.asked.values, parts)))
        assert ("DXO" in came_in) == admitted
        assert context.get_prop(TRAINING_GATE).facts.terms.models


def test_the_bits_of_a_solved_heads_scaling_are_no_weights(site):
    """Scaling and temperature of a head travel as integers of the same bits; weights of that type are weights."""
    bits = torch.tensor([3.0, 1.0]).view(torch.int32)
    for name, admitted in (("classifier.scale", True), ("classifier.linear.weight", False), ("other.scale", False)):
        head = {"classifier.linear.weight": torch.ones(2), name: bits}
        _, came_in = site.admit("validate", encode_payload(Payload(1, site.asked.values, {"global": head})))
        assert ("DXO" in came_in) == admitted, name


def test_a_job_whose_folder_was_deleted_while_it_ran_gets_nothing(site):
    """At a kit: with its folder goes what the gate compares a task with, such as the data set of the signed job."""
    lock, job = site.root / "local" / LOCK, site.root / "job-1"
    part = job / "app_site-1" / "config" / "config_fed_server.json"
    lock.write_text("{}")
    try:
        for dataset, admitted in (("phantom", True), ("skin", False), (None, False)):
            part.parent.mkdir(parents=True, exist_ok=True)
            part.write_text(json.dumps({"workflows": [{"args": {"problem": {"dataset": dataset}}}]}))
            if dataset is None:
                shutil.rmtree(job)
            _, came_in = site.admit()
            assert ("DXO" in came_in) == admitted
        assert audited(site)[-1]["reason"] == Reason.DATASET
    finally:
        lock.unlink()


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


@pytest.fixture
def record_level(site):
    """The same site under a policy that relies on noise in the training."""
    rule = {"kind": "model_update", "name": "update", "treatment": "record_level", "min_noise_multiplier": 1.0}
    before = site.scope.props
    scores = [{"name": "validation.*", "part": "val", "minimum_support": 2}, SAMPLES]
    site.scope.set_props({"grandrounds": {"unit": "record", "delta": 1e-5, "releases": [rule], "scalars": scores}})
    yield site
    site.scope.set_props(before)


SAMPLES = {"name": "samples", "part": "train", "minimum_support": 1}


def without_update(site, *metrics):
    named = {"validation.f1": 0.5, **dict.fromkeys(metrics, 7.0)}
    return encode_result(Result({}, named, 44 if metrics else 0), {}, site.asked)


def test_a_training_without_noise_gets_one_answer_whatever_came_of_it(record_level):
    """Under a policy that relies on noise in the training: an error would be an exact and free answer."""
    spoilt = good_reply(record_level)
    spoilt["DXO"]["data"]["update"].data["w"][1] = float("inf")
    left = []
    for reply in (good_reply(record_level), spoilt, make_reply(ReturnCode.EXECUTION_EXCEPTION)):
        context, _ = record_level.admit()
        left.append(leave(reply, context))
    assert left[0] == left[1] == left[2]
    assert left[0].get_header(REASON_HEADER) == Reason.DENIED


def test_a_training_whose_model_stays_shows_no_failure_by_its_numbers(record_level):
    left = []
    for reply in (without_update(record_level, "loss", "samples"), without_update(record_level)):
        context, _ = record_level.admit()
        left.append(decode_result(leave(reply, context), record_level.asked))
    assert left[0] == left[1]
    assert left[0].metrics.keys() == {"validation.f1", "samples"}


class Failing(SiteExecutor):
    """Its training gives a value that cannot be sent."""

    releases = {}  # noqa: RUF012

    def train(self, payload, context):
        return Result(model_update({"w": torch.tensor([math.inf])}), {"loss": math.nan}, 5)


@pytest.mark.parametrize("model", ["shared", "own"])
def test_a_value_that_cannot_be_sent_is_a_failure_of_training_and_the_scores_beside_it_leave(model):
    """If the whole answer failed, missing scores would show it."""
    executor = Failing(model=model)
    executor._hides_failures = True
    payload = Payload(1, {"run_id": "r-1"}, {"global": {"w": torch.ones(1)}})
    store = SimpleNamespace(load_state=lambda number: {"before": number})
    noted = []
    gate = SimpleNamespace(note_failure=lambda cause, fault: noted.append(cause))
    result = executor._trained(payload, SimpleNamespace(round_number=1, gate=gate), store)
    assert noted == ["metric 'loss' must be a finite number, got nan"]
    assert executor.kept == {"before": 1}
    assert (result.update is None) == (model == "own")
    assert model == "own" or result.update["w"].tolist() == [0.0]
    assert result.metrics == {}
