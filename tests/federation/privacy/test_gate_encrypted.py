"""A site's gate in a run whose models the server cannot read."""

import pytest

from grandrounds.errors import GrandRoundsError
from grandrounds.federation.server.averaging import AveragingController
from grandrounds.federation.server.controller import RoundController
from grandrounds.privacy.gate.audit import Reason
from grandrounds.privacy.ledger.ledger import Ledger

pytest.importorskip("tenseal")

from grandrounds.privacy.mechanisms.encrypted_sums import write_keys

SITES = ["site-1", "site-2", "site-3"]
ENCRYPTED = [
    "controller.aggregation=encrypted",
    "executor.encryption=required",
    "controller.norm_multiple=null",
    "controller.weight_multiple=null",
    "controller.min_sites=3",
]


def test_the_gate_sees_plain_models_and_books_what_leaves_encrypted(
    run, tiny, phantom_hospitals, install, policy_of, tmp_path
):
    """Two rounds: in the second the policy clips and adds noise to the update of a model that came encrypted."""
    hospitals = phantom_hospitals(dict.fromkeys(SITES, 48))
    write_keys(hospitals, SITES)
    local = tmp_path / "flare" / "site-1" / "local"
    install(local, policy_of(target_epsilon={"*": 8.0}))
    job = tiny("fedavg", *ENCRYPTED, "problem.norm=group", "controller.rounds=2")
    found = run(job, tmp_path, SITES, sites_dir=hospitals)
    assert [entry["answered"] for entry in found.summary["rounds"]] == [SITES, SITES]
    bookings = Ledger(local / "privacy", "site-1").content().bookings
    assert [(b.purpose.round_number, b.purpose.release) for b in bookings] == [(1, "update"), (2, "update")]
    assert found.summary["privacy"]["site-1"]["treated"] == {"update": "clip_and_noise"}
    assert set(found.models["last"]) == {"ciphertexts"}


DEMANDS = {"encryption": {"min_models": 3}}


@pytest.mark.parametrize("bound_by", ["privacy.json", "the signed job"])
def test_a_server_that_leaves_encryption_out_of_its_tasks_gets_no_update(
    bound_by, run, tiny, phantom_hospitals, install, policy_of, monkeypatch, tmp_path
):
    """The finding: the server's task decided alone whether updates leave encrypted."""
    monkeypatch.setattr(AveragingController, "payload", RoundController.payload)
    hospitals = phantom_hospitals(dict.fromkeys(SITES, 48))
    write_keys(hospitals, SITES)
    plain = ["executor.encryption=none"] if bound_by == "privacy.json" else []
    for site in SITES if bound_by == "privacy.json" else []:
        install(tmp_path / "flare" / site / "local", policy_of(demands=DEMANDS), site)
    job = tiny("fedavg", *ENCRYPTED, *plain, "problem.norm=group", "controller.rounds=1")
    reason = Reason.ENCRYPTION if bound_by == "privacy.json" else "lacks the value 'encryption'"
    with pytest.raises(GrandRoundsError, match=reason):
        run(job, tmp_path, SITES, sites_dir=hospitals)
