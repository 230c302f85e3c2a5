"""Partitions keep groups at one site, follow their scheme, and are written whole or not at all."""

import json
from collections import Counter, defaultdict

import numpy as np
import pytest

from grandrounds.data.manifest import Record, manifest_digest, read_manifest
from grandrounds.data.partition.divide import by_source, dirichlet, draw_server, iid
from grandrounds.data.partition.fedperl import fedperl_clients
from grandrounds.data.partition.files import read_partition, write_partition
from grandrounds.errors import ConfigurationError, DataError
from grandrounds.seeding import numpy_generator

CLASSES = ("mel", "nv", "bcc")


def lesions(images, source="a", prefix="", classes=CLASSES):
    return tuple(
        Record(f"{prefix}{i}.jpg", classes[i // 2 % len(classes)], lesion=f"{prefix}l{i // 2}", source=source)
        for i in range(images)
    )


def require_whole(records, sites):
    assert sorted(r.image for own in sites.values() for r in own) == sorted(r.image for r in records)
    homes = {(r.lesion, site) for site, own in sites.items() for r in own}
    assert len(homes) == len({r.lesion for r in records})


def test_iid_sites_are_equal_in_size_and_whole():
    records = lesions(120)
    sites = iid(records, 5, numpy_generator(0))
    assert list(sites) == ["site-1", "site-2", "site-3", "site-4", "site-5"]
    assert {len(own) for own in sites.values()} == {24}
    require_whole(records, sites)


def test_every_source_has_consecutive_sites_of_equal_size():
    records = lesions(120, "device-10", "x") + lesions(60, "device-2", "y") + lesions(4, "device-1", "z")
    sites = by_source(records, 4, numpy_generator(0))
    assert {site: (len(own), {r.source for r in own}) for site, own in sites.items()} == {
        "site-1": (4, {"device-1"}),
        "site-2": (60, {"device-2"}),
        "site-3": (60, {"device-10"}),
        "site-4": (60, {"device-10"}),
    }
    require_whole(records, sites)


def test_a_lesion_seen_by_two_devices_stays_with_the_one_that_saw_it_more():
    shared = tuple(Record(f"s{i}.jpg", "nv", lesion="shared", source="a" if i < 2 else "b") for i in range(3))
    sites = by_source(lesions(10, "b", "y") + shared + lesions(10, "a", "x"), 2, numpy_generator(0))
    assert set(shared) <= set(sites["site-1"])
    assert {record.source for record in sites["site-2"]} == {"b"}


def test_fewer_sites_than_sources_are_refused():
    with pytest.raises(DataError, match=r"1 sites cannot hold 2 sources \('a', 'b'\); ask for at least 2"):
        by_source(lesions(4, "a", "x") + lesions(4, "b", "y"), 1, numpy_generator(0))


def test_a_site_without_an_image_is_refused():
    with pytest.raises(DataError, match=r"site-3 would get no image: there are fewer groups than sites"):
        iid(lesions(4), 3, numpy_generator(0))


def test_no_sites_are_refused():
    with pytest.raises(ValueError, match=r"sites .*got 0"):
        iid(lesions(4), 0, numpy_generator(0))


def largest_class_share(sites):
    counts = [Counter(record.label for record in own) for own in sites.values()]
    return np.mean([max(count.values()) / sum(count.values()) for count in counts])


def test_a_small_alpha_skews_the_classes_and_a_large_one_does_not():
    records = lesions(900)
    skewed = dirichlet(records, 4, 0.1, numpy_generator(0))
    even = dirichlet(records, 4, 1e5, numpy_generator(0))
    require_whole(records, skewed)
    require_whole(records, even)
    assert largest_class_share(skewed) > 0.7
    assert largest_class_share(even) == pytest.approx(1 / 3, abs=0.02)
    assert all(len(own) == pytest.approx(225, abs=6) for own in even.values())


def test_a_lesion_with_two_labels_is_not_torn_apart_by_its_classes():
    records = lesions(300) + tuple(Record(f"m{i}.jpg", "nv" if i else "mel", lesion="mixed") for i in range(3))
    require_whole(records, dirichlet(records, 3, 0.2, numpy_generator(0)))


def test_a_dirichlet_division_needs_enough_images():
    with pytest.raises(DataError, match=r"no division of 20 images between 4 sites with alpha 0\.5 .* raise alpha"):
        dirichlet(lesions(20), 4, 0.5, numpy_generator(0))


@pytest.mark.parametrize(
    "scheme", [lambda r, g: iid(r, 3, g), lambda r, g: by_source(r, 3, g), lambda r, g: dirichlet(r, 3, 1.0, g)]
)
def test_the_same_generator_gives_the_same_sites(scheme):
    records = lesions(200)
    assert scheme(records, numpy_generator(7)) == scheme(records, numpy_generator(7))
    assert scheme(records, numpy_generator(7)) != scheme(records, numpy_generator(8))


def test_the_server_gets_whole_groups_with_labels_and_the_sites_the_rest():
    unlabelled = tuple(Record(f"u{i}.jpg") for i in range(50))
    records = lesions(120) + unlabelled
    own, rest = draw_server(records, 30, numpy_generator(0))
    assert len(own) == 30
    assert {(record.split, record.labelled, bool(record.label)) for record in own} == {("val", True, True)}
    require_whole(records, {"server": own, "rest": rest})
    # At random over the whole data set.
    assert {record.label for record in own} == set(CLASSES)
    assert max(int(record.image.removesuffix(".jpg")) for record in own) > 90


def test_a_server_that_would_get_all_images_is_refused():
    with pytest.raises(DataError, match="the server cannot have 10 of 10 images with a label; lower server_images"):
        draw_server(lesions(10), 10, numpy_generator(0))


def single_images(source, images):
    return tuple(Record(f"{source}/{i}.jpg", "nv", source=f"{source}/x") for i in range(images))


SIZES = {"ISIC2019": 25331, "HAM10000": 10015, "PAD-UFES-20": 2298, "Derm7pt": 987}


def test_the_clients_of_fedperl_have_the_published_counts():
    records = [record for source, size in SIZES.items() for record in single_images(source, size)]
    sites = fedperl_clients(records, numpy_generator(0))
    assert list(sites) == ["server", *[f"site-{number}" for number in range(1, 11)]]
    assert [len(own) for own in sites.values()] == [1000, *[4000] * 4, 3254, 4000, 4000, 2015, 2298, 987]
    counts = {site: Counter((r.split, r.labelled) for r in own) for site, own in sites.items()}
    assert counts["server"] == {("val", True): 1000}
    assert counts["site-1"] == {("train", True): 500, ("train", False): 1500, ("val", True): 500, ("test", True): 1500}
    assert [counts[f"site-{number}"]["train", True] for number in (5, 8, 9, 10)] == [393, 278, 317, 82]
    assert [counts[f"site-{number}"]["val", True] for number in (5, 8, 9, 10)] == [400, 251, 284, 120]
    assert [counts[f"site-{number}"]["test", True] for number in (5, 8, 9, 10)] == [1254, 748, 863, 377]
    sources = [{record.source for record in own} for own in sites.values()]
    assert sources == [{"ISIC2019/x"}] * 6 + [{"HAM10000/x"}] * 3 + [{"PAD-UFES-20/x"}, {"Derm7pt/x"}]
    assert len({record.image for own in sites.values() for record in own}) == sum(map(len, sites.values()))


def test_a_lesion_in_two_data_sets_goes_to_the_clients_of_the_first():
    isic, ham = (Record(f"{source}/shared", "nv", lesion="l", source=source) for source in ("ISIC2019", "HAM10000"))
    # No image of HAM10000 is spare: with both, its clients place 10014 others; without, one is missing.
    sizes = {"ISIC2019": 20254, "HAM10000": 10014, "PAD-UFES-20": 2298, "Derm7pt": 987}
    records = [record for source, size in sizes.items() for record in single_images(source, size)]
    homes = defaultdict(set)
    for site, own in fedperl_clients([ham, *records, isic], numpy_generator(0)).items():
        for record in own:
            homes[record.lesion].add(site)
    assert len(homes["l"]) <= 1
    assert homes["l"] <= {"site-6", "site-7", "site-8"}
    with pytest.raises(DataError, match="need 10015 images whose source starts with HAM10000, found 10014"):
        fedperl_clients([isic, *records, ham], numpy_generator(0))


def test_a_data_set_that_is_missing_or_too_small_is_named():
    records = single_images("ISIC2019", 20254)
    with pytest.raises(DataError, match=r"site-6, site-7, site-8 need 10015.*found 0"):
        fedperl_clients(records, numpy_generator(0))
    with pytest.raises(DataError, match=r"site-1.*need 20254.*found 20253"):
        fedperl_clients(records[1:], numpy_generator(0))


@pytest.fixture
def sites():
    return {
        "site-1": (
            Record("a.jpg", "mel", "train", lesion="l1", source="x"),
            Record("b.jpg", "nv", "train", lesion="l2", source="y", labelled=False),
            Record("c.jpg", "nv", "val", lesion="l3", source="x"),
        ),
        "site-2": (Record("d.jpg", "", "train"), Record("e.jpg", "bcc", "test")),
    }


def write(sites, folder, **options):
    return write_partition(sites, folder, "skin", "images.zip", CLASSES, {"scheme": "iid", "seed": 3}, **options)


def test_a_partition_is_described_in_numbers(tmp_path, sites):
    content = write(sites, tmp_path / "p")
    digest = manifest_digest(tmp_path / "p/site-1/manifest.csv")
    assert {key: value for key, value in content.items() if key != "sites"} == {
        "scheme": "iid",
        "seed": 3,
        "key_rule": 1,
        "dataset_name": "skin",
        "classes": ["mel", "nv", "bcc"],
    }
    assert content["sites"]["site-1"] == {
        "images": {"train": 2, "val": 1, "test": 0},
        "labelled": 1,
        "classes": {"mel": 1, "nv": 2, "bcc": 0},
        "sources": {"x": 2, "y": 1},
        "sha256": digest,
    }
    assert content == json.loads((tmp_path / "p/partition.json").read_text()) == read_partition(tmp_path / "p")


def test_every_site_gets_its_manifest_and_its_configuration(tmp_path, sites, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(sites, "p")
    assert read_manifest(tmp_path / "p/site-2/manifest.csv", CLASSES) == sites["site-2"]
    assert json.loads((tmp_path / "p/site-1/grandrounds.json").read_text()) == {
        "datasets": {"skin": {"manifest": "manifest.csv", "root": str(tmp_path / "images.zip")}}
    }
    assert sorted(path.name for path in tmp_path.iterdir()) == ["p"]


def test_the_same_partition_may_be_written_again_and_another_only_on_demand(tmp_path, sites):
    first = write(sites, tmp_path / "p")
    assert write(sites, tmp_path / "p") == first
    other = {"site-3": sites["site-2"]}
    with pytest.raises(ConfigurationError, match=r"p holds another partition; choose another folder or overwrite it"):
        write(other, tmp_path / "p")
    assert read_partition(tmp_path / "p") == first
    assert list(write(other, tmp_path / "p", overwrite=True)["sites"]) == ["site-3"]
    assert sorted(path.name for path in (tmp_path / "p").iterdir()) == ["partition.json", "site-3"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["p"]


@pytest.mark.parametrize("overwrite", [False, True])
def test_files_of_others_are_never_replaced(tmp_path, sites, overwrite):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(ConfigurationError, match=r"thesis\.tex.*partition"):
        write(sites, tmp_path, overwrite=overwrite)
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def test_a_partition_that_fails_leaves_nothing(tmp_path, sites):
    with pytest.raises(TypeError):
        write_partition(sites, tmp_path / "p", "skin", ".", CLASSES, {"seed": object()})
    assert list(tmp_path.iterdir()) == []


def test_mistakes_are_named_before_anything_is_written(tmp_path, sites):
    divided = {"site-1": (Record("a", "nv", patient="p"), Record("b", "nv", "val", patient="p"))}
    with pytest.raises(DataError, match=r"site-1.*'p'.*2\).*3\)"):
        write(divided, tmp_path / "p")
    with pytest.raises(DataError, match=r"image 'a\.jpg' is at two sites, site-1 and site-3"):
        write({**sites, "site-3": sites["site-1"][:1]}, tmp_path / "p")
    for kind in ("patient", "lesion"):
        shared = {f"site-{number}": (Record(f"{number}", "nv", **{kind: "q"}),) for number in (1, 2)}
        with pytest.raises(DataError, match=rf"{kind} 'q' is at two sites, site-1 and site-2; give it to one"):
            write(shared, tmp_path / "p")
    with pytest.raises(DataError, match=r"site-1, image 'z': 'nvv' is not one of .* mean 'nv'\?"):
        write({"site-1": (Record("z", "nvv"),)}, tmp_path / "p")
    with pytest.raises(ValueError, match=r"'\.\./site' cannot be a site's name"):
        write({"../site": sites["site-1"]}, tmp_path / "p")
    with pytest.raises(ValueError, match="description must not contain bits, classes"):
        write_partition(sites, tmp_path / "p", "skin", ".", CLASSES, {"classes": 3, "bits": 12})
    assert list(tmp_path.iterdir()) == []


def test_a_manifest_that_was_changed_is_named(tmp_path, sites):
    write(sites, tmp_path / "p")
    manifest = tmp_path / "p/site-2/manifest.csv"
    manifest.write_text(manifest.read_text().replace("test", "val"))
    with pytest.raises(DataError, match=r"site-2/manifest\.csv.*partition:"):
        read_partition(tmp_path / "p")
    manifest.unlink()
    with pytest.raises(DataError, match=r"site-2/manifest\.csv cannot be read"):
        read_partition(tmp_path / "p")


@pytest.mark.parametrize("text", ["{", "[]", '{"sites": {"site-1": {}}}', '{"sites": 3}'])
def test_a_damaged_description_is_named(tmp_path, text):
    (tmp_path / "partition.json").write_text(text)
    with pytest.raises(DataError, match=r"partition\.json.*partition"):
        read_partition(tmp_path)


def test_a_missing_description_is_named(tmp_path):
    with pytest.raises(DataError, match=r"partition\.json cannot"):
        read_partition(tmp_path)
