"""Partitions of skin lesions from the published folders to manifests on disk, in every scenario."""

import csv
import json
from collections import Counter

import pytest

from grandrounds.data.partition.schemes import make_partition
from grandrounds.errors import ConfigurationError, DataError

CLASSES = ["mel", "nv", "bcc", "ak", "bkl", "df", "vasc", "scc"]


def rows_of(out, site):
    with (out / site / "manifest.csv").open() as stream:
        return list(csv.DictReader(stream))


def counts_of(out, site):
    return Counter((row["split"], row["labelled"]) for row in rows_of(out, site))


@pytest.fixture
def root(tmp_path, isic2019, ham10000, pad_ufes_20, derm7pt):
    """A root with as few images as the ten clients can be made of: 1020 of ISIC 2019 beside 5 that HAM10000 has."""
    folder = tmp_path / "root"
    isic2019(
        folder / "isic2019", [(f"ISIC_{i}", ("MEL", "NV", "BCC", "SCC")[i % 4], f"L_{i // 2}") for i in range(1065)]
    )
    ham10000(folder / "ham10000", [(f"HAM_{i}", f"ISIC_{i}", "akiec") for i in range(1060, 1080)])
    pad_ufes_20(folder / "pad_ufes_20", [(f"PAT_{i}", f"{i}", "ACK", f"PAT_{i}.png") for i in range(8)])
    derm7pt(folder / "derm7pt", [(f"{i}", "melanoma", f"{i}.jpg") for i in range(8)])
    return folder


def test_the_clean_clients_of_fedperl_share_no_image_and_the_description_records_the_removals(root, tmp_path):
    out = tmp_path / "out"
    description = make_partition("lesions", root, out, scheme="fedperl")
    assert description["dataset_name"] == "lesions"
    assert description["classes"] == CLASSES
    assert description["variant"] == "clean"
    assert description["removed_copies"] == {"same_name": 5, "same_content": 0}
    assert description["scaled"] == {
        "ISIC2019": {"needed": 20254, "found": 1060},
        "HAM10000": {"needed": 10015, "found": 20},
        "PAD-UFES-20": {"needed": 2298, "found": 8},
        "Derm7pt": {"needed": 987, "found": 8},
    }
    assert list(description["sites"]) == ["server", *[f"site-{number}" for number in range(1, 11)]]
    assert description["sites"]["server"]["images"] == {"train": 0, "val": 1000, "test": 0}
    names = [row["image"].rpartition("/")[2] for site in description["sites"] for row in rows_of(out, site)]
    assert len(names) == len(set(names)) == 1060 + 20 + 8 + 8
    lesions = {(row["lesion"], site) for site in description["sites"] for row in rows_of(out, site)}
    assert len(lesions) == len({lesion for lesion, _ in lesions})
    assert json.loads((out / "site-6" / "grandrounds.json").read_text())["datasets"]["lesions"]["root"] == str(root)


def test_the_papers_division_is_not_scaled(root, tmp_path):
    with pytest.raises(DataError, match="need 20254 images whose source starts with ISIC2019, found 1065"):
        make_partition("lesions", root, tmp_path / "out", scheme="fedperl", sites=10, variant="paper")


def test_the_papers_variant_can_be_divided_otherwise(root, tmp_path):
    description = make_partition("lesions", root, tmp_path / "out", scheme="iid", sites=2, variant="paper")
    assert description["variant"] == "paper"
    assert "removed_copies" not in description
    assert sum(sum(site["images"].values()) for site in description["sites"].values()) == 1065 + 20 + 8 + 8


def test_labels_at_the_server_alone(root, tmp_path):
    out = tmp_path / "out"
    description = make_partition("lesions", root, out, scheme="fedperl", sites=10, scenario="server_labels")
    assert (description["scenario"], description["server_training"]) == ("server_labels", 0.8)
    assert counts_of(out, "server") == {("train", "1"): 800, ("val", "1"): 200}
    labels = Counter((row["split"], row["label"]) for row in rows_of(out, "server"))
    for name in ("mel", "nv", "bcc", "scc"):
        assert labels["train", name] == pytest.approx(4 * labels["val", name], abs=5)
    assert [description["sites"][f"site-{number}"]["labelled"] for number in range(1, 11)] == [0] * 10
    standard = make_partition("lesions", root, tmp_path / "standard", scheme="fedperl", sites=10)
    for site in ("site-1", "site-10"):
        assert description["sites"][site]["images"] == standard["sites"][site]["images"]
        assert standard["sites"][site]["labelled"] > 0


@pytest.mark.parametrize("use", ["pool", "labelled"])
def test_few_labels_are_at_the_papers_two_clients_unless_others_are_named(root, tmp_path, use):
    out = tmp_path / "out"
    description = make_partition(
        "lesions", root, out, scheme="fedperl", sites=10, scenario="few_labels", few_labels_use=use
    )
    assert description["labelled_sites"] == ["site-2", "site-10"]
    assert description["few_labels_use"] == use
    labelled = {site: summary["labelled"] for site, summary in description["sites"].items() if summary["labelled"]}
    assert list(labelled) == ["site-2", "site-10"]
    everything = {site: description["sites"][site]["images"]["train"] for site in labelled}
    assert (labelled == everything) == (use == "pool")
    other = make_partition(
        "lesions",
        root,
        tmp_path / "other",
        scheme="fedperl",
        sites=10,
        scenario="few_labels",
        labelled_sites=["site-1"],
    )
    assert [site for site, summary in other["sites"].items() if summary["labelled"]] == ["site-1"]


@pytest.fixture
def isic2020(tmp_path):
    folder = tmp_path / "isic"
    (folder / "train").mkdir(parents=True)
    rows = [f"ISIC_{i},IP_{i // 2},{('benign', 'malignant')[i % 3 == 0]}" for i in range(12)]
    (folder / "train.csv").write_text("\n".join(["image_name,patient_id,benign_malignant", *rows]) + "\n")
    for i in range(12):
        (folder / "train" / f"ISIC_{i}.jpg").touch()
    return folder


def test_isic2020_is_one_external_site_for_testing(isic2020, tmp_path):
    description = make_partition("isic2020", isic2020, tmp_path / "out")
    assert description["scheme"] == "external"
    assert description["classes"] == ["benign", "malignant"]
    assert list(description["sites"]) == ["external"]
    assert description["sites"]["external"]["images"] == {"train": 0, "val": 0, "test": 12}
    assert description["sites"]["external"]["classes"] == {"benign": 8, "malignant": 4}
    assert not {"labelled", "validation", "test"} & set(description)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"scenario": "few_labels"}, "scheme external has no training images"),
        ({"server_images": 3}, "scheme external defines the server's images; leave server_images out"),
        ({"sites": 10}, "scheme external has 1 site, got 10; set sites to 1"),
        ({"variant": "clean"}, "data set isic2020 has no option variant"),
        ({"dataset_name": "x"}, "data set isic2020 has no option dataset_name"),
    ],
)
def test_what_an_external_site_cannot_have_is_refused(isic2020, tmp_path, arguments, message):
    with pytest.raises(ConfigurationError, match=message):
        make_partition("isic2020", isic2020, tmp_path / "out", **arguments)


def test_the_fedperl_scheme_refuses_server_images(root, tmp_path):
    with pytest.raises(ConfigurationError, match="scheme fedperl defines the server's images; leave server_images out"):
        make_partition("lesions", root, tmp_path / "out", scheme="fedperl", sites=10, server_images=500)
