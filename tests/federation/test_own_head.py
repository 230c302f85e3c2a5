"""A model of a site's own may begin with the head in closed form of the site's own labels."""

import pytest
import torch

from grandrounds.deployment.jobs import load_job
from grandrounds.deployment.presets import with_options
from grandrounds.errors import ConfigurationError, GrandRoundsError
from grandrounds.models.closed_form.solve import DEFAULT_PENALTIES

SITES = ["site-1", "site-2", "site-3"]
SITE = SITES[:1]
DEPTHS = ["problem.backbone=compact", "problem.head=depths", "problem.trainable=head"]
STILL = ["executor.own_head=ridge", "executor.learning_rate=1e-12", "controller.rounds=1", "controller.min_sites=1"]


def own_state(run, job, place):
    found = run(job, place, sites=SITE)
    (path,) = sorted((found.record.parent / "site-1" / "state").glob("round_00001.pt"))
    return torch.load(path, weights_only=True)["content"]["model"]


def alike(own, pooled):
    """But for a class that the site does not have: ridge rules it out, an own head does not."""
    ruled_out = pooled < -1.5 if pooled.dtype == torch.float32 else torch.zeros_like(pooled, dtype=torch.bool)
    return torch.allclose(own[~ruled_out].float(), pooled[~ruled_out].float(), atol=1e-5)


def test_the_own_head_of_one_site_is_that_of_ridge_with_this_site_alone(tiny, run, tmp_path):
    alone = own_state(run, tiny("local", *DEPTHS, *STILL), tmp_path / "alone")
    problem = ["controller.min_sites=1", "executor.device=cpu"]
    heads = {}
    for penalty in DEFAULT_PENALTIES:
        job = with_options(load_job("ridge"), [*problem, f"controller.penalties=[{penalty}]"])
        place = tmp_path / f"ridge-{penalty}"
        run(job, place, sites=SITE)
        heads[penalty] = torch.load(place / "results" / "selected.pt", weights_only=True)
    names = [name for name in alone if name.rpartition(".")[2] in ("weight", "bias", "shift", "scale", "temperature")]
    assert any(name.endswith("temperature") for name in names)
    [risk] = [value.view(torch.float32) for name, value in alone.items() if name.endswith("risk")]
    assert risk.tolist() == [[1.0] * 4, [0.0] * 4], "training learns the shares of the classes itself"
    equal = [penalty for penalty, head in heads.items() if all(alike(alone[name], head[name]) for name in names)]
    assert len(equal) == 1
    assert equal[0] != DEFAULT_PENALTIES[len(DEFAULT_PENALTIES) // 2], "validation images choose, not the middle"


def test_an_own_head_keeps_its_risks_where_training_is_adjusted(tiny, run, tmp_path):
    state = own_state(run, tiny("local", *DEPTHS, *STILL, "executor.logit_adjustment=1"), tmp_path)
    [risk] = [value.view(torch.float32) for name, value in state.items() if name.endswith("risk")]
    assert risk.tolist() != [[1.0] * 4, [0.0] * 4]


def test_sites_of_mutual_learning_begin_with_their_own_heads(run, tmp_path):
    options = [*DEPTHS, "executor.backbones=null", "executor.pretrain_epochs=0"]
    options += [
        "controller.rounds=2",
        "controller.content=none",
        "executor.alignment=none",
        "executor.batch_size=4",
    ]
    shifts = {}
    for head in ("given", "ridge"):
        job = with_options(load_job("mdhfl"), [*options, f"executor.own_head={head}", "executor.learning_rate=1e-9"])
        results = run(job, tmp_path / head).record.parent
        paths = [next((results / site / "state").glob("round_00002.pt")) for site in SITES]
        states = [torch.load(path, weights_only=True)["content"]["model"] for path in paths]
        shifts[head] = torch.stack([state["classifier.shift"] for state in states])
    assert not shifts["given"].any(), "a new head reads features as they are"
    assert len({tuple(row.tolist()) for row in shifts["ridge"]}) == len(SITES), "each site's own labels"


def test_a_shared_model_has_no_head_of_a_site(tiny):
    with pytest.raises(ConfigurationError, match=r"own_head=ridge is for models of the sites. own.*start_from=ridge"):
        tiny("fedavg", *DEPTHS, "executor.own_head=ridge").checked()


def test_another_head_is_refused_with_the_option(tiny, run, tmp_path):
    with pytest.raises(GrandRoundsError, match=r"problem\.head=depths"):
        run(tiny("local", *STILL), tmp_path, sites=SITE)
