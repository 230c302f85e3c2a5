"""A site's gate in a run whose models the server cannot read."""

import pytest

from grandrounds.privacy.ledger.ledger import Ledger

pytest.importorskip("tenseal")

from grandrounds.federation.encrypted import write_keys

SITES = ["site-1", "site-2"]
ENCRYPTED = [
    "controller.aggregation=encrypted",
    "controller.norm_multiple=null",
    "controller.weight_multiple=null",
    "controller.min_sites=2",
]


def test_the_gate_sees_plain_models_and_books_what_leaves_encrypted(
    run, tiny, phantom_hospitals, install, policy_of, tmp_path
):
    """Two rounds: in the second the policy clips and adds noise to the update of a model that came encrypted."""
    hospitals = phantom_hospitals(dict.fromkeys(SITES, 48))
    write_keys(hospitals, SITES)
    local = tmp_path / "flare" / "site-1" / "local"
    install(local, policy_of(target_epsilon={"*": 8.0}))
    job = tiny("fedavg", *ENCRYPTED, "problem.backbone=compact", "problem.norm=group", "controller.rounds=2")
    found = run(job, tmp_path, SITES, sites_dir=hospitals)
    assert [entry["answered"] for entry in found.summary["rounds"]] == [SITES, SITES]
    bookings = Ledger(local / "privacy", "site-1").content().bookings
    assert [(b.purpose.round_number, b.purpose.release) for b in bookings] == [(1, "update"), (2, "update")]
    assert found.summary["privacy"]["site-1"]["treated"] == {"update": "clip_and_noise"}
    assert set(found.models["last"]) == {"ciphertexts"}
