"""Four keys on two sides: sites encrypt, the server adds, and only the sites can read the sum."""

import json
import shutil

import pytest
import torch

from grandrounds.data.partition.phantom_site import phantom_site
from grandrounds.deployment.assignments import parsed
from grandrounds.deployment.jobs import load_job
from grandrounds.deployment.presets import with_preset
from grandrounds.errors import ConfigurationError, GrandRoundsError
from grandrounds.federation.server.record import read_events
from grandrounds.methods.mutual.controller import MutualController

tenseal = pytest.importorskip("tenseal")

from grandrounds.federation.encrypted import SERVER_KEY, SITE_KEY, decrypt_sum, write_keys  # noqa: E402
from grandrounds.methods.mutual.encrypted.controller import EncryptedController  # noqa: E402

pytestmark = pytest.mark.usefixtures("small_backbones")
SITES = ["site-1", "site-2", "site-3"]
PUBLIC_IMAGES, CLASSES, ROUNDS = 32, 4, 3
BACKBONES = {"site-1": "compact", "site-2": "narrow", "site-3": "compact"}
SMALL = [
    f"controller.rounds={ROUNDS}",
    "executor.pretrain_epochs=0.5",
    "executor.local_epochs=0.5",
    "executor.batch_size=8",
    f"executor.backbones={json.dumps(BACKBONES)}",
    "executor.device=cpu",
]


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory, shared_cache):
    folder = tmp_path_factory.mktemp("hospitals")
    for site in SITES:
        phantom_site(site, folder, size=32, images=48, labelled=1.0)
        drawn = phantom_site("public", folder / "drawn", size=32, images=PUBLIC_IMAGES).parent
        shutil.copytree(drawn, folder / site / "public", dirs_exist_ok=True)
        own = {"manifest": "manifest.csv", "root": "images.npz"}
        public = {"manifest": "public/manifest.csv", "root": "public/images.npz", "public": True}
        (folder / site / "grandrounds.json").write_text(json.dumps({"datasets": {"phantom": own, "public": public}}))
    write_keys(folder, SITES)
    return folder


def small(*assignments, name="mdhfl_he", preset=None):
    job = load_job(name)
    return with_preset(job, preset, parsed(job, [*SMALL, *assignments]))


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
    run, hospitals, tmp_path, watched
):
    # One exchange: the sums differ by the noise of the encryption, new in each run, and Adam's steps magnify it.
    options = ("controller.rounds=2", f"executor.backbones={json.dumps(dict.fromkeys(SITES, 'compact'))}")
    plain = run(small(*options, name="mdhfl"), tmp_path / "plain", SITES, sites_dir=hospitals)
    readable = watched[2, "site-1"].parts["soft_labels"]["values"].double()
    alone = run(small(*options, name="mdhfl", preset="local"), tmp_path / "alone", SITES, sites_dir=hospitals)
    hidden = run(small(*options), tmp_path / "hidden", SITES, sites_dir=hospitals)
    assert furthest(hidden, plain) < 1e-3 < furthest(alone, plain) / 4
    assert not any("soft_label_entropy" in entry for entry in hidden.summary["rounds"])
    parts = [payload.parts["soft_labels"]["values"] for key, payload in watched.items() if key[0] == 2]
    assert all(torch.equal(part, parts[0]) for part in parts)
    public, secret = ((hospitals / place).read_bytes() for place in (f"server/{SERVER_KEY}", f"site-1/{SITE_KEY}"))
    shapes = {"soft_labels": (PUBLIC_IMAGES, CLASSES)}
    with pytest.raises(ConfigurationError, match="no secret key"):
        decrypt_sum(parts[0], public, shapes, "the sum")
    total, roster = decrypt_sum(parts[0], secret, shapes, "the sum")
    assert roster == SITES
    torch.testing.assert_close(total["soft_labels"] / len(SITES), readable, atol=1e-6, rtol=0)


def test_a_server_with_the_secret_key_does_not_start(run, hospitals, tmp_path):
    folder = tmp_path / "hospitals"
    shutil.copytree(hospitals, folder)
    shutil.copy(folder / "site-1" / SITE_KEY, folder / "server" / SERVER_KEY)
    with pytest.raises(GrandRoundsError, match=r"server_context\.tenseal holds the secret key"):
        run(small(), tmp_path / "run", SITES, sites_dir=folder)


@pytest.mark.parametrize(("key", "reason"), [(None, "there is none at"), (SERVER_KEY, "holds no secret key")])
def test_a_site_without_the_secret_key_takes_no_part(key, reason, run, hospitals, tmp_path):
    folder = tmp_path / "hospitals"
    shutil.copytree(hospitals, folder)
    (folder / "site-2" / SITE_KEY).unlink()
    if key:
        shutil.copy(folder / "server" / key, folder / "site-2" / SITE_KEY)
    found = run(small("controller.rounds=2"), tmp_path / "run", SITES, sites_dir=folder)
    dropped = {event["site"]: event["reason"] for event in read_events(found.results) if event["event"] == "dropped"}
    assert set(dropped) == {"site-2"}
    assert reason in dropped["site-2"]


def test_keys_of_another_federation_give_a_sum_that_no_site_accepts(run, hospitals, tmp_path):
    folder = tmp_path / "hospitals"
    shutil.copytree(hospitals, folder)
    write_keys(tmp_path / "others", ["site-2"])
    shutil.copy(tmp_path / "others" / "site-2" / SITE_KEY, folder / "site-2" / SITE_KEY)
    with pytest.raises(GrandRoundsError):
        run(small("controller.rounds=2"), tmp_path / "run", SITES, sites_dir=folder)


@pytest.mark.parametrize(
    "assignment", ["controller.content=logits", "controller.weighting=ccr", "controller.wire=uint8"]
)
def test_values_that_cannot_be_encrypted_are_refused(assignment, run, hospitals, tmp_path):
    with pytest.raises(ConfigurationError, match="where soft labels are encrypted"):
        run(small(assignment), tmp_path, SITES, sites_dir=hospitals)
