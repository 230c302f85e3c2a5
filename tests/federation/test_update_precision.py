"""Federations whose updates travel in half precision: what it changes, what it does not, and what it cannot get around."""

import pytest
import torch

from grandrounds.errors import ConfigurationError
from grandrounds.federation.server.averaging import AveragingController

SITES = ["site-1", "site-2"]
ROUNDS = ["controller.rounds=2", "controller.min_sites=1"]
HALVES = ("float16", "bfloat16")


def filtered(job, path, **arguments):
    """The job with a filter of what leaves a training."""
    entry = {"tasks": ["train"], "filters": [{"path": path, "args": arguments}]}
    job.client["task_result_filters"].append(entry)
    return job


def asked_for(precision):
    return f"controller.update_precision={precision}"


def bytes_up(found):
    return {site: parts["up.update"] for site, parts in found.summary["bytes"].items()}


@pytest.fixture(scope="module")
def single(tiny, run, tmp_path_factory):
    """Two rounds in single precision."""
    return run(tiny("ssfl", *ROUNDS), tmp_path_factory.mktemp("single"), SITES)


@pytest.fixture
def arriving(monkeypatch):
    """The training results that the server has accepted."""
    came = []
    original = AveragingController.absorb
    monkeypatch.setattr(
        AveragingController, "absorb", lambda self, site, result: (came.append(result), original(self, site, result))
    )
    return came


@pytest.mark.parametrize(("precision", "digits"), [("float16", 11), ("bfloat16", 8)])
@pytest.mark.parametrize("wire", [False, True])
def test_half_the_bytes_travel_and_the_model_is_nearly_the_same(
    tiny, run, tmp_path, single, arriving, precision, digits, wire
):
    found = run(tiny("ssfl", "controller.rounds=1", asked_for(precision)), tmp_path, SITES, wire=wire)
    assert bytes_up(found) == {site: size / 2 / 2 for site, size in bytes_up(single).items()}, (
        "half, and half the rounds"
    )
    plain = run(tiny("ssfl", "controller.rounds=1"), tmp_path / "plain", SITES)
    largest = [max(float(r.update[name].abs().max()) for r in arriving) for name in arriving[0].update]
    for name, bound in zip(arriving[0].update, largest, strict=True):
        difference = (found.models["last"][name] - plain.models["last"][name]).abs().max()
        # Each update is off by half a unit of its last digit at most; the rest is of the sums, in single precision.
        assert difference <= bound * 2**-digits + 1e-6, name
    assert any(not torch.equal(found.models["last"][name], plain.models["last"][name]) for name in plain.models["last"])


@pytest.mark.parametrize("precision", HALVES)
def test_what_can_be_represented_makes_the_same_model_to_the_bit(tiny, run, identical, tmp_path, precision):
    plain, halved = (
        run(filtered(tiny("ssfl", *ROUNDS, asked_for(name)), "faulty.CoarseUpdate"), tmp_path / name, SITES)
        for name in ("float32", precision)
    )
    assert identical(plain.models, halved.models)
    assert 2 * sum(bytes_up(halved).values()) == sum(bytes_up(plain).values())


def test_a_site_whose_update_is_beyond_the_range_is_dropped_with_the_tensors_name(tiny, run, tmp_path):
    job = filtered(tiny("ssfl", *ROUNDS, asked_for("float16")), "faulty.ScaleUpdate", factor=1e9)
    with pytest.raises(Exception, match=r"site-1: update\['.*'\] has a value beyond float16: set controller\."):
        run(job, tmp_path, SITES)


def test_rounding_comes_after_the_gates_noise(tiny, run, tmp_path, arriving):
    filters = [{"path": "grandrounds.federation.job_noise.GaussianPrivacy", "args": {}}]
    filters[0]["args"] = {"clip": 1.0, "noise_multiplier": 1.0, "running_statistics": "average"}
    job = tiny("ssfl", "controller.rounds=1", asked_for("bfloat16"))
    job.client["task_result_filters"].append({"tasks": ["train"], "filters": filters})
    run(job, tmp_path, SITES)
    assert len(arriving) == 2
    for result in arriving:
        assert result.releases["update"].treated == "clip_and_noise"
        # Noise that is added afterwards has more digits than bfloat16.
        assert all(torch.equal(value, value.bfloat16().float()) for value in result.update.values())


def test_it_is_asked_for_by_the_job_alone(tiny):
    with pytest.raises(ConfigurationError, match=r"controller.update_precision must be float32, float16 or bfloat16"):
        tiny("fedavg", asked_for("int8")).checked()
    with pytest.raises(ConfigurationError, match="the controller of job local has no option 'update_precision'"):
        tiny("local", asked_for("float16"))


def test_a_run_in_another_precision_is_another_run(tiny, run, tmp_path):
    run(tiny("ssfl", "controller.rounds=1"), tmp_path, SITES)
    with pytest.raises(Exception, match="update_precision=float32 there, float16 here"):
        run(tiny("ssfl", *ROUNDS, asked_for("float16")), tmp_path, SITES)
