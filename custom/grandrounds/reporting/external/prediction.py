"""Reading and predicting the test images of a place, after they were compared with the images of the run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from grandrounds.data.batches import eval_batches
from grandrounds.data.images.decoding import image_digests
from grandrounds.data.manifest import manifest_digest, read_manifest
from grandrounds.data.site import DatasetLocation
from grandrounds.errors import ConfigurationError
from grandrounds.evaluation.external import (
    ImagePredictions,
    LabelledImages,
    load_test_images,
    predict_images,
)
from grandrounds.evaluation.prediction import tensors_of
from grandrounds.federation.site.context import choose_device
from grandrounds.federation.site.store import DIGESTS
from grandrounds.files import file_digest
from grandrounds.models.closed_form.sums import clipped
from grandrounds.models.depths import depth_features
from grandrounds.models.inference.forward import BATCH, Forward
from grandrounds.models.split import split_last_layer
from grandrounds.models.trained import trained_models
from grandrounds.reporting.external.appearance import Appearance, appearance_of
from grandrounds.reporting.external.preparation import overlap_with
from grandrounds.reporting.external.result import Overlap
from grandrounds.reporting.external.sums import PortableSums
from grandrounds.reporting.external.trained import TrainedModel
from grandrounds.reporting.format import format_list
from grandrounds.reporting.predictions import decoded_images
from grandrounds.reporting.run import ReadRun

Step = Callable[[str], None]
LINEAR_ON = 64
"""Images on which a last layer is checked."""


@dataclass(frozen=True, eq=False)
class PlaceImages:
    """The test images of a place, by site, what they have in common with the run, and how they look beside its images."""

    sites: Mapping[str, LabelledImages]
    overlap: Overlap
    appearance: Appearance

    @property
    def remarks(self) -> list[str]:
        """What must be known before a score is read, the most serious first."""
        message, unknown = self.overlap.message, self.overlap.not_compared
        warning = [f"WARNING: {message}: this is no external validation"] if message else []
        if unknown:
            warning.append(
                f"whether images are among those of {format_list(unknown)} is not known: the run's results have no "
                f"{DIGESTS} of these sites"
            )
        unreadable = [
            f"{name}: {test.unreadable} test images cannot be read and are left out"
            for name, test in self.sites.items()
            if test.unreadable
        ]
        return [*warning, *unreadable, self.appearance.finding]


@dataclass(frozen=True, eq=False)
class Place:
    """A place, and what was predicted there.

    Attributes:
        name: how people call it.
        sites: predictions by name of the sites that it consists of.
        columns: further columns of the manifests, the value of each image in the order of the sites.
        digests: SHA-256 of the model's file, or of each model of an ensemble, and of the manifests.
        unreadable: test images that could not be read.
        overlap: with the run's images.
        appearance: of the images, beside that of the run's.
    """

    name: str
    sites: Mapping[str, ImagePredictions]
    columns: Mapping[str, Sequence[str]]
    digests: Mapping[str, str]
    unreadable: int
    overlap: Overlap
    appearance: Appearance


def read_images(
    trained: TrainedModel,
    run: ReadRun,
    locations: Mapping[str, DatasetLocation],
    vocabulary: Sequence[str],
    allowed: bool,
    step: Step,
) -> PlaceImages:
    """Decode the test images of all sites of a place; unless ``allowed``, none may be of the run.

    Raises:
        ConfigurationError: if a site took part in the run, which is checked before an image is read, or an image did.
        DataError: if the images are not as they must be.
    """
    folder, problem = trained.folder, trained.problem
    named = overlap_with(folder, run.log.sites, locations, {})
    if named.sites and not allowed:
        raise ConfigurationError(
            f"{named.message}, so this is no external validation; evaluate another place, rename a site that is another "
            "hospital (grandrounds import --scheme external makes one site of all images), or add --allow-overlap"
        )
    images = {}
    with decoded_images() as cache:
        for name, location in locations.items():
            step(f"reading the images of {name}")
            images[name] = load_test_images(name, location, problem, vocabulary, cache)
    step("comparing the images with those of the run")
    digests = {name: image_digests(test.images) for name, test in images.items()}
    overlap = overlap_with(folder, run.log.sites, locations, digests)
    if overlap.shared_images and not allowed:
        raise ConfigurationError(
            f"{overlap.message}, so this is no external validation; leave these images out, or add --allow-overlap"
        )
    appearance = appearance_of(trained.image_moments, ((image.images, image.shapes) for image in images.values()))
    return PlaceImages(images, overlap, appearance)


def predict_place(trained: TrainedModel, images: PlaceImages, step: Step) -> dict[str, ImagePredictions]:
    """Predictions of the run's model, or the mean of those of its sites' models, for each site of a place.

    Raises:
        ConfigurationError: if the model's file does not fit, or a prediction is not finite.
    """
    device = choose_device("auto")
    predictions: dict[str, list[ImagePredictions]] = {name: [] for name in images.sites}
    for network in trained.networks:
        model_of = trained_models(*network)
        for name, test in images.sites.items():
            step(f"predicting {len(test.names)} images of {name}")
            model = model_of((test.images, np.arange(len(test.names)))).to(device)
            predictions[name].append(
                predict_images(model, test, device, trained.problem.kind, trained.problem.test_view)
            )
    return {
        name: replace(each[0], probabilities=np.mean([one.probabilities for one in each], axis=0))
        for name, each in predictions.items()
    }


def last_layer(trained: TrainedModel, images: PlaceImages) -> tuple[Tensor, Tensor]:
    """What the last layer of the run's model reads of all images of a place, and its weights.

    Returns:
        Shapes ``(n, features)``, in the order of the sites, and ``(features, classes)``, on the CPU.

    Raises:
        ConfigurationError: if the logits are not linear in what it reads, or there are several networks.
    """
    if trained.is_ensemble:
        raise ConfigurationError("--recalibrate head: an ensemble has no last layer of its own; take labels:N")
    device = choose_device("auto")
    problem = trained.problem
    model_of = trained_models(*trained.networks[0])
    features_of_sites, weights = [], torch.zeros(0)
    for test in images.sites.values():
        rows, inputs = np.arange(len(test.names)), tensors_of(test.images, device)
        model = model_of((test.images, rows)).to(device)
        before, weights = split_last_layer(model)
        features = Forward(before).logits(inputs, rows, problem.test_view)
        few = Forward(model).logits(inputs, rows[:LINEAR_ON], problem.test_view) - features[:LINEAR_ON] @ weights.T
        if not torch.allclose(few, few[:1].expand_as(few), rtol=1e-3, atol=1e-2):
            raise ConfigurationError(
                f"--recalibrate head: the last layer of {problem.backbone} is not linear in what it reads; take labels:N"
            )
        features_of_sites.append(features.cpu())
    return torch.cat(features_of_sites), weights.T.cpu()


def features_like(sums: PortableSums, trained: TrainedModel, images: PlaceImages) -> Tensor:
    """The features of all images of a place as those in sums: means over the same views, clipped to the same norm.

    Returns:
        Float64, shape ``(n, features)``, in the order of the sites, on the CPU.

    Raises:
        ConfigurationError: if there are several networks.
    """
    if trained.is_ensemble:
        raise ConfigurationError("--sums: an ensemble has no features of its own; take labels:N")
    device, model_of, features = choose_device("auto"), trained_models(*trained.networks[0]), []
    for test in images.sites.values():
        rows, inputs = np.arange(len(test.names)), tensors_of(test.images, device)
        model = model_of((test.images, rows)).to(device).eval()
        for batch in eval_batches(rows, BATCH):
            with torch.no_grad():
                views = [depth_features(model, inputs(batch, view)).double().cpu() for view in sums.views]
            features.append(torch.stack([clipped(one, sums.largest_norm) for one in views]).mean(dim=0))
    return torch.cat(features)


def place_of(
    name: str,
    files: Mapping[str, Path],
    locations: Mapping[str, DatasetLocation],
    images: PlaceImages,
    predictions: Mapping[str, ImagePredictions],
) -> Place:
    """The predicted place with the further columns of its manifests; a column that a site lacks is empty there.

    ``files`` are those of the networks, by what they are called.
    """
    rows: list[dict[str, str]] = []
    for site, location in locations.items():
        records = {record.image: record for record in read_manifest(location.manifest, split="test")}
        chosen = [records[image] for image in predictions[site].names]
        rows += [{**({"source": one.source} if one.source else {}), **dict(one.more)} for one in chosen]
    columns = dict.fromkeys(column for row in rows for column in row)
    models = {called: file_digest(path) for called, path in files.items()}
    manifests = {site: manifest_digest(location.manifest) for site, location in locations.items()}
    return Place(
        name,
        predictions,
        {column: [row.get(column, "") for row in rows] for column in columns},
        {**models, **manifests},
        sum(test.unreadable for test in images.sites.values()),
        images.overlap,
        images.appearance,
    )
