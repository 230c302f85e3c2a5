"""Where a data set has fewer images than FedPerl's clients need, their counts shrink in proportion, if that is asked."""

from collections import Counter
from dataclasses import replace

import pytest

from grandrounds.data.manifest import Record
from grandrounds.data.partition.fedperl import client_counts, fedperl_clients, relabel, scaled_sources
from grandrounds.errors import ConfigurationError, DataError
from grandrounds.seeding import numpy_generator


def single_images(source, images):
    return [Record(f"{source}/{i}.jpg", "nv", source=source) for i in range(images)]


# ISIC 2019 without HAM10000, and the other three as published.
CLEAN = {"ISIC2019": 15316, "HAM10000": 10015, "PAD-UFES-20": 2298, "Derm7pt": 987}


def test_the_server_keeps_its_images_and_the_clients_share_the_rest_in_proportion():
    counts = client_counts("ISIC2019", CLEAN["ISIC2019"], scale=True)
    assert counts["server", "val"] == 1000
    assert sum(counts.values()) == 15316
    # 14316 images for what is 19254 in the paper.
    published = {"labelled": 500, "unlabelled": 1500, "val": 500, "test": 1500}
    for part, size in published.items():
        assert counts["site-1", part] == pytest.approx(size * 14316 / 19254, abs=1)
    assert counts["site-5", "test"] == pytest.approx(1254 * 14316 / 19254, abs=1)


def test_counts_are_the_published_ones_where_there_are_enough_images():
    assert client_counts("Derm7pt", 987, scale=True) == client_counts("Derm7pt", 2000, scale=False)
    assert list(client_counts("Derm7pt", 987, scale=True).values()) == [82, 408, 120, 377]


def test_every_part_gets_an_image_and_less_than_that_is_refused():
    assert list(client_counts("Derm7pt", 4, scale=True).values()) == [1, 1, 1, 1]
    with pytest.raises(DataError, match=r"site-10 need 987.*found 3"):
        client_counts("Derm7pt", 3, scale=True)
    with pytest.raises(DataError, match=r"site-1.*need 20254.*found 1019"):
        client_counts("ISIC2019", 1019, scale=True)
    assert sum(client_counts("ISIC2019", 1020, scale=True).values()) == 1020


def test_the_clients_of_a_smaller_data_set_are_scaled_and_the_description_records_it():
    sizes = CLEAN | {"ISIC2019": 1200, "HAM10000": 120}
    records = [record for source, size in sizes.items() for record in single_images(source, size)]
    sites = fedperl_clients(records, numpy_generator(0), scale=True)
    assert len(sites["server"]) == 1000
    assert sum(len(sites[f"site-{number}"]) for number in range(1, 6)) == 200
    assert len(sites["site-10"]) == 987
    parts = Counter((record.split, record.labelled) for record in sites["site-6"])
    # 120 of 10015 images: 6, 18, 6 and 18 of site-6's 4000.
    assert parts == {("train", True): 6, ("train", False): 18, ("val", True): 6, ("test", True): 18}
    assert scaled_sources(records) == {
        "ISIC2019": {"needed": 20254, "found": 1200},
        "HAM10000": {"needed": 10015, "found": 120},
    }
    with pytest.raises(DataError, match="need 20254 images"):
        fedperl_clients(records, numpy_generator(0))


def site(name):
    return (
        Record(f"{name}/0", "nv", "train"),
        Record(f"{name}/1", "mel", "train", labelled=False),
        Record(f"{name}/2", "", "train"),
        Record(f"{name}/3", "nv", "val"),
        Record(f"{name}/4", "mel", "test"),
    )


@pytest.fixture
def sites():
    return {
        "server": (Record("s/0", "nv", "train"), Record("s/1", "mel", "val")),
        "site-1": site("a"),
        "site-2": site("b"),
    }


def flags(sites):
    return {name: [record.labelled for record in own] for name, own in sites.items()}


AS_DIVIDED = [True, False, False, True, True]
NONE = [False, False, False, True, True]
POOL = [True, True, False, True, True]


def test_the_standard_scenario_is_as_divided(sites):
    assert relabel(sites, "standard") == sites


def test_labels_at_the_server_alone_leave_no_site_any_training_label(sites):
    changed = relabel(sites, "server_labels")
    assert flags(changed) == {"server": [True, True], "site-1": NONE, "site-2": NONE}


@pytest.mark.parametrize(("use", "own"), [("pool", POOL), ("labelled", AS_DIVIDED)])
def test_few_sites_have_the_labels_of_their_pool_or_of_their_labelled_part(sites, use, own):
    assert flags(relabel(sites, "few_labels", ["site-2"], use)) == {
        "server": [True, True],
        "site-1": NONE,
        "site-2": own,
    }


@pytest.mark.parametrize(
    ("scenario", "labelled"), [("standard", ()), ("server_labels", ()), ("few_labels", ("site-1", "site-2"))]
)
def test_nothing_but_the_use_of_labels_changes(sites, scenario, labelled):
    def without_flags(records):
        return [replace(record, labelled=True) for record in records]

    changed = relabel(sites, scenario, labelled)
    assert {name: without_flags(own) for name, own in changed.items()} == {
        name: without_flags(own) for name, own in sites.items()
    }


def test_labelled_sites_must_be_sites(sites):
    with pytest.raises(ConfigurationError, match="few_labels needs labelled_sites: some of site-1, site-2"):
        relabel(sites, "few_labels")
    for name in ("site-3", "server"):
        with pytest.raises(ConfigurationError, match=f"there is no site '{name}'; the sites are site-1, site-2"):
            relabel(sites, "few_labels", ["site-1", name])


def test_a_party_chosen_to_have_labels_needs_labelled_images(sites):
    unlabelled = {
        name: tuple(replace(record, labelled=record.split != "train") for record in own) for name, own in sites.items()
    }
    with pytest.raises(ConfigurationError, match="few_labels: site-2"):
        relabel(unlabelled, "few_labels", ["site-2"], "labelled")
    with pytest.raises(ConfigurationError, match=r"server_labels.*labelled"):
        relabel(unlabelled, "server_labels")
