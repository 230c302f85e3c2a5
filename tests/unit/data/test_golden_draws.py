"""Views, their random streams and partitions stay what they were, to the bit: every run ever made depends on them.

The digests were computed at commit 7931d40c, when views and schemes were still names in an if-chain.
"""

import hashlib
import json

import numpy as np
import pytest

from grandrounds.data.image_files import Folder, Seen
from grandrounds.data.images.augmentation import draw_views, sample_generator
from grandrounds.data.partition.schemes import make_partition
from grandrounds.seeding import numpy_generator

VIEWS = {
    "weak": "91d02837339cb3dc64597550f09843abd534277ea10547c0b93306622472fa93",
    "strong": "2f08b055080af5eae53412e7f4170c8bc0779b932ca1781c704b62848915e4a9",
    "none": "070043c6c74bdee19abc9989c397adeda520fe3058360c3e3f0f0376ed5f753a",
    "mild": "45b8e3044827ab92c0f59bca422f465cc5344b50f18e11319d70a88bc60a59d5",
    "turns": "7b9ea2e9fd77276d19090bfafacb3774f04b8550b467f6958ecdbfdb0099b214",
    "affine": "ffa7f3f9c7c2cdb4313f07b3a796549f260eb56fb2a9f7977dfdce35e290d8c1",
    "strong, levels": "4f5a0340a05e360cc098241067af36a35d702432b80bf690b24481f1f57c37fd",
    "strong, equalize": "ab003b93f0830a726dace02d56f0cc3cb19d9ad85b566cd0f4da9158421784d7",
}
PARTITIONS = {
    "iid": "b0d771b15edae5777745b5de07fc34bbe31344a48ba95713348a487c2429a804",
    "iid, other shares": "6d707a1101bcb01f7243fe8ae4c84742f9636810266d7268b829b0089cf8d919",
    "iid, some labels": "943c253576745c7453eec68e55871a09dd198224f0f904cbf7493e5ac9997939",
    "iid, server": "f3922586134941fe55db928d3677cf8332f2e2555e59a40d7f7d967ffc6690fb",
    "iid, few labels": "d5b9cb573efb06480c1d9abd6035e8097e6ca9e0e670eace0a083bfd2dccee10",
    "iid, devices": "1f10ed0a98bd9388b8060070f7e8eb0d86ad5470acfbc5cc450e6bc313314495",
    "iid, kept splits": "ed155a6ebb6bf93aa5fdb50000b6a49d9feefa70b76e2f7b0b07421d9e81e690",
    "sites": "db77fc24e3b6cad4d4e92aa37458c4617b00cca1e264a7d60c7bdf13c1b00ebd",
    "sites, seed": "452e78d812899f016175e1c67adec642fcb6ae3a0ac6d95a6ba4cc09a3909e81",
    "dirichlet": "fd47175b6dd6c93c1e0a455b2478001a88416afd9d665c7b3cd1f0f8c425dc05",
    "given": "395b7223f0f7afb6af7f6ea61bb424d24ad94aa83fb807ee8e5cc5601632fed3",
    "auto": "395b7223f0f7afb6af7f6ea61bb424d24ad94aa83fb807ee8e5cc5601632fed3",
    "external": "3cc0b4b2b81c98953cb68c7bb8fd9cbb0dd9d1901af611930e49fcb13ac26d67",
    "mdhfl": "59f91ec94cf3a11a8250525d73ad8b7cbe3840ba25b8c8a44f754b2c356d77c9",
    "mdhfl, pair noise": "6268189b0f7e48c5647288dbf7c20a7374bc28320381b5df5709e591e4e43860",
    "mdhfl, drawn": "389e1f0979f7a5dba941584830ca4a8efa6eb3189b40f1cad99a47bcf45a3936",
    "folder": "1c0086f06a2dbb8c93746caf9d16e4b21af80ac34fc74ea4f9cacdea57e68d84",
    "fedperl": "1b1110a7b939765a8dc83f9c09c35d5eeade29486ca49b2aea19597708eed0dd",
    "slice": "b958e620991fde50109c427702553796e6aaf530f4bc904701b20048d1f5efd5",
}
VIEW_OPTIONS = {"strong, levels": {"strong_levels": (3, 5)}, "strong, equalize": {"equalize_noop": True}}
CASES = ("weak", "strong", "none", "mild", "turns", "affine", *VIEW_OPTIONS)
SHARES = {"labelled": 0.5, "validation": 0.2, "test": 0.3}
TABLES = {
    "iid": {"scheme": "iid", "sites": 3},
    "iid, other shares": {"scheme": "iid", "sites": 3, **SHARES},
    "iid, some labels": {"scheme": "iid", "sites": 3, "labelled_images": 6},
    "iid, server": {"scheme": "iid", "sites": 3, "server_images": 30, "scenario": "server_labels"},
    "iid, few labels": {"scheme": "iid", "sites": 3, "scenario": "few_labels", "labelled_sites": ("site-2",)},
    "iid, devices": {"scheme": "iid", "sites": 4, "devices": 2},
    "iid, kept splits": {"scheme": "iid", "sites": 3, "splits": "keep"},
    "sites": {"scheme": "sites", "sites": 5},
    "sites, seed": {"scheme": "sites", "sites": 5, "seed": 7},
    "dirichlet": {"scheme": "dirichlet", "sites": 4, "alpha": 0.3},
    "given": {"scheme": "given"},
    "auto": {"scheme": "auto"},
    "external": {"scheme": "external"},
    "mdhfl": {"scheme": "mdhfl"},
    "mdhfl, pair noise": {"scheme": "mdhfl", "sites": 3, "noise": "pair", "noise_rate": 0.4, "noise_eligible": 0.8},
    "mdhfl, drawn": {"scheme": "mdhfl", "private_images": 60, "public_share": 0.3, "public_images": 20, "alpha": 2.0},
}


def digest(content):
    return hashlib.sha256(content).hexdigest()


def draws(case):
    """Views of square and grey images at several steps, and the next numbers of their streams."""
    view, options = case.partition(",")[0], VIEW_OPTIONS.get(case, {})
    found = []
    for channels in (1, 3):
        images = numpy_generator("images").integers(0, 256, (12, 24, 24, channels), dtype=np.uint8)
        for key, step in ((5, 0), (5, 3), (2**63, 1)):
            found.append(draw_views(images, np.array([7, 2, 11, 2, 5]), view, key, step, **options).tobytes())
            found.extend(sample_generator(view, key, step, position).random(9).tobytes() for position in (0, 4))
    return digest(b"".join(found))


def digests_of(description):
    """One digest over those of all files of a partition."""
    kept = {
        site: {name: value for name, value in summary.items() if name.endswith("sha256")}
        for site, summary in description["sites"].items()
    }
    return digest(json.dumps([kept, description.get("public_set")]).encode())


@pytest.mark.parametrize("case", CASES)
def test_views_and_their_streams_are_what_they_were(case):
    assert draws(case) == VIEWS[case]


@pytest.fixture
def any_file_is_an_image(monkeypatch):
    """The files of these tests are texts, so that their bytes are the same with every version of an image library."""
    monkeypatch.setattr(Folder, "look", lambda self, name: Seen("PNG", 1, 1))


@pytest.mark.usefixtures("any_file_is_an_image")
@pytest.mark.parametrize("case", TABLES)
def test_partitions_of_a_table_are_what_they_were(case, tmp_path):
    single = case.startswith("mdhfl")  # which divides images, no patients
    header = "image,label,split" + ("" if single else ",patient,lesion,source,site")
    images = tmp_path / "images"
    images.mkdir()
    rows = []
    for i in range(160):
        (images / f"{i}.png").write_text(f"image {i}")
        row = f"{i}.png,{'aabc'[i % 4]},{'train' if i % 9 else 'test'}"
        more = f",p{i // 2},{f'l{i // 3}' if i % 5 == 0 else ''},clinic-{i // 2 % 5 // 2},hospital-{i // 2 % 7 % 3}"
        rows.append(row if single else row + more)
    if case == "iid, kept splits":
        rows = [
            row.replace(",train,", ",test,")
            if int(row.split(".")[0]) // 6 % 5 == 0
            else row.replace(",test,", ",train,")
            for row in rows
        ]
    table = tmp_path / "all.csv"
    table.write_text("\n".join([header, *rows]) + "\n")
    options = {"manifest": table, "splits": "draw", **TABLES[case]}
    assert digests_of(make_partition("manifest", images, tmp_path / "out", **options)) == PARTITIONS[case]


@pytest.mark.usefixtures("any_file_is_an_image")
def test_partitions_of_a_folder_are_what_they_were(tmp_path):
    root = tmp_path / "images"
    for i in range(120):
        place = root / ("left", "right")[i % 2] / "ab"[i % 3 // 2] / f"{i}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(f"image {i}")
    assert digests_of(make_partition("folder", root, tmp_path / "out", layout="site/class")) == PARTITIONS["folder"]


def test_fedperls_clients_are_what_they_were(tmp_path, isic2019, ham10000, pad_ufes_20, derm7pt):
    root = tmp_path / "root"
    classes = ("MEL", "NV", "BCC", "SCC")
    isic2019(root / "isic2019", [(f"ISIC_{i}", classes[i % 4], f"L_{i // 2}") for i in range(1085)])
    ham10000(root / "ham10000", [(f"HAM_{i // 2}", f"ISIC_{i}", "akiec") for i in range(1070, 1100)])
    pad_ufes_20(root / "pad_ufes_20", [(f"PAT_{i // 2}", f"{i}", "ACK", f"PAT_{i}.png") for i in range(16)])
    derm7pt(root / "derm7pt", [(f"{i}", "melanoma", f"{i}.jpg") for i in range(12)])
    options = {"scheme": "fedperl", "scenario": "server_labels"}
    assert digests_of(make_partition("lesions", root, tmp_path / "out", **options)) == PARTITIONS["fedperl"]


def test_clients_of_slices_are_what_they_were(tmp_path, rsna_ich):
    kinds = (["subdural"], ["epidural"], ["intraventricular"])
    root = rsna_ich(tmp_path / "root", [(f"ID_{i}", kinds[i % 3], f"ID_p{i // 3}") for i in range(90)])
    options = {"slices": 80, "sites": 4, "client_partition": "slice", "labelled_images": 5}
    assert digests_of(make_partition("rsna_ich", root, tmp_path / "out", **options)) == PARTITIONS["slice"]
