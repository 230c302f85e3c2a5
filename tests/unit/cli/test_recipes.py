import csv
import os
from collections import Counter
from pathlib import Path

import pytest

from grandrounds.data.recipes import make_partition
from grandrounds.errors import ConfigurationError, DataError

DATA = Path(os.environ.get("GRANDROUNDS_DATA", Path(__file__).parents[4] / "shared" / "data"))


@pytest.fixture
def table(tmp_path):
    (tmp_path / "images").mkdir()
    path = tmp_path / "all.csv"
    rows = [f"{i}.png,{'ab'[i % 2]},train,p{i // 2},clinic-{i % 3 // 2}" for i in range(120)]
    path.write_text("image,label,split,patient,source\n" + "\n".join(rows) + "\n")
    return path


def partition(table, out, scheme="iid", sites=3, **options):
    options = {"manifest": table, "dataset_name": "skin", **options}
    return make_partition("manifest", table.parent / "images", scheme, sites, out, **options)


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


def test_the_description_says_how_it_was_made(table, tmp_path):
    description = partition(table, tmp_path / "out", "dirichlet", alpha=5.0, seed=7)
    assert {key: description[key] for key in ("dataset", "scheme", "seed", "alpha", "labelled", "classes")} == {
        "dataset": "manifest",
        "scheme": "dirichlet",
        "seed": 7,
        "alpha": 5.0,
        "labelled": 0.25,
        "classes": ["a", "b"],
    }


def test_the_same_seed_gives_the_same_manifests_and_another_seed_does_not(table, tmp_path):
    first, again, other = (
        partition(table, tmp_path / name, seed=seed) for name, seed in (("x", 1), ("y", 1), ("z", 2))
    )
    assert first["sites"] == again["sites"]
    assert first["sites"] != other["sites"]


def test_other_splits_leave_the_sites_as_they_are(table, tmp_path):
    partition(table, tmp_path / "x", labelled=0.25)
    partition(table, tmp_path / "y", labelled=0.75)
    for site in ("site-1", "site-2", "site-3"):
        images = [[row["image"] for row in rows_of(tmp_path / name, site)] for name in ("x", "y")]
        assert images[0] == images[1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scheme": "random"}, "scheme must be one of sites, dirichlet, iid, fedperl, got 'random'"),
        ({"sites": 0}, "sites must be at least 1, got 0"),
        ({"scheme": "fedperl"}, "scheme fedperl has 10 sites, got 3"),
        ({"alpha": 0.0}, "alpha must be above 0"),
        ({"labelled": 1.5}, "labelled must be between 0 and 1, got 1.5"),
        ({"validation": 0.5, "test": 0.5}, "must leave something for training"),
        ({"dataset_name": None}, "needs the manifest's file and the name"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(table, tmp_path, changes, message):
    with pytest.raises(ConfigurationError, match=message):
        partition(table, tmp_path / "out", **changes)


def test_an_unknown_data_set_and_a_missing_root_are_refused(tmp_path):
    with pytest.raises(ConfigurationError, match="dataset must be one of ham10000, manifest, got 'isic'"):
        make_partition("isic", tmp_path, "iid", 2, tmp_path / "out")
    with pytest.raises(ConfigurationError, match=r"root .*nowhere does not exist"):
        make_partition("ham10000", tmp_path / "nowhere", "iid", 2, tmp_path / "out")


def test_a_division_by_source_needs_the_sources(table, tmp_path):
    table.write_text(table.read_text().replace("clinic-0", ""))
    with pytest.raises(ConfigurationError, match="scheme sites needs the source of every image"):
        partition(table, tmp_path / "out", "sites")


def test_the_clients_of_fedperl_need_their_data_sets(table, tmp_path):
    with pytest.raises(DataError, match="need 20254 images whose source starts with ISIC2019, found 0"):
        partition(table, tmp_path / "out", "fedperl", sites=10)


@pytest.mark.realdata
def test_ham10000_is_divided_by_its_acquisition_sites(tmp_path):
    if not (DATA / "ham10000").is_dir():
        pytest.skip(f"no HAM10000 in {DATA}")
    description = make_partition("ham10000", DATA / "ham10000", "sites", 10, tmp_path / "out")
    assert description["dataset_name"] == "skin"
    assert sum(sum(site["images"].values()) for site in description["sites"].values()) == 10015
    # 439 of the 10,015 images are from Vienna: one site of ten, and the last in natural order.
    assert description["sites"]["site-10"]["sources"] == {"HAM10000/vienna_dias": 439}
