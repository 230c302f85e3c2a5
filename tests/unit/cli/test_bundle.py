"""The bundle of an export, run by MONAI's own commands where this package cannot be imported."""

import csv
import json
import re
import shlex
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pydicom
import pytest
import torch
from PIL import Image
from pydicom.uid import ExplicitVRLittleEndian
from sklearn.metrics import roc_auc_score

import grandrounds as gr
from tests.warm import WarmPython

pytestmark = pytest.mark.skipif(
    not (find_spec("fire") and find_spec("ignite")), reason="MONAI's commands need fire, its evaluator pytorch-ignite"
)

WITHOUT_PACKAGE = """
import sys

class Absent:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] == "grandrounds":
            raise ModuleNotFoundError("the package is absent")

sys.meta_path.insert(0, Absent)
"""
TENSOR = {
    "type": "object",
    "required": [
        "type",
        "format",
        "num_channels",
        "spatial_shape",
        "dtype",
        "value_range",
        "is_patch_data",
        "channel_def",
    ],
    "properties": {"num_channels": {"const": 3}},
}
FORMATS = {name: {"type": "object", "additionalProperties": TENSOR} for name in ("inputs", "outputs")}
SCHEMA = {
    "type": "object",
    "required": ["version", "monai_version", "pytorch_version", "numpy_version", "required_packages_version", "task"],
    "properties": {"network_data_format": {"required": [*FORMATS], "properties": FORMATS}},
}
"""What MONAI's specification of bundles requires; its own file lies in the net."""
CLASSES = ("akiec", "bcc", "$(touch ran)")


def write_images(folder: Path) -> None:
    """A PNG, a JPEG that EXIF turns, a 12-bit DICOM file with a window, and a few more."""
    folder.mkdir()
    generator = np.random.default_rng(1)
    for number in range(4):
        Image.fromarray(generator.integers(0, 256, (50, 40, 3), np.uint8)).save(folder / f"{number}.png")
    smooth = Image.fromarray(generator.integers(0, 256, (4, 4, 3), np.uint8)).resize((90, 60))
    exif = Image.Exif()
    exif[0x0112] = 6
    smooth.save(folder / "turned.jpg", exif=exif)
    data = pydicom.Dataset()
    data.file_meta = pydicom.dataset.FileMetaDataset()
    data.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    data.SOPClassUID = data.SOPInstanceUID = "1.2.3"
    data.Rows, data.Columns, data.SamplesPerPixel, data.PhotometricInterpretation = 48, 64, 1, "MONOCHROME1"
    data.BitsAllocated, data.BitsStored, data.HighBit, data.PixelRepresentation = 16, 12, 11, 0
    data.WindowCenter, data.WindowWidth = "2000", "1500"
    data.PixelData = generator.integers(0, 4096, (48, 64), np.uint16).tobytes()
    data.save_as(folder / "slice.dcm", enforce_file_format=True)


@pytest.fixture(scope="module")
def commands(tmp_path_factory):
    """A run whose logits are averaged over two views, its bundle, images, and MONAI's commands as the README has them."""
    place = tmp_path_factory.mktemp("bundle")
    generator = np.random.default_rng(0)
    for name in CLASSES:
        (place / "training" / name).mkdir(parents=True)
        for number in range(10):
            pixels = generator.integers(0, 256, (32, 32, 3), np.uint8)
            Image.fromarray(pixels).save(place / "training" / name / f"{number}.png")
    run = gr.run(
        "fedavg",
        gr.Sites.from_folders(place / "training", place / "sites", warn=False),
        rounds=1,
        image_size=32,
        options={
            "executor.steps": 2,
            "executor.batch_size": 4,
            "problem.test_view": "half_turn",
            "problem.backbone": "compact",
        },
        workspace=place / "run",
    )
    run.export(place / "model")
    write_images(place / "images")
    bundle = place / "model" / "bundle"
    (place / "absent").mkdir()
    (place / "absent" / "sitecustomize.py").write_text(WITHOUT_PACKAGE)
    environment = {"PYTHONPATH": str(place / "absent"), "OMP_NUM_THREADS": "1"}

    def call(part: str, done: bool = True) -> str:
        """The command of the README with these words, with this machine's images."""
        (line,) = re.findall(rf"^    python -m monai\.bundle (.*{part} .*|{part} .*)$", readme, re.M)
        words = shlex.split(line.replace("IMAGES", str(place / "images")))
        ended = python.run("monai.bundle", words, bundle)
        assert (ended.returncode == 0) == done, ended.stdout
        return ended.stdout

    readme = (bundle / "docs" / "README.md").read_text()
    with WarmPython(["monai.bundle"], environment, place) as python:
        (bundle / "package.py").write_text("import grandrounds\n")
        assert "the package is absent" in python.run("package", [], bundle).stdout
        (bundle / "package.py").unlink()
        yield run, bundle, place / "images", call


def test_the_bundle_predicts_what_the_run_predicts(commands):
    run, bundle, images, call = commands
    expected = run.predict(images)
    call("run --config_file")
    with (bundle / "eval" / "predictions.csv").open(newline="") as stream:
        found = {Path(name).name: [float(value) for value in values] for name, *values in csv.reader(stream)}
    assert found.keys() == {Path(name).name for name in expected.index} == {path.name for path in images.iterdir()}
    for name, values in expected[[*run.classes]].iterrows():
        np.testing.assert_allclose(found[Path(name).name], values.to_numpy(float), atol=1e-5, rtol=0)
    assert not (bundle / "ran").exists()


def test_the_bundle_evaluates_labelled_images(commands):
    run, bundle, images, call = commands
    expected = run.predict(images)
    labels = np.eye(3, dtype=int)[[number % 3 for number in range(len(expected))]]
    with (bundle / "labels.csv").open("w", newline="") as stream:
        table = csv.writer(stream)
        table.writerow(["image", *run.classes])
        table.writerows([Path(name).name, *row] for name, row in zip(expected.index, labels, strict=True))
    call("run evaluate")
    name, value = (bundle / "eval" / "metrics.csv").read_text().strip().split(",")
    probabilities = expected[[*run.classes]].to_numpy(float)
    assert (name, float(value)) == (
        "auroc",
        pytest.approx(roc_auc_score(labels, probabilities, average="macro"), abs=1e-4),
    )


def test_monai_accepts_the_metadata_and_exports_the_network(commands):
    _, bundle, _, call = commands
    (bundle / "eval").mkdir(exist_ok=True)
    (bundle / "eval" / "schema.json").write_text(json.dumps(SCHEMA))
    assert "metadata is verified with no error" in call("verify_metadata")
    (bundle / "eval" / "schema.json").write_text(json.dumps({**SCHEMA, "required": ["absent"]}))
    call("verify_metadata", done=False)
    call("ckpt_export")
    images = torch.rand(2, 3, 32, 32)
    exported, own = (torch.jit.load(bundle / "models" / name)(images) for name in ("exported.ts", "model.ts"))
    assert torch.equal(exported, own)
