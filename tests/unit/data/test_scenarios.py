"""A scenario changes who may use which label, and nothing else."""

from dataclasses import replace

import pytest

from grandrounds.data.manifest import Record
from grandrounds.data.partition.fedperl import relabel
from grandrounds.errors import ConfigurationError


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


def test_whoever_is_to_have_labels_must_have_some(sites):
    unlabelled = {
        name: tuple(replace(record, labelled=record.split != "train") for record in own) for name, own in sites.items()
    }
    with pytest.raises(ConfigurationError, match="few_labels: site-2 has no labelled training image"):
        relabel(unlabelled, "few_labels", ["site-2"], "labelled")
    with pytest.raises(ConfigurationError, match="server_labels: server has no labelled training image"):
        relabel(unlabelled, "server_labels")


def test_an_unknown_scenario_is_refused(sites):
    with pytest.raises(ValueError, match="scenario must be one of standard, server_labels, few_labels, got 'few'"):
        relabel(sites, "few")
