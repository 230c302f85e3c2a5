"""The gate decides what leaves, whatever precision the server asks for."""

import torch

from grandrounds.federation.server.averaging import AveragingController
from grandrounds.privacy.ledger.ledger import Ledger

SITES = ["site-1", "site-2"]
HALF = [
    "controller.rounds=1",
    "controller.min_sites=1",
    "controller.validate_every=0",
    "controller.update_precision=float16",
]


def test_what_the_gate_has_treated_is_rounded_and_booked_as_ever(tiny, run, tmp_path, install, policy_of, monkeypatch):
    came = {}
    original = AveragingController.absorb
    monkeypatch.setattr(
        AveragingController,
        "absorb",
        lambda self, site, result: (came.update({site: result}), original(self, site, result)),
    )
    local = tmp_path / "flare" / "site-1" / "local"
    install(local, policy_of())
    found = run(tiny("ssfl", *HALF), tmp_path, sites=SITES)
    release = came["site-1"].releases["update"]
    assert (release.treated, release.precision) == ("clip_and_noise", "float16")
    assert all(torch.equal(value, value.half().float()) for value in release.tensors.values())
    moved = found.summary["bytes"]
    assert moved["site-1"]["up.update"] == moved["site-2"]["up.update"] == release.travelled_bytes
    assert len(Ledger(local / "privacy", "site-1").content().bookings) == 1


def test_what_the_gate_refuses_does_not_leave_in_half_precision_either(tiny, run, tmp_path, install, policy_of):
    install(tmp_path / "flare" / "site-1" / "local", policy_of(releases=[]))
    found = run(tiny("ssfl", *HALF), tmp_path, sites=SITES)
    (only,) = found.summary["rounds"]
    assert only["answered"] == ["site-2"]
    assert "up.update" not in found.summary["bytes"]["site-1"]
