"""The partitions of both data sets are written with the paper's numbers, and can be read by a site."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.fedmatch_data.clients import make_fedmatch_partition
from grandrounds.data.partition.files import read_partition
from grandrounds.data.site import load_site_data, locate_dataset
from grandrounds.errors import ConfigurationError, DataError
from grandrounds.seeding import numpy_generator

LABELS = np.arange(400, dtype=np.uint8) % 10


@pytest.fixture
def small_cifar(tmp_path) -> Path:
    """500 images under the name of the unpacked data set."""
    images = numpy_generator("small").integers(0, 256, (500, 32, 32, 3), dtype=np.uint8)
    folder = tmp_path / "cifar"
    folder.mkdir()
    arrays = {"train": images[:400], "test": images[400:], "train_labels": LABELS, "test_labels": LABELS[:100]}
    np.savez(folder / "cifar10.npz", **arrays)
    return folder


def small(root, out, distribution="non_iid", **options):
    return make_fedmatch_partition(
        "cifar10", root, out, distribution, 4, **{"labelled_per_class": 2, "validation": 40, "test": 40, **options}
    )


def test_a_site_finds_the_images_and_the_partition_says_how_it_was_made(small_cifar, tmp_path):
    written = small(small_cifar, tmp_path / "sites", unlabelled=50)
    assert read_partition(tmp_path / "sites") == written
    facts = {name: written[name] for name in ("dataset", "scheme", "distribution", "seed", "labelled_per_class")}
    assert facts == {
        "dataset": "cifar10", "scheme": "fedmatch", "distribution": "non_iid", "seed": 1, "labelled_per_class": 2,
    }  # fmt: skip
    assert written["dataset_name"] == "cifar10"
    assert written["sites"]["server"]["images"] == {"train": 0, "val": 40, "test": 0}
    missing = sum(written["used_up"].values())
    given = [summary["images"]["train"] for site, summary in written["sites"].items() if site != "server"]
    assert sum(given) == 4 * (20 + 50) - missing
    location = locate_dataset("site-2", "cifar10", [tmp_path / "sites"])
    data = load_site_data(location, written["classes"], 32, 3, tmp_path / "cache")
    with np.load(small_cifar / "cifar10.npz") as content:
        for row in (0, len(data.names) - 1):
            array, _, index = data.names[row].partition("/")
            np.testing.assert_array_equal(data.images[row], content[array][int(index)])
            assert data.labels[row] == content[f"{array}_labels"][int(index)]
    assert len(data.rows("labelled")) == 20
    assert len(data.rows("test")) == 10
    assert len(data.rows("val")) == 0


def test_the_same_arguments_change_nothing_and_others_need_overwrite(small_cifar, tmp_path):
    once = small(small_cifar, tmp_path / "sites")
    assert small(small_cifar, tmp_path / "sites") == once
    with pytest.raises(ConfigurationError, match="holds another partition"):
        small(small_cifar, tmp_path / "sites", seed=2)
    assert small(small_cifar, tmp_path / "sites", seed=2, overwrite=True)["seed"] == 2


@pytest.mark.parametrize(
    ("dataset", "distribution", "message"),
    [
        ("mnist", "iid", "dataset must be one of cifar10, fashion_mnist, got 'mnist'"),
        ("cifar10", "skewed", "distribution must be one of iid, non_iid, got 'skewed'"),
        ("fashion_mnist", "streaming", "a manifest does not say when an image arrives; take non_iid"),
    ],
)
def test_refuses_what_does_not_exist(tmp_path, dataset, distribution, message):
    with pytest.raises(ConfigurationError, match=message):
        make_fedmatch_partition(dataset, tmp_path, tmp_path / "sites", distribution)


def test_published_files_need_a_folder_for_the_images(tmp_path):
    (tmp_path / "batches.meta").touch()
    for dataset in ("cifar10", "fashion_mnist"):
        with pytest.raises(ConfigurationError, match=f"has {dataset} as it is published, .* name a folder"):
            make_fedmatch_partition(dataset, tmp_path, tmp_path / "sites", "iid")
    with pytest.raises(DataError, match="no Fashion-MNIST in"):
        make_fedmatch_partition("fashion_mnist", tmp_path, tmp_path / "sites", "iid", unpack_to=tmp_path / "images")


@pytest.mark.realdata
def test_cifar10_has_the_numbers_of_the_paper(realdata, tmp_path):
    written = make_fedmatch_partition("cifar10", realdata / "cifar10", tmp_path / "sites", "iid")
    clients = {site: summary for site, summary in written["sites"].items() if site != "server"}
    assert len(clients) == 100
    assert {(s["labelled"], s["images"]["test"], s["images"]["val"]) for s in clients.values()} == {(50, 20, 0)}
    # 51,000 unlabelled images; of each class up to 99 are left over.
    assert 50_010 <= sum(s["images"]["train"] - 50 for s in clients.values()) <= 51_000
    assert written["sites"]["server"]["images"]["val"] == 2_000


@pytest.mark.realdata
def test_fashion_mnist_has_the_numbers_of_the_paper(realdata, tmp_path):
    root = realdata / "fashion-mnist"
    written = make_fedmatch_partition(
        "fashion_mnist", root, tmp_path / "sites", "non_iid", unpack_to=tmp_path / "images"
    )
    clients = [summary for site, summary in written["sites"].items() if site != "server"]
    assert [(s["labelled"], s["images"]["test"]) for s in clients] == [(50, 350)] * 10
    given = sum(s["images"]["train"] - 50 for s in clients)
    assert given + sum(written["used_up"].values()) == 62_500
