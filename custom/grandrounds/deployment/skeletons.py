"""Skeletons of plug-ins: a package with one network, data set, method or view, and a test that runs it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from string import Template
from typing import Literal

from grandrounds import __version__
from grandrounds.errors import ConfigurationError
from grandrounds.plugins import PLUGIN_NAME

Kind = Literal["method", "backbone", "dataset", "view"]

PYPROJECT = """[build-system]
requires = ["hatchling>=1.25"]
build-backend = "hatchling.build"

[project]
name = "grandrounds-$project"
version = "0.1.0"
description = "$Class, a $kind for Grand Rounds"
requires-python = ">=3.11"
dependencies = ["grandrounds>=$version"]

[project.entry-points.grandrounds]
$name = "$name"

[tool.hatch.build.targets.wheel]
include = ["$name.py"]
"""
README = """# $name

A $kind for Grand Rounds. Test it, then install it at the server and at every site:

```
pytest
pip install .
$use
```
"""
BACKBONE = '''"""$Class, a backbone for Grand Rounds."""

from torch import nn

import grandrounds as gr


@gr.register_backbone("$name", stride=4)
def $name(classes: int, channels: int) -> nn.Module:
    """Images (batch, channels, height, width) to logits (batch, classes); the last linear layer is the head."""
    return nn.Sequential(
        nn.Conv2d(channels, 16, 3, stride=2, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, classes),
    )
'''
TEST_BACKBONE = '''"""The network is one, and trains for a round."""

from $name import $name

import grandrounds as gr


def test_it_is_a_network():
    gr.testing.check_backbone($name, stride=4)


def test_a_federation_trains_it(tmp_path):
    options = {"executor.steps": 1, "problem.backbone": "$name"}
    run = gr.run("fedavg", 2, rounds=1, options=options, workspace=tmp_path, progress=False)
    assert run.scores().loc["pooled", "images"] == 120
'''
DATASET = '''"""$Class, a data set for Grand Rounds."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import grandrounds as gr


@gr.register_dataset("$name")
def $name(root: Path, options: gr.ReaderOptions) -> Iterator[Mapping[str, str]]:
    """Images named CLASS_PATIENT_NUMBER.png in one folder."""
    for path in sorted(root.glob("*.png")):
        label, patient, _ = path.stem.split("_")
        yield {"image": path.name, "label": label, "patient": patient}
'''
TEST_DATASET = '''"""The data set is divided between sites, and patients stay whole."""

import numpy as np
from $name import $name
from PIL import Image

import grandrounds as gr


def test_it_is_divided_between_sites(tmp_path):
    images = tmp_path / "images"
    images.mkdir()
    generator = np.random.default_rng(1)
    for number in range(48):
        pixels = generator.integers(0, 256, (16, 16, 3), dtype=np.uint8)
        label = ("benign", "malignant")[number % 2]
        Image.fromarray(pixels).save(images / f"{label}_P{number // 2}_{number}.png")
    gr.testing.check_dataset($name, images)
    sites = gr.partition("$name", images, tmp_path / "sites", sites=2)
    counts = sites.counts()
    assert counts[["training", "validation", "test"]].to_numpy().sum() == 48
    assert list(counts.columns[-2:]) == ["benign", "malignant"]
'''
METHOD_MODULE = '''"""$Class, a method for Grand Rounds."""

import copy
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor
from torch.nn import functional as F

import grandrounds as gr
from grandrounds.data.batches import index_batches
from grandrounds.evaluation.history import RunHistory, training_curves
from grandrounds.federation.site.context import SiteContext
from grandrounds.federation.site.training import Meter, OptimizerStep, train_steps
from grandrounds.methods.supervised.controller import FedAvgController
from grandrounds.methods.supervised.executor import SupervisedExecutor
from grandrounds.methods.supervised.training import rows_to_learn
from grandrounds.options import Options
from grandrounds.option_annotations import Min
from grandrounds.plotting import Drawing
from grandrounds.rounds_figure import rounds_figure
from grandrounds.protocol.messages import Payload, Result


@dataclass(frozen=True)
class ${Class}Options(Options):
    """How sites stay near the model that they were sent."""

    distance_weight: Annotated[float, "weight of the distance between old and new predictions", Min(0)] = 0.1


def distance(old: Tensor, new: Tensor) -> Tensor:
    """Kullback-Leibler divergence of logits, shape (batch, classes), in nats; the old ones are the target."""
    return F.kl_div(new.log_softmax(1), old.log_softmax(1), log_target=True, reduction="batchmean")


def figures(history: RunHistory) -> list[Drawing]:
    """The distance at each site over the rounds; none for runs of other methods."""
    curves = training_curves(history.events, history.sites, "$name.distance")
    picture = rounds_figure(curves, history.sites, "distance, nats", "$Class")
    return [Drawing("$name", picture, "$Class", "Distance between old and new predictions.")] if picture else []


@gr.register_method("$name", controller=FedAvgController, summary="one line about $Class", figures=figures)
class ${Class}Executor(SupervisedExecutor):
    """Supervised training that stays near the model that was sent."""

    own_options: ${Class}Options

    def train(self, payload: Payload, context: SiteContext) -> Result:
        """Train for one round."""
        network = self.starting_model(payload, context)
        sent = copy.deepcopy(network).eval()
        optimizer = self.make_optimizer(network, self.training.learning_rate, self.training.algorithm)
        options, meter, key = self.training, Meter(), context.key("views")
        rows = rows_to_learn(context, options)
        batches = index_batches(rows, options.batch_size, options.steps, context.generator("batches"))

        def loss(step: int) -> Tensor:
            batch = next(batches)
            images = context.views(batch, options.view, key, step)
            labels = context.labels(batch)
            with context.autocast():
                with torch.no_grad():
                    old = sent(images)
                logits = network(images)
                moved = distance(old, logits)
                meter.add("distance", moved)
                return context.problem.kind.loss(logits, labels) + self.own_options.distance_weight * moved

        train_steps(context, options.steps, loss, OptimizerStep(network, optimizer), meter)
        sums = {"loss": meter.total("loss"), "$name.distance": meter.total("distance")}
        metrics = {name: total / options.steps for name, total in sums.items()}
        return self.finish(payload, network, optimizer, {**metrics, "samples": float(len(rows))})
'''
TEST_METHOD = '''"""The mathematics against numbers that were computed by hand, and a run."""

import torch
from $name import distance

import grandrounds as gr


def test_the_distance_is_the_divergence():
    even, sure = torch.zeros(1, 2), torch.tensor([[3.0, 1.0]]).log()  # probabilities 1/2, 1/2 and 3/4, 1/4
    torch.testing.assert_close(distance(even, sure), torch.tensor(0.143841))  # ln(2/3) / 2 + ln(2) / 2
    assert distance(sure, sure) == 0


def test_a_federation_runs_it(tmp_path):
    run = gr.run("$name", 2, rounds=2, options={"executor.steps": 1}, workspace=tmp_path, progress=False)
    assert "$name.distance" in run.history()
    assert "$name" in run.figures()
'''
VIEW = '''"""$Class, a view for Grand Rounds."""

import numpy as np
from numpy.typing import NDArray

import grandrounds as gr


@gr.register_view("$name", stream=100)  # this number for ever, and for no other view
class $Class:
    """Turns an image upside down with probability 1/2."""

    def draw(self, image: NDArray[np.uint8], generator: np.random.Generator) -> NDArray[np.uint8]:
        """All randomness comes from the generator; the image stays as it is."""
        return image[::-1].copy() if generator.random() < 0.5 else image
'''
TEST_VIEW = '''"""The view keeps what every view has to keep, and is what it should be."""

import numpy as np
from $name import $Class

import grandrounds as gr


def test_it_is_a_view():
    gr.testing.check_view($Class)


def test_both_ways_occur():
    image = np.arange(12, dtype=np.uint8).reshape(4, 3, 1)
    found = {$Class().draw(image, np.random.default_rng(seed)).tobytes() for seed in range(20)}
    assert found == {image.tobytes(), image[::-1].tobytes()}
'''
SOURCES: Mapping[Kind, tuple[str, str, str]] = {
    "backbone": (BACKBONE, TEST_BACKBONE, "grandrounds simulate fedavg --backbone $name"),
    "dataset": (DATASET, TEST_DATASET, "grandrounds partition $name --root DIR --out runs/$name"),
    "method": (METHOD_MODULE, TEST_METHOD, "grandrounds simulate $name"),
    "view": (VIEW, TEST_VIEW, "grandrounds simulate fedavg --set executor.weak_view=$name"),
}
"""Module, test and a command of each kind of plug-in."""


def write_skeleton(kind: Kind, name: str, folder: Path) -> list[Path]:
    """Write a package of one module that works, to be changed.

    Args:
        kind: what it adds.
        name: of the module and of what it registers.
        folder: is made, and must not exist.

    Returns:
        The files that were written.

    Raises:
        ConfigurationError: if the name does not fit, or the folder exists.
    """
    if not PLUGIN_NAME.fullmatch(name):
        raise ConfigurationError(f"the name must be lower-case letters, digits and _, at most 40; got {name!r}")
    if folder.exists():
        raise ConfigurationError(f"{folder} exists; choose another folder")
    module, test, use = SOURCES[kind]
    words = {
        "name": name,
        "project": name.replace("_", "-"),
        "Class": "".join(part.capitalize() for part in name.split("_")),
        "kind": "data set" if kind == "dataset" else kind,
        "version": __version__,
    }
    words["use"] = Template(use).substitute(words)
    contents = {f"{name}.py": module, f"test_{name}.py": test, "pyproject.toml": PYPROJECT, "README.md": README}
    folder.mkdir(parents=True)
    for file, text in contents.items():
        (folder / file).write_text(Template(text).substitute(words), encoding="utf-8")
    return [folder / file for file in contents]
