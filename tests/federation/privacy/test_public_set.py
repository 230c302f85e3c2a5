"""Only the site says which of its data sets is public; predictions about any other do not leave."""

import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
from nvflare.apis.workspace import Workspace

from grandrounds.data.location import locate_public
from grandrounds.data.partition.phantom_site import phantom_site
from grandrounds.deployment.jobs import load_job
from grandrounds.deployment.presets import with_options
from grandrounds.errors import ConfigurationError, GrandRoundsError
from grandrounds.federation.site.data import require_other_images
from grandrounds.protocol.paths import cache_folder, data_folders

SITES = ("site-1", "site-2")
OWN = {"manifest": "manifest.csv", "root": "images.npz"}
PUBLIC = {"manifest": "public/manifest.csv", "root": "public/images.npz"}
QUICK = ["controller.rounds=2", "executor.local_epochs=0.5", "executor.batch_size=8", "executor.device=cpu"]
QUICK += ["executor.backbones=null", "problem.backbone=compact", "executor.pretrain_epochs=0", "controller.min_sites=1"]


@pytest.fixture
def hospitals(tmp_path, shared_cache):
    """Makes hospitals whose files describe the public set in some way."""

    def make(public):
        folder = tmp_path / "hospitals"
        drawn = phantom_site("public", tmp_path / "drawn", size=32, images=24).parent
        for site in SITES:
            phantom_site(site, folder, size=32, images=40, labelled=1.0)
            shutil.copytree(drawn, folder / site / "public", dirs_exist_ok=True)
            datasets = {"phantom": OWN, "public": public}
            (folder / site / "grandrounds.json").write_text(json.dumps({"datasets": datasets}))
        return folder

    return make


@pytest.fixture
def context(tmp_path):
    """FLARE's context of a site whose file is in ``hospitals``."""
    (tmp_path / "kit" / "local").mkdir(parents=True)
    (tmp_path / "kit" / "startup").mkdir()
    engine = SimpleNamespace(get_workspace=lambda: Workspace(str(tmp_path / "kit"), "site-1"))
    return SimpleNamespace(get_engine=lambda: engine, get_identity_name=lambda: "site-1")


@pytest.mark.parametrize(
    ("public", "asked"),
    [({**PUBLIC, "public": True}, "phantom"), (PUBLIC, "public"), ({**OWN, "public": True}, "public")],
    ids=["the training set", "not called public", "the same files"],
)
def test_what_the_server_calls_public_must_be_public_at_the_site(run, hospitals, tmp_path, public, asked):
    """Without a gate as well: the executor refuses, and the run has no soft label of any site."""
    job = with_options(load_job("mdhfl"), [*QUICK, f"controller.public={asked}"])
    with pytest.raises(GrandRoundsError, match=r"is not public here|is in public data set"):
        run(job, tmp_path / "run", list(SITES), sites_dir=hospitals(public))


@pytest.mark.parametrize(
    ("public", "asked", "message"),
    [
        ({**PUBLIC, "public": True}, "phantom", "data set 'phantom' is not public here"),
        (PUBLIC, "public", "data set 'public' is not public here"),
        ({**OWN, "public": True}, "public", "is in public data set 'public' and in private 'phantom'"),
    ],
)
def test_the_gate_asks_the_same_question(hospitals, context, monkeypatch, public, asked, message):
    monkeypatch.setenv("GRANDROUNDS_SITES", str(hospitals(public)))
    with pytest.raises(ConfigurationError, match=message):
        locate_public(asked, "phantom", "site-1", data_folders(context), cache_folder(context))


def test_a_public_set_is_found(hospitals, context, monkeypatch):
    monkeypatch.setenv("GRANDROUNDS_SITES", str(hospitals({**PUBLIC, "public": True})))
    assert locate_public("public", "phantom", "site-1", data_folders(context), cache_folder(context)).public


def test_a_private_image_under_another_name_is_found_by_its_pixels():
    private = SimpleNamespace(images=np.arange(48, dtype=np.uint8).reshape(4, 2, 2, 3), names=("a", "b", "c", "d"))
    public = SimpleNamespace(images=private.images[:2] + 1, names=("x", "y"))
    require_other_images(public, private, "site-1")
    public.images = np.concatenate([public.images[:1], private.images[3:]])
    with pytest.raises(ConfigurationError, match="public image 'y' is also an image of the private"):
        require_other_images(public, private, "site-1")
