"""Servers with code of their own, and hospitals whose gates mask: what is asked is compared with the job."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from grandrounds.errors import GrandRoundsError, MessageError
from grandrounds.federation.server.record import read_events
from grandrounds.methods.fedirm.controller import FedIRMController
from grandrounds.methods.ridge.controller import RidgeController
from grandrounds.methods.ridge.executor import RidgeExecutor
from grandrounds.methods.ridge.options import MOST_OFFSETS, MOST_PENALTIES
from grandrounds.methods.ridge.phases import CANDIDATES, CENTRE, COUNT, LOGITS, OFFSET, SOLVE, VALIDATION_IMAGES
from grandrounds.protocol.messages import Payload
from tests.federations import Federation, draw_hospitals

SITES = ["site-1", "site-2", "site-3", "site-4"]
SECURE = "controller.aggregation=secure"
RULES = [
    *({"kind": "sufficient_statistics", "name": name, "treatment": "masked", "minimum": 2}
      for name in ("class_counts", "sums", "losses")),
    {"kind": "scores", "name": "scores_*", "treatment": "masked"},
    {"kind": "model_update", "name": "update", "treatment": "masked"},
    {"kind": "class_statistics", "name": "relation", "treatment": "masked"},
]  # fmt: skip


@pytest.fixture(scope="module")
def go(tmp_path_factory, shared_cache):
    folder = draw_hospitals(tmp_path_factory.mktemp("hospitals"), SITES, images=60)
    return Federation("ridge", SITES, folder, (SECURE,))


def refused(workspace, site="site-1"):
    """Why nothing has left, in the words that stay at a site."""
    lines = (workspace / "flare" / site / "local" / "privacy" / "audit.jsonl").read_text().splitlines()
    return "\n".join(line["detail"] for line in map(json.loads, lines) if line["outcome"] in ("refused", "failed"))


def test_a_second_question_about_sums_of_features_is_not_answered(go, tmp_path, masking, monkeypatch):
    """By many bounds a server would see at which of them each number of a site is clipped."""
    monkeypatch.setattr("grandrounds.methods.ridge.controller.PHASES", (COUNT, SOLVE, SOLVE))
    masking(tmp_path, SITES, RULES)
    with pytest.raises(GrandRoundsError, match="round 3: 0 of 4 sites gave a valid result"):
        go(tmp_path)
    assert "question about sums of phantom" in refused(tmp_path)


def changed(monkeypatch, controller, **values):
    """The server's tasks have other values than the job."""
    payload_for = controller.payload_for

    def hostile(self, site):
        payload = payload_for(self, site)
        return replace(payload, values={**payload.values, **values})

    monkeypatch.setattr(controller, "payload_for", hostile)


def test_a_norm_that_is_not_the_jobs_gives_no_sum(go, tmp_path, masking, monkeypatch):
    """Sums that change where a norm is passed are of the one image that has it."""
    changed(monkeypatch, RidgeController, largest_norm=1.0)
    masking(tmp_path, SITES, RULES)
    with pytest.raises(GrandRoundsError, match="4 of 4 sites refuse"):
        go(tmp_path)
    assert "largest_norm=1.0" in refused(tmp_path)


FEW_HEADS = {"weight": (6, 3, 5), "bias": (6, 3), "centre": (3,), "offset": (2, 3)}


@pytest.mark.parametrize(
    "shapes",
    [
        {"weight": (MOST_PENALTIES + 1, 3, 5), "bias": (MOST_PENALTIES + 1, 3)},
        {"weight": (600, 3, 5), "bias": (1, 3)},
        {"weight": (3, 5)},
        {"bias": ()},
        {"centre": (40, 3)},
        {"offset": (MOST_OFFSETS + 1, 3)},
        {"offset": (2, 40, 3)},
        {"offset": ()},
        {"offset": (0, 3)},
    ],
)
def test_losses_are_of_a_few_whole_heads(shapes):
    tensors = {name: torch.zeros(shape) for name, shape in {**FEW_HEADS, **shapes}.items()}
    context = SimpleNamespace(problem=SimpleNamespace(classes=("a", "b", "c")), data=SiteWithoutImages)
    heads = {name: tensors[name] for name in ("weight", "bias")}
    asked = {CANDIDATES: heads, LOGITS: {CENTRE: tensors["centre"], OFFSET: tensors["offset"]}}
    with pytest.raises(MessageError, match="losses are of at most 12 heads"):
        RidgeExecutor._temper(None, Payload(3, {}, asked), context)


def test_a_site_without_validation_images_has_no_losses():
    tensors = {name: torch.zeros(shape) for name, shape in FEW_HEADS.items()}
    context = SimpleNamespace(problem=SimpleNamespace(classes=("a", "b", "c")), data=SiteWithoutImages)
    heads = {name: tensors[name] for name in ("weight", "bias")}
    asked = {CANDIDATES: heads, LOGITS: {CENTRE: tensors["centre"], OFFSET: tensors["offset"]}}
    assert dict(RidgeExecutor._temper(None, Payload(3, {}, asked), context).metrics) == {VALIDATION_IMAGES: 0.0}


class SiteWithoutImages:
    rows = staticmethod(lambda split: ())


QUICK = ("controller.rounds=2", "controller.validate_every=0", "executor.steps=1")


def test_a_weight_of_labelled_sites_that_is_not_the_jobs_gives_no_update(go, tmp_path, masking, monkeypatch):
    """With two weights a server would see labelled and other sites apart."""
    changed(monkeypatch, FedIRMController, labelled_weight=100.0)
    masking(tmp_path, SITES, RULES, scalars=[{"name": "labelled", "part": "train", "minimum_support": 2}])
    with pytest.raises(GrandRoundsError):
        go(tmp_path, *QUICK, "controller.weighting=samples", name="fedirm")
    assert "labelled_weight=100.0" in refused(tmp_path)


@pytest.mark.parametrize("fixed", [False, True])
def test_where_a_policy_fixes_updates_they_are_over_the_same_hospitals(go, tmp_path, masking, fixed):
    """Else two trainings of one model, of which one is without a hospital, show this hospital's update."""
    folders = [tmp_path / name for name in ("all", "without")]
    for folder, sites in zip(folders, (SITES, SITES[:3]), strict=True):
        masking(folder, sites, RULES, sums={"fixed_updates": fixed})
        for site in sites if folder != folders[0] else ():
            privacy = Path("flare", site, "local", "privacy")
            shutil.copytree(folders[0] / privacy, folder / privacy, dirs_exist_ok=True)
        go(folder, *QUICK, name="fedavg", sites=sites)
    lost = [event.get("lost", "") for event in read_events(folders[1] / "results") if event["event"] == "sum"]
    assert [bool(reason) for reason in lost if reason or not fixed][:2] == [fixed, fixed]
