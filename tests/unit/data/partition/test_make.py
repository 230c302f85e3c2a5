import csv
import os
from collections import Counter
from pathlib import Path

import pytest

from grandrounds.data.partition.schemes import make_partition
from grandrounds.data.site import read_site_config
from grandrounds.errors import ConfigurationError, DataError
from tests.federations import write_pictures

DATA = Path(os.environ.get("GRANDROUNDS_DATA", Path(__file__).parents[5] / "shared" / "data"))


@pytest.fixture
def table(tmp_path):
    write_pictures(tmp_path / "images", [f"{i}.png" for i in range(120)])
    path = tmp_path / "all.csv"
    rows = [f"{i}.png,{'ab'[i % 2]},train,p{i // 2},clinic-{i % 3 // 2}" for i in range(120)]
    path.write_text("image,label,split,patient,source\n" + "\n".join(rows) + "\n")
    return path


def partition(table, out, scheme="iid", sites=3, **options):
    options = {"manifest": table, "dataset_name": "skin", "splits": "draw", **options}
    return make_partition("manifest", table.parent / "images", out, scheme=scheme, sites=sites, **options)


def rows_of(out, site):
    with (out / site / "manifest.csv").open() as stream:
        return list(csv.DictReader(stream))


def test_every_image_is_at_one_site_and_shares_are_met(table, tmp_path):
    description = partition(table, tmp_path / "out", labelled=0.5, validation=0.2, test=0.3)
    images = [row["image"] for site in description["sites"] for row in rows_of(tmp_path / "out", site)]
    assert Counter(images) == {f"{i}.png": 1 for i in range(120)}
    for site in description["sites"]:
        rows = rows_of(tmp_path / "out", site)
        # Patients have two images, so counts are met within one.
        assert Counter(row["split"] for row in rows)["val"] == pytest.approx(8, abs=1)
        assert Counter(row["split"] for row in rows)["test"] == pytest.approx(12, abs=1)
        assert sum(row["split"] == "train" and row["labelled"] == "1" for row in rows) == pytest.approx(10, abs=1)


def test_the_description_records_the_options_of_the_partition(table, tmp_path):
    description = partition(table, tmp_path / "out", "dirichlet", alpha=5.0, seed=7)
    assert {key: description[key] for key in ("dataset", "scheme", "seed", "alpha", "labelled", "classes")} == {
        "dataset": "manifest",
        "scheme": "dirichlet",
        "seed": 7,
        "alpha": 5.0,
        "labelled": 1.0,
        "classes": ["a", "b"],
    }


def test_the_same_seed_gives_the_same_manifests_and_another_seed_does_not(table, tmp_path):
    first, again, other = (
        partition(table, tmp_path / name, seed=seed) for name, seed in (("x", 1), ("y", 1), ("z", 2))
    )
    assert first["sites"] == again["sites"]
    assert first["sites"] != other["sites"]


def test_other_split_shares_do_not_change_the_sites(table, tmp_path):
    partition(table, tmp_path / "x", labelled=0.25)
    partition(table, tmp_path / "y", labelled=0.75)
    for site in ("site-1", "site-2", "site-3"):
        images = [[row["image"] for row in rows_of(tmp_path / name, site)] for name in ("x", "y")]
        assert images[0] == images[1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"scheme": "random"},
            "scheme must be auto, given, sites, dirichlet, iid, fedperl, mdhfl or external, got 'random'",
        ),
        ({"scheme": "fedperl"}, "scheme fedperl has 10 sites, got 3"),
        ({"labelled": 0.5, "labelled_images": 4}, "labelled_images replaces the share labelled"),
        ({"labelled_images": 90}, "site-1 has .* training images with a label, fewer than labelled_images=90"),
        ({"devices": 2, "preprocess": "mammogram"}, "devices retake photographs, neither CT slices nor mammograms"),
        ({"validation": 0.5, "test": 0.5}, "must leave something for training"),
        ({"manifest": None}, "data set manifest needs the option manifest"),
        ({"variant": "clean"}, "data set manifest has no option variant"),
        ({"scenario": "server_labels"}, "scenario server_labels needs images at the server; set server_images"),
        (
            {"scenario": "server_labels", "server_images": 20, "server_training": 0.0},
            "needs a server that trains; set server_training above 0",
        ),
        ({"server_training": 0.5}, "the server has no images to train on; set server_images"),
        ({"scenario": "few_labels"}, "few_labels needs labelled_sites: some of site-1, site-2, site-3"),
        ({"scenario": "few_labels", "labelled_sites": ["site-9"]}, "labelled_sites: there is no site 'site-9'"),
        ({"labelled_sites": ["site-1"]}, "labelled_sites and few_labels_use need scenario few_labels, got standard"),
        (
            {"few_labels_use": "labelled"},
            "labelled_sites and few_labels_use need scenario few_labels, got standard",
        ),
    ],
)
def test_arguments_that_do_not_fit_are_refused(table, tmp_path, changes, message):
    with pytest.raises((ConfigurationError, DataError), match=message):
        partition(table, tmp_path / "out", **changes)


def test_sites_can_have_equally_many_labels_and_take_turns_with_synthetic_devices(table, tmp_path):
    description = partition(table, tmp_path / "out", sites=3, labelled_images=4, devices=2)
    assert (description["labelled_images"], description["devices"], "labelled" in description) == (4, 2, False)
    devices = {}
    for site in description["sites"]:
        chosen = [r for r in rows_of(tmp_path / "out", site) if r["split"] == "train" and r["labelled"] == "1"]
        assert Counter(row["label"] for row in chosen) == {"a": 2, "b": 2}
        devices[site] = read_site_config(tmp_path / "out" / site / "grandrounds.json")["skin"].reading.preprocess
    assert devices == {"site-1": "device-1", "site-2": "device-2", "site-3": "device-1"}


def test_a_server_gets_images_that_no_site_has(table, tmp_path):
    description = partition(table, tmp_path / "out", server_images=20)
    assert list(description["sites"]) == ["server", "site-1", "site-2", "site-3"]
    assert description["server_images"] == 20
    assert Counter(row["split"] for row in rows_of(tmp_path / "out", "server")) == {"val": 20}
    images = [row["image"] for site in description["sites"] for row in rows_of(tmp_path / "out", site)]
    assert Counter(images) == {f"{i}.png": 1 for i in range(120)}
    patients = {(row["patient"], site) for site in description["sites"] for row in rows_of(tmp_path / "out", site)}
    assert len(patients) == 60


def test_the_servers_images_are_drawn_apart_from_everything_else(table, tmp_path):
    def server_of(name, **options):
        partition(table, tmp_path / name, server_images=20, **options)
        return [row["image"] for row in rows_of(tmp_path / name, "server")]

    first = server_of("a")
    assert first == server_of("b", sites=4, scheme="dirichlet", labelled=0.5) == server_of("c", server_training=0.5)
    assert first != server_of("d", seed=2)


def test_labels_at_the_server_alone_are_no_sites(table, tmp_path):
    description = partition(table, tmp_path / "out", scenario="server_labels", server_images=20)
    rows = rows_of(tmp_path / "out", "server")
    # Ten images of each of two classes, patients whole: 8 of 10 of each class, within a patient's two images.
    assert Counter((row["split"], row["labelled"]) for row in rows)["train", "1"] == pytest.approx(16, abs=2)
    assert [description["sites"][f"site-{number}"]["labelled"] for number in (1, 2, 3)] == [0, 0, 0]
    standard = partition(table, tmp_path / "standard", server_images=20)
    for site in ("site-1", "site-2", "site-3"):
        assert description["sites"][site]["images"] == standard["sites"][site]["images"]


def test_choices_without_effect_are_not_in_the_description(table, tmp_path):
    keys = {
        "dataset",
        "scheme",
        "seed",
        "labelled",
        "validation",
        "test",
        "dataset_name",
        "classes",
        "sites",
        "key_rule",
        "import",
    }
    assert set(partition(table, tmp_path / "out")) == keys


def test_an_external_site_can_be_made_of_any_data(table, tmp_path):
    description = partition(table, tmp_path / "out", "external", sites=None)
    assert description["sites"]["external"]["images"] == {"train": 0, "val": 0, "test": 120}


def test_a_table_has_the_defaults_of_a_folder_and_no_label_is_hidden(table, tmp_path):
    description = make_partition("manifest", table.parent / "images", tmp_path / "out", manifest=table, splits="draw")
    assert (description["scheme"], len(description["sites"])) == ("iid", 4)
    shares = {name: description[name] for name in ("labelled", "validation", "test")}
    assert shares == {"labelled": 1.0, "validation": 0.1, "test": 0.2}
    assert all(one["labelled"] == one["images"]["train"] for one in description["sites"].values())


def test_an_unknown_data_set_and_a_missing_root_are_refused(tmp_path):
    with pytest.raises(
        ConfigurationError,
        match="dataset must be one of ham10000, ham10000_malignancy",
    ):
        make_partition("isic", tmp_path, tmp_path / "out", scheme="iid", sites=2)
    with pytest.raises(ConfigurationError, match=r"root .*nowhere does not exist"):
        make_partition("ham10000", tmp_path / "nowhere", tmp_path / "out", scheme="iid", sites=2)


def test_a_division_by_source_needs_the_sources(table, tmp_path):
    table.write_text(table.read_text().replace("clinic-0", ""))
    with pytest.raises(ConfigurationError, match="scheme sites needs the source of every image"):
        partition(table, tmp_path / "out", "sites")


@pytest.mark.parametrize(
    ("sites", "labelled", "more"),
    [(10, 2, {}), (10, 1, {}), (10, 3, {}), (10, 4, {}), (3, 2, {}), (4, 2, {}), (6, 2, {"labelled": 1.0})],
)
def test_the_clients_of_fedirm_can_be_made_with_any_number_of_labelled_ones(table, tmp_path, sites, labelled, more):
    names = [f"site-{number}" for number in range(1, labelled + 1)]
    description = partition(
        table,
        tmp_path / "out",
        "iid",
        sites,
        validation=0.1,
        test=0.2,
        scenario="few_labels",
        labelled_sites=names,
        **more,
    )
    counts = {site: (found["images"]["train"], found["labelled"]) for site, found in description["sites"].items()}
    assert len(counts) == sites
    assert [site for site, (_, known) in counts.items() if known] == names
    assert all(known == train for train, known in counts.values() if known)
    totals = [sum(found["images"].values()) for found in description["sites"].values()]
    assert max(totals) - min(totals) <= 2
    assert sum(totals) == 120


def test_the_clients_of_fedperl_need_their_data_sets(table, tmp_path):
    with pytest.raises(DataError, match="need 20254 images whose source starts with ISIC2019, found 0"):
        partition(table, tmp_path / "out", "fedperl", sites=10)


@pytest.mark.realdata
def test_ham10000_is_divided_by_its_acquisition_sites(tmp_path):
    if not (DATA / "ham10000").is_dir():
        pytest.skip(f"no HAM10000 in {DATA}")
    description = make_partition("ham10000", DATA / "ham10000", tmp_path / "out", scheme="sites", sites=10)
    assert description["dataset_name"] == "skin"
    assert sum(sum(site["images"].values()) for site in description["sites"].values()) == 10015
    # 439 of the 10,015 images are from Vienna: one site of ten, and the last in natural order.
    assert description["sites"]["site-10"]["sources"] == {"HAM10000/vienna_dias": 439}
