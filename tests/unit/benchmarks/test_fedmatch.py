"""FedMatch's division: the counts of its code, nothing twice, and what is not there is not given."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import chisquare

from benchmarks.fedperl_cifar10.division import Sizes, fedmatch_clients, make_fedmatch_partition
from grandrounds.data.manifest import Record
from grandrounds.data.partition.files import read_partition
from grandrounds.data.site import load_site_data, locate_dataset
from grandrounds.errors import DataError
from grandrounds.protocol.problem import Problem
from grandrounds.seeding import numpy_generator

CLASSES = tuple("abcdefghij")
RECORDS = tuple(Record(f"train/{n}", CLASSES[n % 10]) for n in range(6_000))


def divide(distribution="iid", seed=1, records=RECORDS, **sizes):
    wanted = Sizes(**{"sites": 10, "validation": 200, "test": 200, **sizes})
    return fedmatch_clients(records, CLASSES, distribution, wanted, seed)


def part(sites, site, split, labelled=True):
    return [r for r in sites[site] if r.split == split and r.labelled == labelled]


@pytest.mark.parametrize("distribution", ["iid", "non_iid"])
def test_every_image_is_in_one_place_at_most_and_the_counts_are_those_asked_for(distribution):
    sites, missing = divide(distribution)
    images = [record.image for members in sites.values() for record in members]
    assert len(images) == len(set(images))
    clients = [name for name in sites if name != "server"]
    assert clients == [f"site-{number}" for number in range(1, 11)]
    for site in clients:
        assert Counter(r.label for r in part(sites, site, "train")) == dict.fromkeys(CLASSES, 5)
        assert len(part(sites, site, "test")) == 20
        assert not part(sites, site, "val")
    assert {r.split for r in sites["server"]} == {"val"}
    assert len(sites["server"]) == 200
    assert missing == {} or distribution == "non_iid"


def test_iid_gives_every_client_the_same_number_of_each_class():
    sites, _ = divide("iid")
    left = Counter(r.label for members in sites.values() for r in members if r.split == "train" and not r.labelled)
    for site in (f"site-{n}" for n in range(1, 11)):
        counts = Counter(r.label for r in part(sites, site, "train", labelled=False))
        assert counts == {name: total // 10 for name, total in left.items()}
    # 5,600 training images less 500 labelled ones; up to nine of each class are left over.
    assert 5_100 - 90 <= sum(left.values()) <= 5_100
    few, _ = divide("iid", unlabelled=73)
    assert Counter(r.label for r in part(few, "site-4", "train", labelled=False)) == dict.fromkeys(CLASSES, 7)


def test_non_iid_draws_the_classes_of_the_clients_type_cyclically():
    sites, missing = divide("non_iid", unlabelled=200)
    assert missing == {}
    shares = [0.5, 0.15, 0.03, 0.03, 0.03, 0.02, 0.03, 0.03, 0.03, 0.15]
    totals = np.zeros(10)
    for client in range(10):
        counts = Counter(r.label for r in part(sites, f"site-{client + 1}", "train", labelled=False))
        assert sum(counts.values()) == 200
        assert counts.most_common(1)[0][0] == CLASSES[client]
        totals += [counts[CLASSES[(client + step) % 10]] for step in range(10)]
    assert chisquare(totals, 2_000 * np.array(shares)).pvalue > 0.001
    assert chisquare(totals, 2_000 * np.roll(shares, 1)).pvalue < 1e-9


def test_with_more_than_ten_clients_the_types_come_again():
    sites, _ = divide("non_iid", sites=20, unlabelled=100)
    for number in (3, 13):
        labels = Counter(r.label for r in part(sites, f"site-{number}", "train", labelled=False))
        assert labels.most_common(1)[0][0] == "c"


def test_a_class_that_is_used_up_is_not_given_and_is_counted():
    scarce = [r for n, r in enumerate(RECORDS) if r.label != "e" or n < 3_000]  # 300 of class e, 600 of the others
    sites, missing = divide("non_iid", records=scarce)
    given = [r for name, members in sites.items() if name != "server" for r in members]
    unlabelled = [r for r in given if r.split == "train" and not r.labelled]
    training = len(scarce) - 400
    assert missing["e"] > 0
    assert len(unlabelled) == 10 * ((training - 500) // 10) - sum(missing.values())
    used_up = {r.image for r in given if r.label == "e" and r.split == "train"}
    assert len(used_up) == 300 - sum(r.label == "e" and r.split != "train" for m in sites.values() for r in m)
    # The clients are served in their order, so the first still gets what it drew.
    assert len(part(sites, "site-1", "train", labelled=False)) == (training - 500) // 10


def test_the_same_seed_gives_the_same_division_and_the_distribution_changes_nothing_else():
    once, again, other = divide(seed=1)[0], divide(seed=1)[0], divide(seed=2)[0]
    assert once == again
    assert once["site-1"] != other["site-1"]
    skewed = divide("non_iid", seed=1)[0]
    assert skewed["server"] == once["server"]
    assert part(skewed, "site-7", "test") == part(once, "site-7", "test")
    assert part(skewed, "site-7", "train") == part(once, "site-7", "train")


def test_refuses_too_few_images():
    with pytest.raises(DataError, match="400 images cannot give 400 for testing and validation and train on others"):
        divide(records=RECORDS[:400])
    with pytest.raises(DataError, match="10 sites need 600 labelled images of a, not 5"):
        divide(labelled_per_class=60)


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


def small(root, out, **sizes):
    numbers = {"sites": 4, "labelled_per_class": 2, "validation": 40, "test": 40, **sizes}
    return make_fedmatch_partition("cifar10", root, out, "non_iid", out / "images", **numbers)


def test_a_site_finds_the_images_and_the_partition_records_its_options(small_cifar, tmp_path):
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
    data = load_site_data(location, Problem("images", tuple(written["classes"]), 32), tmp_path / "cache")
    with np.load(small_cifar / "cifar10.npz") as content:
        for row in (0, len(data.names) - 1):
            array, _, index = data.names[row].partition("/")
            np.testing.assert_array_equal(data.images[row], content[array][int(index)])
            assert data.labels[row] == content[f"{array}_labels"][int(index)]
    assert len(data.rows("labelled")) == 20
    assert len(data.rows("test")) == 10
    assert len(data.rows("val")) == 0


@pytest.mark.realdata
def test_cifar10_has_the_numbers_of_the_paper(realdata, tmp_path):
    written = make_fedmatch_partition("cifar10", realdata / "cifar10", tmp_path / "sites", "iid", tmp_path)
    clients = {site: summary for site, summary in written["sites"].items() if site != "server"}
    assert len(clients) == 100
    assert {(s["labelled"], s["images"]["test"], s["images"]["val"]) for s in clients.values()} == {(50, 20, 0)}
    # 51,000 unlabelled images; of each class up to 99 are left over.
    assert 50_010 <= sum(s["images"]["train"] - 50 for s in clients.values()) <= 51_000
    assert written["sites"]["server"]["images"]["val"] == 2_000


@pytest.mark.realdata
def test_fashion_mnist_has_the_numbers_of_the_paper(realdata, tmp_path):
    root = realdata / "fashion-mnist"
    written = make_fedmatch_partition("fashion_mnist", root, tmp_path / "sites", "non_iid", tmp_path / "images")
    clients = [summary for site, summary in written["sites"].items() if site != "server"]
    assert [(s["labelled"], s["images"]["test"]) for s in clients] == [(50, 350)] * 10
    given = sum(s["images"]["train"] - 50 for s in clients)
    assert given + sum(written["used_up"].values()) == 62_500
