"""Three hospitals from startup kits whose policy lets updates out in sums only: a job without options for it works."""

import json
from pathlib import Path

import pytest
import torch
from cryptography import x509

from grandrounds.deployment.job_watch import admin_session
from grandrounds.deployment.jobs import load_job, write_job
from grandrounds.deployment.kit.overlay import Settings
from grandrounds.deployment.manifest import add_manifests
from grandrounds.deployment.presets import with_options
from grandrounds.deployment.simulate import simulate
from grandrounds.federation.server.record import read_events
from grandrounds.privacy.ledger.ledger import Ledger
from grandrounds.privacy.secure_sums.roster import key_digest

pytestmark = pytest.mark.provisioned

HOSPITALS = ("hospital-a", "hospital-b", "hospital-c")
GATE = [{"path": "grandrounds.privacy.gate.filters.SitePrivacyGate"}]
RULE = {"kind": "model_update", "name": "update", "treatment": "masked"}
TINY = [
    *("executor.steps=2", "executor.batch_size=8", "executor.device=cpu", "executor.cpu_threads=1"),
    *("controller.rounds=2", "controller.round_timeout=600", "controller.validate_every=0", "controller.run_name=sums"),
]


def policy(partners):
    content = {"unit": "record", "delta": 1e-5, "releases": [RULE], "sums": {"partners": partners}}
    scope = {"name": "sums", "properties": {"grandrounds": content}}
    scopes = [scope | {"task_data_filters": GATE, "task_result_filters": GATE}]
    return {"scopes": scopes, "default_scope": "sums"}


def pin(federation):
    """Each hospital has compared its partners' keys."""
    certificates = {site: federation.kits / site / "startup" / "client.crt" for site in HOSPITALS}
    pins = {site: key_digest(x509.load_pem_x509_certificate(path.read_bytes())) for site, path in certificates.items()}
    for site in HOSPITALS:
        (federation.kits / site / "local" / "privacy.json").write_text(json.dumps(policy(pins)))


def test_a_job_without_options_gives_the_sums_of_a_simulation(consortium, tmp_path, shared_cache):
    unpinned = tmp_path / "policy.json"
    unpinned.write_text(json.dumps(policy({})))
    job = with_options(load_job("fedavg"), TINY)
    settings = {site: Settings(privacy=unpinned) for site in HOSPITALS}
    with consortium(HOSPITALS, settings, pin) as federation:
        with admin_session(federation.kit(federation.researcher)) as session:
            identifier = session.submit_job(str(add_manifests(write_job(job, tmp_path / "sums"))))
            session.wait_for_job(identifier, timeout=900, poll_interval=0.5)
            download = Path(session.download_job_result(identifier, str(tmp_path / "download")))
        notes = Ledger(federation.kits / HOSPITALS[0] / "local" / "privacy", HOSPITALS[0]).content().notes
    results = download / "workspace" / "results"
    summary = json.loads((results / "summary.json").read_text())
    assert summary["status"] == "finished", summary.get("reason")
    events = read_events(results)
    assert [event["contributors"] for event in events if event["event"] == "sum"] == [[*HOSPITALS], [*HOSPITALS]]
    assert not [remark for remark in summary["remarks"] if "secure sums" in remark]
    assert {
        part["kind"] for event in events if event["event"] == "answer" for part in event.get("released", {}).values()
    } == {"masked_sum"}
    assert [what for what in notes if what.startswith("contributors of update 2")]
    simulate(with_options(job, ["controller.aggregation=secure"]), tmp_path / "simulated", list(HOSPITALS))
    here, there = (
        torch.load(folder / "last.pt", weights_only=True) for folder in (results, tmp_path / "simulated" / "results")
    )
    assert all(torch.equal(here[name], value) for name, value in there.items())
