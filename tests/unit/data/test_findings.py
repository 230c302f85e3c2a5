"""Findings in the column ``label`` of a manifest."""

import numpy as np
import pytest

from grandrounds.data.images.cache import DecodedCache
from grandrounds.data.manifest import Record, read_manifest, write_manifest
from grandrounds.data.partition.files import sites_and_problem
from grandrounds.data.partition.schemes import make_partition
from grandrounds.data.population import describe_population
from grandrounds.data.site import SiteData
from grandrounds.errors import ConfigurationError, DataError
from grandrounds.protocol.tasks import FINDINGS
from tests.federations import write_pictures

CHEST = ("effusion", "mass", "nodule")


def test_a_manifest_with_an_unknown_finding_names_line_and_nearest_word(tmp_path):
    write_manifest([Record("a.png", "mass"), Record("b.png", "mass|effusio")], tmp_path / "m.csv")
    with pytest.raises(DataError, match=r"m.csv line 3, column label: 'effusio' is not .*did you mean 'effusion'"):
        read_manifest(tmp_path / "m.csv", CHEST, FINDINGS)


def site_data():
    labels = np.array([[1, 0, -1], [-1, -1, -1], [1, 1, 0], [0, -1, -1]])
    count = len(labels)
    return SiteData(
        cache=DecodedCache(np.zeros((count, 8, 8, 3), np.uint8)),
        labels=labels,
        labelled=np.array([True, False, True, True]),
        split=np.array(["train", "train", "train", "val"]),
        names=tuple("abcd"),
        groups=tuple("abcd"),
        classes=CHEST,
        task=FINDINGS,
    )


def test_an_image_is_labelled_where_a_finding_is_known_and_counts_are_of_positives():
    data = site_data()
    assert data.known.tolist() == [True, False, True, True]
    assert data.rows("labelled").tolist() == [0, 2]
    assert data.rows("unlabelled").tolist() == [1]
    assert data.rows("val").tolist() == [3]
    assert data.class_counts("labelled").tolist() == [2, 1, 0]


def test_a_table_of_findings_becomes_a_partition_that_states_its_task(tmp_path):
    labels = ["none", "mass", "mass|effusion", "effusion", ""] * 12
    lines = [f"{number}.png,{label}" for number, label in enumerate(labels)]
    write_pictures(tmp_path, [f"{number}.png" for number in range(len(labels))])
    (tmp_path / "table.csv").write_text("\n".join(["image,label", *lines]) + "\n")
    options = {"manifest": tmp_path / "table.csv", "scheme": "iid", "sites": 2, "task": "multi"}
    content = make_partition("manifest", tmp_path, tmp_path / "sites", **options)
    _, problem = sites_and_problem(tmp_path / "sites")
    assert problem == {"dataset": "images", "classes": ["effusion", "mass"], "task": "multi"}
    found = [summary["classes"] for summary in content["sites"].values()]
    assert [sum(one[name] for one in found) for name in ("effusion", "mass")] == [24, 24]
    population = describe_population(tmp_path / "sites", ["site-1", "site-2"])
    parts = ("training", "validation", "test")
    assert sum(population["images"][site][part] for site in population["images"] for part in parts) == 60
    named = [population["sites"][site][part]["mass"] for site in population["sites"] for part in parts]
    assert sum(named) == 24, "an image with two findings counts for both, and once as an image"


def test_folders_of_classes_cannot_be_findings(tmp_path):
    with pytest.raises(ConfigurationError, match="list the images in a manifest"):
        make_partition("folder", tmp_path, tmp_path / "sites", task="multi")
