"""Twelve kinds of trouble in three collections, each at all and at 95 % of a class, and what is said of clean copies.

The collections are HAM10000 of one device, blood cells and BreastMNIST: 600 images each, at four sites, as PNG or DICOM.
What is asked is what a person sees: the remarks and notes of an import, what a simulation and the doctor say of the sites
before training, and what a run says. About ten CPU minutes.

    python -m benchmarks.troubles.run
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

import grandrounds as gr
from benchmarks.experiment import DATA
from benchmarks.measure import run, table
from grandrounds.data.doctor import compare_sites, examine_location
from grandrounds.data.leaks import Looked
from grandrounds.data.site import locate_dataset
from grandrounds.protocol.problem import Problem
from grandrounds.reporting.caveats import caveats_of
from grandrounds.reporting.run import scores_of
from grandrounds.reporting.runs import read_run
from grandrounds.seeding import numpy_generator

IMAGES, SIDE, SITES, SHARES = 600, 64, 4, (1.0, 0.95)
CLASSES = {"ham": ("nv", "bkl", "mel", "bcc"), "cells": ("basophil", "eosinophil", "lymphocyte", "monocyte")}
WINDOWS = ((40, 80), (600, 2800))
SAYS = (
    "tells the class",
    "no training image of the class",
    "windows",
    "exchanged",
    "diverged",
    "a model sees which site",
)
"""What each sentence about these kinds has in it."""


@dataclass(frozen=True)
class Case:
    """One image with what a table says of it, and how its file is made."""

    pixels: NDArray[np.uint8]
    label: str
    patient: str
    site: str
    split: str
    source: str = "scanner-a"
    suffix: str = "png"
    side: int = SIDE
    grey: bool = False
    turned: bool = False
    image_type: tuple[str, ...] = ("ORIGINAL", "PRIMARY")


def collection(name: str, count: int) -> list[Case]:
    """Images of a collection with sites and splits drawn by patient."""
    generator = numpy_generator("troubles", name)
    if name == "breast":
        with np.load(DATA / "medmnist" / "breastmnist.npz") as known:
            parts = ("train", "val", "test")
            pictures = np.concatenate([known[f"{part}_images"] for part in parts])
            answers = np.concatenate([known[f"{part}_labels"] for part in parts]).ravel()
        _, first = np.unique(pictures, axis=0, return_index=True)  # some are there twice
        kept = generator.permutation(first)[:count]
        chosen = [(pictures[row], ("malignant", "benign")[answers[row]], str(row)) for row in kept]
    else:
        chosen = _listed(name, count, generator)
    patients = sorted({patient for *_, patient in chosen})
    of = {
        patient: (f"site-{1 + n % SITES}", ("train", "train", "train", "val", "test")[n // SITES % 5])
        for n, patient in enumerate(generator.permutation(patients).tolist())
    }
    return [
        Case(_square(picture), label, patient, *of[patient], grey=name == "breast")
        for picture, label, patient in chosen
    ]


def _listed(name: str, count: int, generator: np.random.Generator) -> list[tuple[Any, str, str]]:
    """Pictures, labels and patients of a published table; as many of each class."""
    folder, table_name, archive = {
        "ham": ("ham10000", "ham10000_manifest.csv", "ham10000_200x150.zip"),
        "cells": ("pbc", "pbc_barcelona_manifest.csv", "pbc_barcelona_96.zip"),
    }[name]
    with (DATA / folder / table_name).open(newline="") as stream:
        rows = [row for row in csv.DictReader(stream) if name == "cells" or row["source"].endswith("rosendahl")]
    chosen = []
    for label in CLASSES[name]:
        own = [row for row in rows if row["label"] == label]
        chosen += [own[row] for row in generator.permutation(len(own))[: count // len(CLASSES[name])]]
    with zipfile.ZipFile(DATA / folder / archive) as files:
        return [
            (
                np.asarray(Image.open(io.BytesIO(files.read(row["image"]))).convert("RGB")),
                row["label"],
                row.get("lesion") or row["image"],
            )
            for row in chosen
        ]


def _square(picture: NDArray[np.uint8]) -> NDArray[np.uint8]:
    image = Image.fromarray(picture)
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    return np.asarray(image.crop((left, top, left + side, top + side)).resize((2 * SIDE, 2 * SIDE)))


def _file(case: Case) -> bytes:
    """The image as a file."""
    image = Image.fromarray(case.pixels)
    image = image.resize((case.side, case.side)).convert("L" if case.grey else "RGB")
    out, more = io.BytesIO(), {}
    if case.suffix == "dcm":
        return _dicom(np.asarray(image.convert("L")), case)
    if case.turned:
        exif = Image.Exif()
        exif[0x0112] = 3
        image, more = image.rotate(180), {"exif": exif}
    image.save(out, {"png": "PNG", "jpg": "JPEG"}[case.suffix], **more)
    return out.getvalue()


def _dicom(pixels: NDArray[np.uint8], case: Case) -> bytes:
    from pydicom.dataset import Dataset, FileMetaDataset
    from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian, generate_uid

    made = Dataset()
    made.file_meta = FileMetaDataset()
    made.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    made.file_meta.MediaStorageSOPClassUID = made.SOPClassUID = CTImageStorage
    made.file_meta.MediaStorageSOPInstanceUID = made.SOPInstanceUID = generate_uid()
    made.PatientID, made.Modality, made.ImageType = case.patient, "CT", list(case.image_type)
    made.Rows, made.Columns = pixels.shape
    made.SamplesPerPixel, made.PhotometricInterpretation, made.PixelRepresentation = 1, "MONOCHROME2", 0
    made.BitsAllocated, made.BitsStored, made.HighBit = 16, 12, 11
    made.RescaleSlope, made.RescaleIntercept = 1, -1024
    made.PixelData = (pixels.astype(np.uint16) + 1000).tobytes()
    made["PixelData"].VR = "OW"
    out = io.BytesIO()
    made.save_as(out, enforce_file_format=True)
    return out.getvalue()


def written(cases: list[Case], place: Path, **options: Any) -> gr.Sites:
    """The sites of a table of these images."""
    (place / "images").mkdir(parents=True)
    rows = []
    for number, case in enumerate(cases):
        name = f"{number:04d}.{case.suffix}"
        (place / "images" / name).write_bytes(_file(case))
        rows.append([name, case.label, case.patient, case.site, case.split, case.source])
    with (place / "table.csv").open("w", newline="") as stream:
        csv.writer(stream).writerows([["image", "label", "patient", "site", "split", "source"], *rows])
    return gr.Sites.from_manifest(place / "table.csv", place / "images", place / "sites", warn=False, **options)


def before_training(sites: gr.Sites, place: Path) -> list[str]:
    """What import, simulation and doctor say of the sites."""
    description = sites.description
    assert sites.folder is not None
    problem = Problem.from_dict({**sites.problem, "image_size": SIDE})
    lines, looked = [*sites.remarks, *description["import"].get("notes", [])], dict[str, Looked]()
    for site in sites.names:
        location = locate_dataset(site, problem.dataset, [sites.folder])
        findings, own = examine_location(location, problem, place / "cache", site)
        lines += [finding.message for finding in findings if finding.level != "ok"]
        looked |= {site: own} if own else {}
    return [*lines, *(finding.message for finding in compare_sites(looked) if finding.level != "ok")]


def after_training(sites: gr.Sites, place: Path, method: str = "ridge", **options: Any) -> list[str]:
    """What a run says, and its report."""
    options = options or {"preset": "recommended", "image_size": 112}
    gr.run(method, sites, workspace=place / "run", progress=False, allow_overlap=True, reference=False, **options)
    finished = read_run(place / "run", "run")
    return caveats_of(finished, scores_of(finished))


def diverged(sites: gr.Sites, place: Path) -> list[str]:
    """What a run says whose learning rate is a thousand."""
    options = {"executor.steps": 5, "executor.device": "cpu", "controller.seed": 1}
    return after_training(sites, place, "fedavg", rounds=4, image_size=32, learning_rate=1000.0, options=options)


def changed(cases: list[Case], share: float, **changes: Any) -> list[Case]:
    """A share of the second class with these attributes."""
    generator, name = numpy_generator("changed", share), sorted({case.label for case in cases})[1]
    return [replace(case, **changes) if case.label == name and generator.random() < share else case for case in cases]


def exchanged(cases: list[Case], share: float, all_classes: bool) -> list[Case]:
    """A share of the first site's images of two classes with the other's label, or of its test images."""
    generator, names = numpy_generator("exchanged", share), sorted({case.label for case in cases})
    after = (
        dict(zip(names, [*names[1:], names[0]], strict=True))
        if all_classes
        else {names[0]: names[1], names[1]: names[0]}
    )
    parts = ("test",) if all_classes else ("train", "val", "test")
    return [
        replace(case, label=after.get(case.label, case.label))
        if case.site == "site-1" and case.split in parts and generator.random() < share
        else case
        for case in cases
    ]


def other_windows(sites: gr.Sites) -> None:
    """One site shows images in another window than the others."""
    assert sites.folder is not None
    entry = sites.folder / "site-1" / "grandrounds.json"
    content = json.loads(entry.read_text())
    for own in content["datasets"].values():
        own["windows"] = [list(WINDOWS[1])] * 3
    entry.write_text(json.dumps(content))


@dataclass(frozen=True)
class Kind:
    """A kind of trouble.

    Attributes:
        says: what the sentence that names it has.
        make: the images with a share of the trouble.
        ask: what is said.
        shares: those that there are.
        options: of the import.
        then: what is changed in the sites.
    """

    says: str
    make: Callable[[list[Case], float], list[Case]]
    ask: Callable[[gr.Sites, Path], list[str]] = before_training
    shares: tuple[float, ...] = SHARES
    options: Mapping[str, Any] = field(default_factory=dict)
    then: Callable[[gr.Sites], None] = lambda _: None


def _dicoms(cases: list[Case]) -> list[Case]:
    return [replace(case, suffix="dcm") for case in cases]


IN_WINDOWS = {"windows": [list(WINDOWS[0])] * 3}
KINDS: Mapping[str, Kind] = {
    "site": Kind("the site tells the class", lambda cases, share: changed(cases, share, site="site-1")),
    "source": Kind("the source tells the class", lambda cases, share: changed(cases, share, source="scanner-b")),
    "format": Kind("the format tells the class", lambda cases, share: changed(cases, share, suffix="jpg")),
    "size": Kind("the size tells the class", lambda cases, share: changed(cases, share, side=80)),
    "channels": Kind(
        "the channels tells the class", lambda cases, share: changed(cases, share, grey=not cases[0].grey)
    ),
    "decoding": Kind("the decoding tells the class", lambda cases, share: changed(cases, share, turned=True)),
    "ImageType": Kind(
        "the ImageType tells the class",
        lambda cases, share: changed(_dicoms(cases), share, image_type=("DERIVED", "PRIMARY")),
    ),
    "windows of a site": Kind(
        "in different windows", lambda cases, _: _dicoms(cases), shares=(1.0,), options=IN_WINDOWS, then=other_windows
    ),
    "class without training images": Kind(
        "no training image of the class", lambda cases, share: changed(cases, share, split="test"), shares=(1.0,)
    ),
    "labels exchanged at a site": Kind(
        "may be exchanged at site-1", lambda cases, share: exchanged(cases, share, False), after_training
    ),
    "worse than chance at a site": Kind(
        "Worse than chance at site-1", lambda cases, share: exchanged(cases, share, True), after_training
    ),
    "diverged": Kind("diverged", lambda cases, _: cases, diverged, shares=(1.0,)),
}
CLEAN = {
    "PNG": Kind("", lambda cases, _: cases),
    "DICOM": Kind("", lambda cases, _: _dicoms(cases), options=IN_WINDOWS),
    "run of ridge": Kind("", lambda cases, _: cases, after_training),
}


def said(kind: Kind, cases: list[Case], share: float) -> list[str]:
    """The sentences about these kinds."""
    with TemporaryDirectory() as folder:
        place = Path(folder)
        sites = written(kind.make(cases, share), place, **kind.options)
        kind.then(sites)
        lines = kind.ask(sites, place)
    return [line for line in lines if any(word in line for word in SAYS)]


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """Of each kind and share whether it is named, by collection, and the alarms on clean copies."""
    collections = {name: collection(name, 200 if options.quick else IMAGES) for name in options.data}
    rows, alarms = [], []
    for name, kind in KINDS.items():
        for share in kind.shares:
            lines = {data: said(kind, cases, share) for data, cases in collections.items()}
            named = {data: "yes" if any(kind.says in line for line in own) else "no" for data, own in lines.items()}
            rows.append({"kind": name, "share": f"{share:.0%}", **named})
            print(name, share, named, flush=True)
    for name, kind in CLEAN.items():
        lines = {data: said(kind, cases, 1.0) for data, cases in collections.items()}
        alarms.append({"kind": name, **{data: len(own) for data, own in lines.items()}})
        print(name, lines, flush=True)
    return {"data": list(collections), "images": IMAGES, "sites": SITES, "rows": rows, "alarms": alarms}


def tables(result: dict[str, Any]) -> str:
    """Which kinds are named, and the alarms on clean copies."""
    titles = {"ham": "HAM10000, one device", "cells": "blood cells", "breast": "BreastMNIST"}
    columns = {titles[data]: data for data in result["data"]}
    named = table({"kind": "kind", "share of the class": "share", **columns}, result["rows"], 0)
    return f"{named}\n\n**Alarms on clean copies**\n\n{table({'copy': 'kind', **columns}, result['alarms'], 0)}"


if __name__ == "__main__":
    run(__file__, measured, tables, timed=False, data={"nargs": "+", "default": ["ham", "cells", "breast"]})
