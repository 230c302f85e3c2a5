"""Clients of a simulation are the sites of a partition; the server's images belong to no client."""

import pytest

from grandrounds.data.manifest import Record
from grandrounds.data.partition.files import write_partition
from grandrounds.deployment.simulate import choose_sites
from grandrounds.errors import ConfigurationError


@pytest.fixture
def partition(tmp_path):
    names = ("server", "site-10", "site-2")
    sites = {name: (Record(f"{name}.png", "nv", "val" if name == "server" else "train"),) for name in names}
    write_partition(sites, tmp_path / "sites", "skin", tmp_path, ("nv",), {})
    return tmp_path / "sites"


def test_the_servers_images_make_no_client(partition):
    assert choose_sites(None, partition) == (["site-2", "site-10"], {"dataset": "skin", "classes": ["nv"]})
    assert choose_sites(1, partition)[0] == ["site-2"]
    with pytest.raises(ConfigurationError, match=r"--sites is 3.*has 2"):
        choose_sites(3, partition)
    assert (partition / "server" / "grandrounds.json").is_file()
