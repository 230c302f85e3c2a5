"""Moments of training images leave with the test, by a rule, of enough patients; the record has those of all."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from grandrounds.data.site import load_site_data, locate_dataset
from grandrounds.errors import MessageError
from grandrounds.evaluation.clinical.image_moments import least_deviations, moments_of, rounded_moments, spread
from grandrounds.federation.server.dispatcher import received_moments
from grandrounds.protocol.messages import Release, ReleaseKind, Result
from grandrounds.protocol.problem import Problem

SITES = ["site-1", "site-2", "site-3"]
UPDATE = {"kind": "model_update", "name": "update", "treatment": "unmodified"}
SAMPLES = [{"name": "samples", "part": "train", "minimum_support": 2}]


def rule(minimum):
    return {"kind": "image_moments", "name": "image_moments", "treatment": "minimum_support", "minimum": minimum}


@pytest.fixture(scope="module")
def finished(tiny, run, install, policy_of, tmp_path_factory):
    """Of a site without a rule, one that asks for more patients than it has, and one whose moments leave."""
    place = tmp_path_factory.mktemp("moments")
    for site, releases in zip(SITES, ([UPDATE], [UPDATE, rule(1000)], [UPDATE, rule(5)]), strict=True):
        install(place / "flare" / site / "local", policy_of(releases=releases, scalars=SAMPLES), site)
    return SimpleNamespace(**vars(run(tiny("fedavg", "controller.rounds=1"), place, sites=SITES)), place=place)


def audited(finished, site):
    lines = (finished.place / f"flare/{site}/local/privacy/audit.jsonl").read_text().splitlines()
    return next(line for line in map(json.loads, lines) if line["task"] == "test")


def test_the_record_has_the_figures_of_the_sites_that_have_enough_patients_and_a_rule(finished, shared_cache):
    told = finished.summary["image_moments"]
    assert told["sites"] == ["site-3"]
    problem = Problem.from_dict(finished.summary["configuration"]["problem"])
    location = locate_dataset("site-3", problem.dataset, [shared_cache / "phantom"])
    data = load_site_data(location, problem, shared_cache)
    whole = rounded_moments(moments_of(data.images, data.cache.originals, data.rows("train")))
    assert list(told["figures"]) == list(least_deviations(problem.channels))
    found = np.array(list(told["figures"].values())).T
    assert found == pytest.approx(np.stack(spread(whole)), abs=1e-3)


def test_without_a_rule_they_are_withheld_and_of_few_patients_zeros_leave(finished):
    assert "image_moments" in audited(finished, "site-1")["withheld"]
    for site in SITES[1:]:
        assert audited(finished, site)["releases"]["image_moments"]["treatment"] == "minimum_support"


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"moments": torch.zeros(2, 11).double()}, "must be moments and support"),
        ({"moments": torch.zeros(2, 9).double(), "support": torch.tensor([10])}, "expected mean and mean square"),
        ({"moments": torch.zeros(2, 7).double(), "support": torch.tensor([10])}, "1 channels, those of the run have 3"),
    ],
)
def test_the_server_refuses_moments_that_it_could_not_use(tensors, message):
    with pytest.raises(MessageError, match=message):
        received_moments(Result({"image_moments": Release(ReleaseKind.IMAGE_MOMENTS, tensors)}), 3)
