"""Each kind of odd input has the same result by each way into the program that can carry it."""

import io
import json
import re
import shutil
import sys
import zipfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image, ImageCms

import grandrounds as gr
from grandrounds.api import running
from grandrounds.data.manifest import read_manifest
from grandrounds.data.site import load_site_data, read_site_config
from grandrounds.errors import DataError, GrandRoundsError
from grandrounds.evaluation.external import load_test_images
from grandrounds.models.registry import build_model
from grandrounds.protocol.problem import ModelSpec, Problem
from tests.federations import write_pictures
from tests.unit.cli.conftest import run_command, summary
from tests.unit.data.conftest import bytes_of_ct_slice

COUNT = 48
NAMES = [f"i{number:02d}.png" for number in range(COUNT)]
LABELS = ["ab"[number // 4 % 2] for number in range(COUNT)]
PEOPLE = [f"P{number // 4}" for number in range(COUNT)]
SPLITS = [("train", "train", "validation", "test")[number // 4 % 4] for number in range(COUNT)]
ANONYMOUS = ["anonymous" if number % 2 else f"p{number}" for number in range(COUNT)]
NEAR = ["nevus", "melanoma"] * 22 + ["melanom"] * 4
LESION = "folders have no level of lesions"
SHEET = "folders are no cells of a spreadsheet"
TASK = "folders give an image one class"
TABLES = ("csv", "xlsx", "parquet", "frame", "--images")
WAYS = ("folder", "zip", *TABLES, "manifest", "evaluate")


class Kind(NamedTuple):
    """A kind of odd input.

    Attributes:
        columns: of a table, beside image and label or in their place.
        place: where an image is in a folder; else why a folder cannot carry the kind.
        right: the column that is read and its values, or the question that is asked.
        options: of the import.
        at_site: the classes of a job and what a hospital's manifest and ``evaluate`` say; else why they cannot carry it.
    """

    columns: Mapping[str, Sequence[Any]]
    place: Callable[[int], str] | str
    right: tuple[str, Sequence[str]] | str
    options: Mapping[str, Any] = {}
    at_site: tuple[tuple[str, str], str] | str = "a hospital's manifest has the columns of its description alone"


KINDS = {
    "known patients": Kind(
        {"patient_id": PEOPLE}, lambda n: f"{LABELS[n]}/{PEOPLE[n]}/{NAMES[n]}", ("patient", PEOPLE),
        {"layout": "class/patient"},
    ),
    "known lesions": Kind({"lesion_id": PEOPLE}, LESION, ("lesion", PEOPLE)),
    "published split": Kind(
        {"subset": SPLITS},
        lambda n: f"{SPLITS[n]}_images/{LABELS[n]}/{NAMES[n]}",
        ("split", [split.replace("validation", "val") for split in SPLITS]),
    ),
    "words of one meaning": Kind(
        {"label": ["ja", "nein", "1", "0"] * 12}, lambda n: f"{('ja', 'nein', '1', '0')[n % 4]}/{NAMES[n]}",
        "'(ja' and '1|1' and 'ja)'",
        at_site=(("ja", "nein"), "'1'"),
    ),
    "near words": Kind(
        {"label": NEAR}, lambda n: f"{NEAR[n]}/{NAMES[n]}", "'melanom'.* and 'melanoma'",
        at_site=(("melanoma", "nevus"), "did you mean 'melanoma'"),
    ),
    "no finding": Kind(
        {"label": ["No Finding", "x", "x|y", "y"] * 12}, TASK, "'No Finding'", {"task": "multi"},
        "the job names the findings",
    ),
    "error values": Kind(
        {"label": [*LABELS[:-2], "#REF!", "#VALUE!"]}, SHEET, ("label", LABELS[:-2]),
        at_site="a missing label is an image without one: test_manifest_keys.py",
    ),
    "placeholder": Kind(
        {"patient": ANONYMOUS}, lambda n: f"{LABELS[n]}/{ANONYMOUS[n]}/{NAMES[n]}", "the patient '(a/)?anonymous'",
        {"layout": "class/patient"}, "a hospital's own splits are kept, so no patient divides them",
    ),
    "contradicting lesions": Kind(
        {"lesion": PEOPLE, "label": list("ab") * 24}, LESION, "12 lesions have two labels", {},
        "the doctor says it: a hospital keeps its manifest as it is",
    ),
    "numbers as labels": Kind(
        {"label": [f"{n / 7:.3f}" for n in range(COUNT)]}, "a folder for each number is made by hand", "no regression", {},
        "the job names the classes",
    ),
}  # fmt: skip


def carried():
    """Each kind with the ways that can carry it."""
    for kind, own in KINDS.items():
        for way in WAYS:
            reason = own.place if way in ("folder", "zip") else own.at_site if way in ("manifest", "evaluate") else None
            if not isinstance(reason, str):
                yield kind, way


def frame_of(kind):
    frame = pd.DataFrame({"image": NAMES, "label": LABELS} | kind.columns)
    return frame.sample(frac=1, random_state=0)


def imported(kind, way, place):
    """The records of a kind by a way, from an import."""
    out, options = place / "out", {"sites": 1, "warn": False, **kind.options}
    if way in ("folder", "zip"):
        names = [kind.place(number) for number in range(COUNT)]
        write_pictures(place / "im", names)
        source = place / "im"
        if way == "zip":
            source = shutil.make_archive(str(place / "packed"), "zip", place / "im")
        sites = gr.Sites.from_folders(source, out, **options)
    else:
        options.pop("layout", None)
        write_pictures(place / "im", NAMES)
        table = {"csv": "t.csv", "--images": "t.csv", "xlsx": "t.xlsx", "parquet": "t.parquet"}.get(way)
        if way == "frame":
            sites = gr.Sites.from_dataframe(frame_of(kind), place / "im", out, **options)
        else:
            writer = {"t.csv": "to_csv", "t.xlsx": "to_excel", "t.parquet": "to_parquet"}[table]
            getattr(frame_of(kind), writer)(place / table, index=False)
            if way == "--images":
                words = ["--set", f"problem.task={kind.options['task']}"] if "task" in kind.options else []
                words += ["--images", place / table, "--root", place / "im", "--sites", 1, "--workspace", out]
                made = run_command("simulate", "fedavg", "--set", "controller.min_sites=1", "--image-size", 32, *words)
                if made.exit_code:
                    raise DataError(made.stderr)
                out = out / "sites"
            else:
                gr.Sites.from_manifest(place / table, place / "im", out, **options)
            sites = gr.Sites.read(out)
    return [record for site in sites.names for record in read_manifest(sites.folder / site / "manifest.csv")]


def at_site(kind, way, place):
    """The kind in a hospital's manifest, which a job or ``evaluate`` reads."""
    write_pictures(place / "im", NAMES)
    frame = pd.DataFrame({"image": NAMES, "label": LABELS, "split": "test", "patient": PEOPLE} | kind.columns)
    frame.to_csv(place / "m.csv", index=False)
    (place / "grandrounds.json").write_text(json.dumps({"datasets": {"x": {"manifest": "m.csv", "root": "im"}}}))
    location, problem = read_site_config(place / "grandrounds.json")["x"], Problem("x", kind.at_site[0], 8)
    if way == "evaluate":
        load_test_images("x", location, problem, problem.classes, place / "cache")
    else:
        load_site_data(location, problem, place / "cache")


@pytest.mark.filterwarnings("ignore:the patients are unknown")
@pytest.mark.parametrize(("kind", "way"), [*carried()])
def test_a_kind_has_one_result_by_each_way(kind, way, tmp_path, monkeypatch):
    monkeypatch.setattr(running, "simulate", lambda *_: sys.exit(0))
    if way == "xlsx":
        pytest.importorskip("openpyxl")
    own = KINDS[kind]
    if way in ("manifest", "evaluate"):
        with pytest.raises(GrandRoundsError, match=own.at_site[1]):
            at_site(own, way, tmp_path)
    elif isinstance(own.right, str):
        with pytest.raises(GrandRoundsError, match=own.right):
            imported(own, way, tmp_path)
    else:
        column, values = own.right
        found = {record.image.rpartition("/")[2]: getattr(record, column) for record in imported(own, way, tmp_path)}
        assert found == dict(zip(NAMES, values, strict=False))


def dicom(number, kind):
    """A slice as bytes with that ImageType."""
    return bytes_of_ct_slice(np.random.default_rng(number).integers(0, 99, (16, 16)), ImageType=kind)


def with_systems_files(root):
    """What drives, systems and editors leave beside the images, some under the names of these."""
    for name in NAMES[:4]:
        for folder in ("@eaDir", "__MACOSX/scans", ".ipynb_checkpoints", "$RECYCLE.BIN"):
            write_pictures(root, [f"{folder}/{name}"])
    (root / "Thumbs.db").write_bytes(b"\xd0\xcf\x11\xe0")
    (root / ".DS_Store").write_bytes(b"\0\0\0\1Bud1")


@pytest.mark.filterwarnings("ignore:the patients are unknown")
@pytest.mark.parametrize("way", ["folder", "zip", "csv", "csv of a zip", "frame"])
def test_what_systems_leave_in_folders_is_no_image_by_each_way(way, tmp_path):
    places = [f"scans/{LABELS[number]}/{NAMES[number]}" for number in range(COUNT)]
    write_pictures(tmp_path / "im", places)
    with_systems_files(tmp_path / "im")
    packed = shutil.make_archive(str(tmp_path / "packed"), "zip", tmp_path / "im") if "zip" in way else tmp_path / "im"
    frame = pd.DataFrame({"image": NAMES, "label": LABELS})
    if way == "frame":
        sites = gr.Sites.from_dataframe(frame, packed, tmp_path / "out", sites=1)
    elif "csv" in way:
        frame.to_csv(tmp_path / "t.csv", index=False)
        sites = gr.Sites.from_manifest(tmp_path / "t.csv", packed, tmp_path / "out", sites=1)
    else:
        sites = gr.Sites.from_folders(packed, tmp_path / "out", sites=1)
        assert sites.description["import"]["left_out"] == {"hidden or system files": 18}
    records = read_manifest(sites.folder / sites.names[0] / "manifest.csv")
    assert {record.image.removeprefix("scans/") for record in records} == {
        place.removeprefix("scans/") for place in places
    }


@pytest.mark.filterwarnings("ignore:the patients are unknown")
@pytest.mark.parametrize("way", ["folder", "zip", "list of patients"])
def test_localizers_are_left_out_with_their_reason_by_each_way(way, tmp_path):
    for number in range(COUNT):
        place = tmp_path / "im" / LABELS[number] / PEOPLE[number] / f"{number}.dcm"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(dicom(number, ["ORIGINAL", "PRIMARY", "LOCALIZER" if number % 4 == 0 else "AXIAL"]))
    source = shutil.make_archive(str(tmp_path / "packed"), "zip", tmp_path / "im") if way == "zip" else tmp_path / "im"
    if way == "list of patients":
        pd.DataFrame({"patient": PEOPLE[::4], "label": LABELS[::4]}).to_csv(tmp_path / "t.csv", index=False)
        sites = gr.Sites.from_manifest(tmp_path / "t.csv", source, tmp_path / "out", sites=1)
    else:
        sites = gr.Sites.from_folders(source, tmp_path / "out", sites=1, layout="class/patient")
    assert sites.description["import"]["left_out"] == {"localizers": COUNT // 4}
    records = read_manifest(sites.folder / sites.names[0] / "manifest.csv")
    numbers = {int(record.image.rpartition("/")[2].removesuffix(".dcm")) for record in records}
    assert numbers == {number for number in range(COUNT) if number % 4}


@pytest.mark.filterwarnings("ignore:the patients are unknown")
@pytest.mark.parametrize("way", ["folder", "csv"])
@pytest.mark.parametrize("kind", ["DERIVED", "ORIGINAL"])
def test_an_image_type_that_tells_the_class_is_said_by_each_way(kind, way, tmp_path):
    names = [f"{'ab'[number % 2]}/{number}.dcm" for number in range(60)]
    for number, name in enumerate(names):
        (tmp_path / "im" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "im" / name).write_bytes(dicom(number, [kind if number % 2 else "ORIGINAL", "PRIMARY"]))
    if way == "folder":
        sites = gr.Sites.from_folders(tmp_path / "im", tmp_path / "out", sites=1)
    else:
        pd.DataFrame({"image": names, "label": [*"ab"] * 30}).to_csv(tmp_path / "t.csv", index=False)
        sites = gr.Sites.from_manifest(tmp_path / "t.csv", tmp_path / "im", tmp_path / "out", sites=1)
    said = [note for note in sites.description["import"].get("notes", []) if "DERIVED/PRIMARY" in note]
    assert len(said) == (kind == "DERIVED")


@pytest.mark.filterwarnings("ignore:the patients are unknown")
@pytest.mark.parametrize("way", ["folder", "zip", "csv", "frame"])
def test_a_picture_in_two_splits_under_two_names_is_said_by_each_way(way, tmp_path):
    places = [f"{SPLITS[number]}/{LABELS[number]}/{NAMES[number]}" for number in range(COUNT)]
    write_pictures(tmp_path / "im", places)
    copy = f"test/{LABELS[0]}/again.png"
    (tmp_path / "im" / copy).parent.mkdir(exist_ok=True)
    shutil.copy(tmp_path / "im" / places[0], tmp_path / "im" / copy)
    packed = shutil.make_archive(str(tmp_path / "packed"), "zip", tmp_path / "im") if way == "zip" else tmp_path / "im"
    frame = pd.DataFrame({"image": [*places, copy], "label": [*LABELS, LABELS[0]], "split": [*SPLITS, "test"]})
    if way == "frame":
        sites = gr.Sites.from_dataframe(frame, packed, tmp_path / "out", sites=1)
    elif way == "csv":
        frame.to_csv(tmp_path / "t.csv", index=False)
        sites = gr.Sites.from_manifest(tmp_path / "t.csv", packed, tmp_path / "out", sites=1)
    else:
        sites = gr.Sites.from_folders(packed, tmp_path / "out", sites=1)
    said = run_command("doctor", "--sites-dir", sites.folder)
    assert re.search(r"train.*test|test.*train", said.output), said.output
    assert "again.png" in said.output


NOISE = np.random.default_rng(0).integers(0, 255, (16, 16, 3), np.uint8)
GREY = np.random.default_rng(1).integers(0, 255, (16, 16), np.uint8)


def saved(image, **options):
    stream = io.BytesIO()
    image.save(stream, "PNG", **options)
    return stream.getvalue()


def hidden_colours():
    """A cut-out and the same with other colours below what is transparent."""
    alpha = np.where(np.arange(256).reshape(16, 16) % 3 == 0, 0, 255).astype(np.uint8)
    other = np.where(alpha[..., None] == 0, 255 - NOISE, NOISE)
    return [saved(Image.fromarray(np.dstack([pixels, alpha]))) for pixels in (NOISE, other)]


def turned():
    exif = Image.Exif()
    exif[0x0112] = 6
    return [saved(Image.fromarray(NOISE).rotate(90, expand=True), exif=exif), saved(Image.fromarray(NOISE))]


PIXELS = {
    "orientation": turned,
    "colour profile": lambda: [
        saved(Image.fromarray(NOISE), icc_profile=ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()),
        saved(Image.fromarray(NOISE)),
    ],
    "alpha": hidden_colours,
    "16 bits": lambda: [saved(Image.fromarray(GREY.astype(np.uint16) * 257)), saved(Image.fromarray(GREY))],
}
"""Two files that show the same picture."""


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A finished run with an untrained model."""
    results = tmp_path_factory.mktemp("run") / "results"
    results.mkdir()
    problem = {"dataset": "x", "classes": ["a", "b"], "image_size": 16}
    content = summary(configuration={"method": "FedAvgController", "problem": problem})
    (results / "summary.json").write_text(json.dumps(content))
    torch.save(build_model(ModelSpec("compact", classes=2), seed=1).state_dict(), results / "selected.pt")
    return gr.Run(results.parent)


@pytest.mark.parametrize("way", ["manifest", "evaluate", "zip", "predict"])
@pytest.mark.parametrize("kind", PIXELS)
def test_two_files_of_one_picture_have_the_same_pixels_by_each_way(kind, way, tmp_path, trained):
    files = PIXELS[kind]()
    (tmp_path / "im").mkdir()
    for number, data in enumerate(files):
        (tmp_path / "im" / f"{number}.png").write_bytes(data)
    if way == "predict":
        values = (
            trained.predict([tmp_path / "im" / f"{number}.png" for number in (0, 1)]).filter(like="prob").to_numpy()
        )
        np.testing.assert_array_equal(values[0], values[1])
        return
    root = tmp_path / "im"
    if way == "zip":
        root = tmp_path / "im.zip"
        with zipfile.ZipFile(root, "w") as archive:
            for number in (0, 1):
                archive.write(tmp_path / "im" / f"{number}.png", f"{number}.png")
    frame = pd.DataFrame({"image": ["0.png", "1.png"], "label": ["a", "b"], "split": "test", "patient": ["p", "q"]})
    frame.to_csv(tmp_path / "m.csv", index=False)
    entry = {"manifest": "m.csv", "root": root.name}
    (tmp_path / "grandrounds.json").write_text(json.dumps({"datasets": {"x": entry}}))
    location, problem = read_site_config(tmp_path / "grandrounds.json")["x"], Problem("x", ("a", "b"), 16)
    if way == "evaluate":
        images = load_test_images("x", location, problem, problem.classes, tmp_path / "cache").images
    else:
        images = load_site_data(location, problem, tmp_path / "cache").images
    np.testing.assert_array_equal(images[0], images[1])
