"""What all tests share: one thread of torch, one cache of decoded images, and where the real images are."""

import os
from pathlib import Path

import pytest
import torch

from grandrounds.data.partition.phantom_site import phantom_site

REPOSITORY = Path(__file__).parents[1]


@pytest.fixture(autouse=True, scope="session")
def one_torch_thread():
    """Sums depend on the number of threads in the last bits, and threads wait for each other on a busy machine."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def wide_terminal():
    """Tables are as wide in a worker of pytest-xdist, which has no terminal, as elsewhere."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "160")
        yield


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory):
    """Draw and decode the phantoms once for all federations of the session, also in several processes."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "cache"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRANDROUNDS_CACHE", str(folder))
        yield folder


@pytest.fixture(scope="session")
def realdata() -> Path:
    """The folder with the real images; the test is skipped where there is none."""
    named = os.environ.get("GRANDROUNDS_DATA")
    folder = Path(named) if named else REPOSITORY.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"{folder} is not there; set GRANDROUNDS_DATA to the folder with the real images")
    return folder


@pytest.fixture(scope="session")
def phantom_hospitals(tmp_path_factory, shared_cache):
    """Hospitals with drawn images, all with labels: ``phantom_hospitals({"site-1": 48})`` gives a new folder of sites."""

    def draw(images):
        folder = tmp_path_factory.mktemp("hospitals")
        for site, count in images.items():
            phantom_site(site, folder, size=32, images=count, labelled=1.0)
        return folder

    return draw
