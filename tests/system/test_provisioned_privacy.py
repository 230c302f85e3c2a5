"""Two hospitals from startup kits, one with a privacy gate: what the server has of each, whatever the job asks for."""

import json
from pathlib import Path

import pytest
import torch

from grandrounds.deployment.job_watch import admin_session
from grandrounds.deployment.jobs import Job, load_job, write_job
from grandrounds.deployment.kit.overlay import Settings
from grandrounds.deployment.manifest import add_manifests
from grandrounds.deployment.presets import with_options
from grandrounds.deployment.simulate import simulate
from grandrounds.errors import GrandRoundsError
from grandrounds.models.registry import build_model
from grandrounds.privacy.ledger.ledger import Ledger
from grandrounds.protocol.problem import Problem
from grandrounds.protocol.spending import Mechanism, Unit

pytestmark = pytest.mark.provisioned

GATED, OPEN = "hospital-a", "hospital-b"
GATE = [{"path": "grandrounds.privacy.gate.filters.SitePrivacyGate"}]
CLIP, MULTIPLIER = 0.05, 1e-2
SIGMA = 2 * CLIP * MULTIPLIER
"""Noise as large as the clipped update over all entries, so that both clipping and noise are visible."""
TINY = [
    *("executor.steps=2", "executor.batch_size=8", "executor.device=cpu", "executor.cpu_threads=1"),
    *("controller.rounds=1", "controller.warm_up=1", "executor.threshold=0.26", "controller.round_timeout=600"),
    *("problem.norm=group", "controller.validate_every=0", "controller.seed=1"),
]


def scope_of(name, rule):
    policy = {"unit": "site", "delta": 1e-5, "releases": [{"kind": "model_update", "name": "update", **rule}]}
    content = {"name": name, "properties": {"grandrounds": policy}}
    return {
        "scopes": [content | {"task_data_filters": GATE, "task_result_filters": GATE}],
        "default_scope": name,
    }


STRICT = scope_of("strict", {"treatment": "clip_and_noise", "clip": CLIP, "noise_multiplier": MULTIPLIER})
LOOSE = scope_of("strict", {"treatment": "unmodified"})


@pytest.fixture(scope="module")
def federation(consortium, tmp_path_factory):
    """One hospital with a gate that clips and adds noise, another whose gate releases updates as they are."""
    strict = tmp_path_factory.mktemp("policy") / "strict.json"
    strict.write_text(json.dumps(STRICT))

    loose = strict.with_name("loose.json")
    loose.write_text(json.dumps(LOOSE))
    with consortium((GATED, OPEN), {GATED: Settings(privacy=strict), OPEN: Settings(privacy=loose)}) as made:
        yield made


@pytest.fixture(scope="module")
def alone(tmp_path_factory, shared_cache):
    """What each hospital's model is without any gate, and the model that both start from."""
    place = tmp_path_factory.mktemp("alone")
    job = job_of("alone")
    simulate(job, place, [GATED, OPEN])
    start_model = build_model(Problem.from_dict(job.options("problem")).model_spec(pretrained=False), 1).state_dict()
    return start_model, {site: stored(place / "state" / "alone" / "server", site) for site in (GATED, OPEN)}


def job_of(run_name):
    return with_options(load_job("fedperl"), [*TINY, f"controller.run_name={run_name}"])


def stored(folder, site):
    """A site's model as the server keeps it for FedPerl's peers."""
    (path,) = (folder / "parts").glob(f"*{site}@*.pt")
    return torch.load(path, weights_only=True)


def flat(model, start_model):
    return torch.cat([(model[name] - start_model[name]).double().flatten() for name in start_model])


def submit(federation, folder, out):
    with admin_session(federation.kit(federation.researcher)) as session:
        identifier = session.submit_job(str(folder))
        session.wait_for_job(identifier, timeout=900, poll_interval=0.5)
        return Path(session.download_job_result(identifier, str(out))), identifier


def honest(job):
    return job


def loosening(job):
    """A job with a filter that marks everything as treated."""
    arguments = {"clip": 1e6, "noise_multiplier": 1e-15}
    loose = {"path": "grandrounds.federation.job_noise.GaussianPrivacy", "args": arguments}
    filters = [{"tasks": ["train"], "filters": [loose]}]
    return Job(job.meta, job.server, job.client | {"task_result_filters": filters})


@pytest.mark.parametrize("kind", [honest, loosening])
def test_the_server_gets_the_gated_sites_update_noised_and_the_others_unchanged(federation, alone, tmp_path, kind):
    job = kind(job_of(kind.__name__))
    submit(federation, add_manifests(write_job(job, tmp_path / kind.__name__)), tmp_path / "download")
    at_server = federation.kits / federation.server / "grandrounds" / kind.__name__ / "server"
    start_model, plain = alone
    untreated = stored(at_server, OPEN)
    for name, value in untreated.items():  # the job's own filter rounds
        torch.testing.assert_close(value, plain[OPEN][name], rtol=0, atol=0 if kind is honest else 1e-6)
    update, sent = flat(plain[GATED], start_model), flat(stored(at_server, GATED), start_model)
    assert float(update.norm()) > 2 * CLIP, "the bound must matter"
    noise = (sent - update * (CLIP / update.norm())) / SIGMA
    assert float(noise.std()) == pytest.approx(1.0, rel=0.02)
    assert abs(float(noise.mean())) < 7 / len(noise) ** 0.5
    assert float((noise.abs() < 1e-3).double().mean()) < 0.01, "no entry is without noise"


@pytest.mark.parametrize("place", ["config", "local"])
def test_a_job_with_a_policy_of_its_own_is_refused_in_all_places_where_a_site_has_one(federation, tmp_path, place):
    folder = add_manifests(write_job(job_of("own_policy"), tmp_path / "own_policy"))
    (folder / "app" / place).mkdir(exist_ok=True)
    (folder / "app" / place / "privacy.json").write_text(json.dumps(LOOSE))
    with pytest.raises(GrandRoundsError, match=f"'{place}/.*' is no file of a job"):
        submit(federation, folder, tmp_path / "download")


def test_the_ledgers_have_every_job(federation):
    """After the jobs above: one release of each."""
    bookings = Ledger(federation.kits / GATED / "local" / "privacy", GATED).content().bookings
    assert [booking.purpose.run for booking in bookings] == ["honest", "loosening"]
    for booking in bookings:
        assert (booking.spending.mechanism, booking.spending.unit) == (Mechanism.GAUSSIAN, Unit.SITE)
        assert (booking.spending.sensitivity, booking.spending.sigma) == pytest.approx((2 * CLIP, SIGMA))
    unprotected = Ledger(federation.kits / OPEN / "local" / "privacy", OPEN).content().bookings
    assert {booking.spending.mechanism for booking in unprotected} == {Mechanism.NO_GUARANTEE}


def test_a_kit_whose_gate_was_taken_out_works_on_no_task(federation, tmp_path):
    """Last, because the hospital has no gate afterwards."""
    (federation.kits / OPEN / "local" / "privacy.json").unlink()
    job = with_options(job_of("without"), ["controller.min_sites=1", "controller.round_timeout=600"])
    folder = add_manifests(write_job(job, tmp_path / "without"))
    download, identifier = submit(federation, folder, tmp_path / "download")
    summary = json.loads((download / "workspace" / "results" / "summary.json").read_text())
    assert OPEN not in summary["contributions"]
    with admin_session(federation.kit(federation.researcher)) as session:
        (refused,) = (line for line in session.get_job_meta(identifier)["job_deploy_detail"] if line.startswith(OPEN))
    assert "the site's own files are not valid: privacy.json" in refused
