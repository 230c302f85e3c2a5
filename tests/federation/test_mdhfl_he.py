"""Keys on two sides: sites encrypt their soft labels, the server adds them up, and only the sites can read the sum."""

import json
import shutil

import pytest
import torch

from grandrounds.errors import ConfigurationError, GrandRoundsError
from grandrounds.methods.mutual.controller import MutualController
from grandrounds.methods.mutual.encrypted.controller import EncryptedController
from grandrounds.privacy.mechanisms.encrypted_sums import SERVER_KEY, SITE_KEY, SumOf, decrypt_sum, write_keys
from tests.federations import Federation, draw_hospitals, give_public_images

pytest.importorskip("tenseal")

SITES = ["site-1", "site-2", "site-3"]
PUBLIC_IMAGES, CLASSES = 32, 4
BACKBONES = {"site-1": "small", "site-2": "narrow", "site-3": "small"}


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory, shared_cache, small_networks):
    folder = draw_hospitals(tmp_path_factory.mktemp("hospitals"), SITES)
    for site in SITES:
        give_public_images(folder, site, PUBLIC_IMAGES)
    write_keys(folder, SITES)
    return folder


@pytest.fixture(scope="module")
def go(hospitals):
    options = ["controller.rounds=2", f"executor.backbones={json.dumps(BACKBONES)}"]
    return Federation("mdhfl_he", SITES, hospitals, options)


@pytest.fixture
def copied(hospitals, tmp_path):
    """A copy of the hospitals that a test may change."""
    return shutil.copytree(hospitals, tmp_path / "hospitals")


@pytest.fixture
def watched(monkeypatch):
    """What the server sends, round by round."""
    sent = {}

    def watch(controller):
        original = controller.payload_for

        def payload_for(self, site):
            payload = original(self, site)
            sent[self.round_number, site] = payload
            return payload

        monkeypatch.setattr(controller, "payload_for", payload_for)

    watch(EncryptedController)
    watch(MutualController)
    return sent


def scores(found):
    return {site: tested["own_last"]["exact"]["log_loss"] for site, tested in found.summary["records"].items()}


def furthest(first, second):
    """The largest relative difference of a site's score."""
    return max(abs(scores(first)[site] / score - 1) for site, score in scores(second).items())


def test_the_sites_learn_what_they_learn_from_plain_soft_labels_and_the_server_reads_nothing(
    go, hospitals, tmp_path, watched
):
    # One exchange: the sums differ by the rounding of soft labels that travel in single precision.
    same = f"executor.backbones={json.dumps(dict.fromkeys(SITES, 'small'))}"
    plain = go(tmp_path / "plain", same, name="mdhfl")
    readable = watched[2, "site-1"].parts["soft_labels"]["values"].double()
    alone = go(tmp_path / "alone", same, name="mdhfl", preset="local")
    hidden = go(tmp_path / "hidden", same)
    assert furthest(hidden, plain) < 1e-3 < furthest(alone, plain) / 4
    assert plain.summary["pooled"] == {}
    assert hidden.summary["pooled"]["own"]["sites"] == SITES  # counts of tests travel in sums as well
    assert not any("soft_label_entropy" in entry for entry in hidden.summary["rounds"])
    parts = [payload.parts["soft_labels"]["values"] for key, payload in watched.items() if key[0] == 2]
    assert all(torch.equal(part, parts[0]) for part in parts)
    public, secret = ((hospitals / place).read_bytes() for place in (f"server/{SERVER_KEY}", f"site-1/{SITE_KEY}"))
    shapes = {"soft_labels": (PUBLIC_IMAGES, CLASSES)}
    use = SumOf(watched[2, "site-1"].values["run_id"], "soft_labels", 1)
    with pytest.raises(ConfigurationError, match="no secret key"):
        decrypt_sum(parts[0], public, shapes, use)
    total, roster = decrypt_sum(parts[0], secret, shapes, use)
    assert list(roster) == SITES
    torch.testing.assert_close(total["soft_labels"] / len(SITES), readable, atol=1e-6, rtol=0)


@pytest.mark.parametrize("change", ["the server has the secret key", "a site has a key of another federation"])
def test_a_run_with_wrong_keys_ends(change, go, copied, tmp_path):
    if change.startswith("the server"):
        shutil.copy(copied / "site-1" / SITE_KEY, copied / "server" / SERVER_KEY)
        reason = r"server_context\.tenseal holds the secret key"
    else:
        write_keys(tmp_path / "others", ["site-2"])
        shutil.copy(tmp_path / "others" / "site-2" / SITE_KEY, copied / "site-2" / SITE_KEY)
        reason = "cannot be added|of another key|sites gave a valid result|0 of the"
    with pytest.raises(GrandRoundsError, match=reason):
        go(tmp_path / "run", folder=copied)


@pytest.mark.parametrize(("key", "reason"), [(None, "there is none at"), (SERVER_KEY, "holds no secret key")])
def test_a_site_without_the_secret_key_takes_no_part_and_two_are_too_few(key, reason, go, copied, tmp_path):
    (copied / "site-2" / SITE_KEY).unlink()
    if key:
        shutil.copy(copied / "server" / key, copied / "site-2" / SITE_KEY)
    with pytest.raises(GrandRoundsError, match=f"min_sites is 3; could not join: site-2: .*{reason}"):
        go(tmp_path / "run", folder=copied)


@pytest.mark.parametrize("option", ["min_sites", "min_contributors"])
def test_sums_of_two_are_refused(option, go, tmp_path):
    with pytest.raises(ConfigurationError, match=f"{option} must be at least 3"):
        go(tmp_path, f"controller.{option}=2")


@pytest.mark.parametrize(
    "assignment", ["controller.content=logits", "controller.weighting=ccr", "controller.wire=uint8"]
)
def test_values_that_cannot_be_encrypted_are_refused(assignment, go, tmp_path):
    with pytest.raises(ConfigurationError, match="where soft labels are encrypted"):
        go(tmp_path, assignment)
