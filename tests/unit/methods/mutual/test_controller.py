from types import SimpleNamespace

import pytest
import torch
from nvflare.app_opt.pt.decomposers import TensorDecomposer
from nvflare.fuel.utils import fobs
from nvflare.private.fed.utils.fed_utils import nvflare_fobs_initialize

from grandrounds.deployment.jobs import load_job
from grandrounds.errors import ConfigurationError, MessageError
from grandrounds.methods.mutual.controller import MutualController
from grandrounds.methods.mutual.executor import MutualExecutor
from grandrounds.methods.mutual.options import ExchangeOptions
from grandrounds.methods.mutual.soft_labels import SoftLabels
from grandrounds.protocol.messages import Registration, Release, ReleaseKind, Result
from grandrounds.protocol.wire import encode_payload, encode_result


def controller(**options):
    return MutualController(**{**load_job("mdhfl").options("controller"), **options})


def sent(weights, **options):
    """What sites get of a sum with these weights."""
    server = controller(**options)
    rows = torch.full((2, 4), 0.25 * sum(weights.values()))
    server._sum = SoftLabels(rows, dict.fromkeys(weights, 1), weights)
    return server.payload_for("a").parts, server.round_notes().get("withheld", False)


def test_a_site_without_weight_does_not_count_as_a_contributor():
    # The second weight alone would be the soft labels of b, as they are.
    parts, withheld = sent({"a": 0.5, "b": 0.5, "c": 0.0}, min_contributors=3, weighting="eccr")
    assert not parts
    assert withheld
    parts, withheld = sent({"a": 0.5, "b": 0.25, "c": 0.25}, min_contributors=3, weighting="eccr")
    assert torch.equal(parts["soft_labels"]["values"], torch.full((2, 4), 0.25))
    assert not withheld


@pytest.mark.parametrize(
    ("scalars", "facts", "reason"),
    [
        ({"classes": 5.0, "public_images": 8.0}, {"public": "ab"}, r"a has a head of 5\.0 classes, the job has 4"),
        ({"public_images": 8.0}, {"public": "ab"}, "a has a head of None classes, the job has 4"),
        ({"classes": 4.0}, {"public": "ab"}, "a has not reported which public images it has"),
        ({"classes": 4.0, "public_images": 8.0}, {}, "a has not reported which public images it has"),
        (
            {"classes": 4.0, "public_images": 1e8},
            {"public": "ab"},
            r"a reports 1e\+08 public images, .* at most 10000000",
        ),
        (
            {"classes": 4.0, "public_images": 8.5},
            {"public": "ab"},
            r"a reports 8\.5 public images, expected a whole number",
        ),
    ],
)
def test_a_site_with_other_classes_or_without_public_images_is_refused(scalars, facts, reason):
    with pytest.raises(MessageError, match=reason):
        controller().check_registration("a", Registration(scalars, facts))
    controller().check_registration("a", Registration({"classes": 4.0, "public_images": 8.0}, {"public": "ab"}))


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ({"a": 30, "b": 48, "c": 48}, 48),
        ({"a": 9_999_999, "b": 48, "c": 30}, 30),
        ({"a": 48, "b": 30, "c": 30, "d": 48}, 30),
    ],
    ids=["most", "three_numbers", "tie"],
)
def test_the_number_of_public_images_is_that_of_most_sites_and_the_others_are_refused(monkeypatch, numbers, expected):
    server = controller(rounds=2)
    monkeypatch.setattr(server, "dispatcher", SimpleNamespace(require_enough=lambda ready: None), raising=False)
    for site, number in numbers.items():
        registration = Registration({"classes": 4.0, "public_images": float(number)}, {"public": "ab"})
        server.check_registration(site, registration)
        server.registered[site] = registration
    ready = [site for site, number in numbers.items() if number == expected]
    assert server.participants(list(numbers)) == ready
    assert server.state_dict()["images"] == expected
    for site in numbers.keys() - set(ready):
        assert server.sites.refused[site] == (
            f"{site} reports {numbers[site]:g} public images, but the public set has {expected}"
        )
    late = Registration({"classes": 4.0, "public_images": 3.0}, {"public": "ab"})
    with pytest.raises(MessageError, match="late reports 3 public images"):
        server.check_registration("late", late)


def test_fewer_sites_per_round_than_contributors_are_refused_unless_older_rows_count():
    with pytest.raises(ConfigurationError, match="sites_per_round is 2, below min_contributors = 3"):
        controller(sites_per_round=2, min_contributors=3)
    assert controller(sites_per_round=2, min_contributors=3, max_age=1).contributors.min_contributors == 3


@pytest.fixture(scope="module")
def serialised():
    """How many bytes FLARE makes of a message."""
    nvflare_fobs_initialize()
    fobs.register(TensorDecomposer)
    return lambda message: len(fobs.dumps(message))


def test_a_message_is_its_rows_and_less_than_four_kibibytes_however_many_the_rows_are(serialised):
    def down(images, sites=4):
        server, names = controller(), [f"hospital-{number:03}" for number in range(sites)]
        rows = torch.full((images, 4), 0.25 * sites)
        server._sum = SoftLabels(rows, dict.fromkeys(names, 1), dict.fromkeys(names, 1.0))
        return serialised(encode_payload(server.payload_for("a"))) - images * 4 * 4

    def up(images):
        release = Release(ReleaseKind.SOFT_LABELS, {"values": torch.full((images, 4), 0.25)})
        answer = encode_result(
            Result({"soft_labels": release}, {"loss": 1.0}, 10), MutualExecutor.releases, controller().payload_for("a")
        )
        return serialised(answer) - images * 4 * 4

    for around in (down, up):
        assert 0 < around(100) < 4096
        assert abs(around(10_000) - around(100)) < 32
    # Their names are all that more sites add.
    assert 0 < (down(100, sites=54) - down(100)) / 50 < 48


def test_confidence_needs_rows():
    with pytest.raises(ConfigurationError, match="weighting ccr is for probabilities, content is none"):
        ExchangeOptions(content="none", weighting="ccr")
