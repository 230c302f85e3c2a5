"""What the pages presume: images, a copy of HAM10000 with drawn pictures, finished runs; and jobs that take a second."""

import csv
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from grandrounds.data.datasets.published import HAM10000_CLASSES, HAM10000_MALIGNANCY, PBC_CLASSES
from grandrounds.deployment import presets
from grandrounds.deployment.jobs import NO_VALUES, Job, Values
from grandrounds.models.backbones.libraries import NETWORK_LIBRARIES, import_torchvision
from grandrounds.option_keys import by_key

DEVICES = ("rosendahl", "vidir_modern", "vidir_molemax", "vienna_dias")
SMALL = {
    "controller.rounds": 1,
    "controller.public_batch": 4,
    "controller.distillation_steps": 1,
    "executor.steps": 1,
    "executor.iterations": 1,
    "executor.batch_size": 2,
    "executor.local_epochs": 0.1,
    "executor.pretrain_epochs": 0.1,
}
"""Options of a run that takes a second; a job that lacks one goes without it."""
PRESET_IMAGE_SIZE = {("problem", "image_size"): 64}
"""In place of a preset's; a page may state another one."""
with_preset = presets.with_preset


def small(job: Job, preset: str | None, values: Values = NO_VALUES) -> Job:
    """Set the options of a job, and then those of a small one; in place of ``with_preset``."""
    before = PRESET_IMAGE_SIZE if preset else NO_VALUES
    after = by_key({name: value for name, value in SMALL.items() if _has(job, name)})
    if _has(job, "controller.public"):
        after["controller", "rounds"] = 2  # the first round only publishes
    if _has(job, "controller.penalties"):
        del after["controller", "rounds"]  # ridge has a round for each message
    return with_preset(job, preset, {**before, **values, **after})


def _has(job: Job, name: str) -> bool:
    part, _, option = name.partition(".")
    return option in job.options(part)


def own_images(folder: Path) -> None:
    """Folders ``images`` and ``FOLDER``: two sites, two classes, twelve images of each, two of every patient; a table."""
    rows = []
    for site in ("Leeds", "York"):
        for label in ("nevus", "melanoma"):
            for number in range(12):
                patient = f"P{number // 2:03d}"
                name = f"{site}/{label}/{patient}_{number}.png"
                _draw(folder / "images" / name)
                split = ("train", "train", "val", "test")[number // 2 % 4]
                rows.append({"image": name, "label": label, "patient": f"{site}-{label}-{patient}", "split": split})
    shutil.copytree(folder / "images", folder / "FOLDER")
    _table(folder / "all.csv", rows)


def readme(folder: Path) -> None:
    """Images of one's own, two cell types in the folders of PBC, and HAM10000."""
    own_images(folder)
    for number in range(48):
        _draw(folder / "PBC_dataset_normal_DIB" / ("basophil", "platelet")[number % 2] / f"{number}.jpg")
    ham10000(folder)


def site_of_hospital(folder: Path) -> None:
    """The manifest of a site beside its ``grandrounds.json``; York spells a class in another way."""
    own_images(folder)
    (folder / "FOLDER" / "York" / "naevus").mkdir()
    for number in range(6):
        (folder / "FOLDER" / "York" / "nevus" / f"P{number // 2:03d}_{number}.png").rename(
            folder / "FOLDER" / "York" / "naevus" / f"P{number // 2:03d}_{number}.png"
        )
    (folder / "local").mkdir()
    shutil.copy(folder / "all.csv", folder / "local" / "skin.csv")


def named_images(folder: Path) -> None:
    """Images whose names have everything, for the example of an own data set."""
    for number in range(48):
        _draw(folder / "IMAGES" / f"{'AB'[number % 2]}-{('nevus', 'melanoma')[number // 2 % 2]}-P{number}-1.png")


def ham10000(folder: Path, lesions: int = 280) -> None:
    """The files of HAM10000 in ``DIR``, with noise for pictures: every class at every device."""
    rows = []
    for number in range(lesions):
        device, label = DEVICES[number % 4], HAM10000_CLASSES[number // 4 % 7]
        image = f"ISIC_{number:07d}"
        _draw(folder / "DIR" / "HAM10000_images_part_1" / f"{image}.jpg")
        about = {"dx_type": "histo", "age": "50.0", "sex": ("female", "male")[number % 2], "localization": "back"}
        rows.append({"lesion_id": f"HAM_{number:07d}", "image_id": image, "dx": label, **about, "dataset": device})
    _table(folder / "DIR" / "HAM10000_metadata.csv", rows)


def clinic(folder: Path) -> None:
    """Images of another place in ``IMAGES``, a table of them, and one with groups of classes for labels; and the others."""
    readme(folder)
    rows = [
        {"image": f"{number}.png", "label": HAM10000_CLASSES[number % 7], "patient": number} for number in range(140)
    ]
    for row in rows:
        _draw(folder / "IMAGES" / str(row["image"]))
    _table(folder / "clinic.csv", rows)
    _table(folder / "groups.csv", [row | {"label": HAM10000_MALIGNANCY[str(row["label"])]} for row in rows])


def findings(folder: Path) -> None:
    """Images with two findings, and a table with a column for each."""
    rows = [{"image": f"{number}.png", "effusion": number % 2, "mass": number // 2 % 2} for number in range(80)]
    for row in rows:
        _draw(folder / str(row["image"]))
        _draw(folder / "IMAGES" / str(row["image"]))
    _table(folder / "chest.csv", rows)


def clinicians_sheet(folder: Path) -> None:
    """Photographs of two hospitals, and a list of them as a German Excel saves it."""
    lines = ["Bild;Diagnose;Fall;Klinik;Alter"]
    for number in range(96):
        site, label = ("Köln", "Jena")[number % 2], ("Nävus", "Melanom")[number // 2 % 2]
        pixels = np.random.default_rng(number).integers(0, 256, (48, 64, 3), dtype=np.uint8)
        path = folder / "Fotos" / site / f"IMG_{number:04d}.JPG"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path, "JPEG")
        lines.append(
            f"D:\\Fotos\\{site}\\{path.name};{label};{number // 4 * 2 + number % 2:03d};{site};{40 + number % 40},5"
        )
    (folder / "Fallliste.csv").write_bytes("\r\n".join(lines).encode("cp1252"))


def blood_cells(folder: Path) -> None:
    """The folders of PBC in ``DIR``, with noise for pictures."""
    for label in PBC_CLASSES:
        for number in range(40):
            _draw(folder / "DIR" / "PBC_dataset_normal_DIB" / label / f"{label}_{number}.jpg")


def own_weights(folder: Path) -> None:
    """Weights of a ResNet-18 in ``retina.pt``, and a MONAI bundle of a DenseNet-121."""
    torch.save(import_torchvision().models.resnet18().state_dict(), folder / "retina.pt")
    for name in ("configs", "models"):
        (folder / "BUNDLE" / name).mkdir(parents=True)
    definition = {"_target_": "DenseNet121", "spatial_dims": 2, "in_channels": 3, "out_channels": 2}
    (folder / "BUNDLE" / "configs" / "inference.json").write_text(json.dumps({"network_def": definition}))
    scaled = {"network_data_format": {"inputs": {"image": {"value_range": [0, 1]}}}}
    (folder / "BUNDLE" / "configs" / "metadata.json").write_text(json.dumps(scaled))
    network = NETWORK_LIBRARIES["monai"].build("DenseNet121", 2, 3)
    torch.save(network.state_dict(), folder / "BUNDLE" / "models" / "model.pt")


def _draw(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(list("/".join(path.parts[-4:]).encode()))
    Image.fromarray(generator.integers(0, 256, (32, 32, 3), dtype=np.uint8)).save(path)


def _table(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    with path.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
