"""What the frozen features of EfficientNet-Lite0 are worth: logistic regression on HAM10000 with fewer and fewer labels.

Images of 200 x 150 pixels are cropped to their central square. A quarter of the lesions is for testing; the others are
labelled in full or in part. About ten minutes of CPU time.
"""

from __future__ import annotations

import argparse
import csv
import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GroupShuffleSplit

from benchmarks.experiment import DATA
from benchmarks.measure import run
from benchmarks.tables import markdown_table
from grandrounds.data.images.tensors import to_tensor
from grandrounds.evaluation.metrics import site_metrics
from grandrounds.models.partial import front_of
from grandrounds.models.registry import build_model
from grandrounds.protocol.problem import ModelSpec
from grandrounds.protocol.tasks import SINGLE

SIDE, BATCH, SEED = 150, 32, 1
SHARES = (1.0, 0.25, 0.1, 0.05)
KINDS: dict[str, dict[str, Any]] = {"plain": {"C": 10.0}, "class-balanced": {"C": 1.0, "class_weight": "balanced"}}
SCORES = {
    "auc_macro": "macro AUC",
    "balanced_accuracy": "balanced accuracy",
    "f1_weighted": "weighted F1",
    "accuracy": "accuracy",
}


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """Scores by share of labels and kind of regression, and the majority class beside them."""
    folder = DATA / "ham10000"
    with (folder / "ham10000_manifest.csv").open(newline="") as stream:
        records = list(csv.DictReader(stream))[:: 50 if options.quick else 1]
    features = embedded(folder / "ham10000_200x150.zip", [record["image"] for record in records])
    names, labels = np.unique([record["label"] for record in records], return_inverse=True)
    lesions = np.array([record["lesion"] for record in records])
    train, test = next(GroupShuffleSplit(1, test_size=0.25, random_state=SEED).split(features, labels, lesions))
    always = np.zeros((len(test), len(names)))
    always[:, np.bincount(labels[train]).argmax()] = 1
    cases = [
        {"share": 1.0, "images": len(train), "kind": "majority class", **site_metrics(SINGLE, labels[test], always)}
    ]
    for share in (0.5,) if options.quick else SHARES:
        part = train
        if share < 1:
            kept, _ = next(
                GroupShuffleSplit(1, train_size=share, random_state=SEED).split(train, groups=lesions[train])
            )
            part = train[kept]
        for kind, chosen in KINDS.items():
            model = LogisticRegression(max_iter=3000, **chosen).fit(features[part], labels[part])
            probabilities = np.zeros((len(test), len(names)))
            probabilities[:, model.classes_] = model.predict_proba(features[test])
            found = site_metrics(SINGLE, labels[test], probabilities)
            cases.append({"share": share, "images": len(part), "kind": kind, **found})
    return {"classes": names.tolist(), "test_images": len(test), "seed": SEED, "side": SIDE, "cases": cases}


def embedded(archive: Path, images: list[str]) -> np.ndarray:
    """Pooled features of images, shape ``(images, 1280)``, of unit length."""
    spec = ModelSpec("efficientnet_lite0", classes=7, weights="imagenet", trainable="head")
    front = front_of(build_model(spec, seed=0))
    assert front is not None
    found = []
    with zipfile.ZipFile(archive) as files:
        for start in range(0, len(images), BATCH):
            batch = np.stack([central_square(files.read(name)) for name in images[start : start + BATCH]])
            found.append(front(to_tensor(batch))[:, :, 0, 0].numpy())
    features = np.concatenate(found)
    return features / np.linalg.norm(features, axis=1, keepdims=True)


def central_square(content: bytes) -> np.ndarray:
    """The central square of an image, uint8."""
    image = Image.open(io.BytesIO(content)).convert("RGB")
    left, top = (image.width - SIDE) // 2, (image.height - SIDE) // 2
    return np.asarray(image.crop((left, top, left + SIDE, top + SIDE)))


def tables(result: dict[str, Any]) -> str:
    """A row for each share of labels and kind of regression."""
    rows = [
        [f"{100 * case['share']:g} %", case["images"], case["kind"], *(case[name] for name in SCORES)]
        for case in result["cases"]
    ]
    return markdown_table(["labelled", "images", "regression", *SCORES.values()], rows, 3)


if __name__ == "__main__":
    run(__file__, measured, tables)
