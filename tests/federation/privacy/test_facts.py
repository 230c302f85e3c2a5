"""What a site knows of its own data is counted in patients, and the same data are known again."""

import csv
from types import SimpleNamespace

import pytest
from nvflare.apis.workspace import Workspace

from grandrounds.data.location import locate
from grandrounds.data.manifest import Record, write_manifest
from grandrounds.errors import ConfigurationError
from grandrounds.files import write_json
from grandrounds.privacy.inventory import dataset_facts
from grandrounds.privacy.ledger.ledger import dataset_fingerprint
from grandrounds.protocol.paths import cache_folder, data_folders

RECORDS = [
    Record("a", "nevus", "train", "p"),
    Record("b", "nevus", "train", "p"),
    Record("c", "nevus", "train", "q", labelled=False),
    Record("d", "", "train", "", "lesion-7"),
    Record("e", "nevus", "val", "r"),
    Record("f", "nevus", "val", ""),
]


@pytest.fixture
def context(tmp_path):
    """A site that describes the data set ``skin``."""
    (tmp_path / "startup").mkdir()
    local = tmp_path / "local"
    local.mkdir()
    write_manifest(RECORDS, local / "skin.csv")
    write_json(local / "grandrounds.json", {"datasets": {"skin": {"manifest": "skin.csv", "root": "."}}})
    engine = SimpleNamespace(get_workspace=lambda: Workspace(str(tmp_path), "site-1"))
    return SimpleNamespace(get_engine=lambda: engine, local=local)


def facts_of(name, context):
    return dataset_facts(name, locate(name, "site-1", data_folders(context), cache_folder(context)))


def test_patients_are_counted_and_not_images(context):
    facts = facts_of("skin", context)
    assert facts.patients == {"train": 3, "labelled": 1, "val": 2, "test": 0}
    assert facts.identity.name == "skin"


def test_the_fingerprint_is_that_of_images_and_patients_alone(context):
    before = facts_of("skin", context).identity.fingerprint
    assert before == dataset_fingerprint([record.image for record in RECORDS], [record.group for record in RECORDS])
    path = context.local / "skin.csv"
    rows = list(csv.DictReader(path.open()))
    write_manifest(
        [Record(row["image"], "melanoma", "test", row["patient"], row["lesion"]) for row in rows[::-1]], path
    )
    assert facts_of("skin", context).identity.fingerprint == before
    write_manifest(RECORDS[:-1], path)
    assert facts_of("skin", context).identity.fingerprint != before


def test_a_data_set_that_the_site_does_not_define_is_an_error(context):
    with pytest.raises(ConfigurationError, match="data set 'ct' is not defined"):
        facts_of("ct", context)
