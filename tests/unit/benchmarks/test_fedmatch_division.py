"""FedMatch's division: the counts of its code, nothing twice, and what is not there is not given."""

from collections import Counter

import numpy as np
import pytest
from scipy.stats import chisquare

from benchmarks.fedmatch_data.division import FedMatchSizes, fedmatch_clients
from grandrounds.data.manifest import Record
from grandrounds.errors import ConfigurationError, DataError

CLASSES = tuple("abcdefghij")
RECORDS = tuple(Record(f"train/{n}", CLASSES[n % 10]) for n in range(6_000))
SIZES = FedMatchSizes(sites=10, validation=200, test=200)


def divide(distribution="iid", seed=1, records=RECORDS, **sizes):
    wanted = FedMatchSizes(**{"sites": 10, "validation": 200, "test": 200, **sizes})
    return fedmatch_clients(records, CLASSES, distribution, wanted, seed)


def part(sites, site, split, labelled=True):
    return [r for r in sites[site] if r.split == split and r.labelled == labelled]


@pytest.mark.parametrize("distribution", ["iid", "non_iid"])
@pytest.mark.parametrize("validation_at", ["server", "sites"])
def test_every_image_is_in_one_place_at_most_and_the_counts_are_those_asked_for(distribution, validation_at):
    sites, missing = divide(distribution, validation_at=validation_at)
    images = [record.image for members in sites.values() for record in members]
    assert len(images) == len(set(images))
    clients = [name for name in sites if name != "server"]
    assert clients == [f"site-{number}" for number in range(1, 11)]
    for site in clients:
        assert Counter(r.label for r in part(sites, site, "train")) == dict.fromkeys(CLASSES, 5)
        assert len(part(sites, site, "test")) == 20
        assert len(part(sites, site, "val")) == (20 if validation_at == "sites" else 0)
    if validation_at == "server":
        assert {r.split for r in sites["server"]} == {"val"}
        assert len(sites["server"]) == 200
    else:
        assert "server" not in sites
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


def test_the_same_seed_gives_the_same_division_and_the_distribution_leaves_the_rest_as_it_is():
    once, again, other = divide(seed=1)[0], divide(seed=1)[0], divide(seed=2)[0]
    assert once == again
    assert once["site-1"] != other["site-1"]
    skewed = divide("non_iid", seed=1)[0]
    assert skewed["server"] == once["server"]
    assert part(skewed, "site-7", "test") == part(once, "site-7", "test")
    assert part(skewed, "site-7", "train") == part(once, "site-7", "train")


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"sites": 0}, "sites must be at least 1, got 0"),
        ({"labelled_per_class": 0}, "labelled_per_class must be at least 1, got 0"),
        ({"unlabelled": -1}, "unlabelled must be at least 0, got -1"),
        ({"test": 205}, "test is 205, which 10 sites cannot share evenly; take 200"),
        (
            {"validation": 207, "validation_at": "sites"},
            "validation is 207, which 10 sites cannot share evenly; take 200",
        ),
        ({"validation_at": "home"}, "validation_at must be server or sites, got 'home'"),
    ],
)
def test_refuses_sizes_that_do_not_fit(sizes, message):
    with pytest.raises(ConfigurationError, match=message):
        divide(**sizes)


def test_refuses_too_few_images():
    with pytest.raises(DataError, match="400 images cannot give 400 for testing and validation and train on others"):
        divide(records=RECORDS[:400])
    with pytest.raises(DataError, match="10 sites need 600 labelled images of a, there are 5"):
        divide(labelled_per_class=60)
    with pytest.raises(DataError, match="non_iid is made for 10 classes, the data set has 9; take iid"):
        fedmatch_clients([r for r in RECORDS if r.label != "j"], CLASSES[:9], "non_iid", SIZES, 1)
