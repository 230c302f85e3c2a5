"""Control of gate 2: can a site's own statistics hide a device from the probe, and does the diagnosis gain by it?

Each site whitens the embedding that the head sees, by the mean and the covariance of its own training images. First and
second moments of training images are then nearly the same at all sites; the second are what Deep CORAL draws together by a
loss (Sun & Saenko, ECCV workshops 2016). Beside it are the same network whitened by the moments of all training images,
which differs in nothing else, and one without whitening.

The encoder is ImageNet's and is not trained. A linear layer to 64 features and a head are trained by federated averaging
with equal weights of the sites; moments are computed again at the start of each round. The package has no such method.

    python -m benchmarks.fed_align_devices.whitening
"""

from __future__ import annotations

import argparse
import copy
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.experiment import DATA
from benchmarks.fed_align_cl_ham10000.domain_probe import site_probe
from benchmarks.fed_align_devices.experiment import CLASSES, DATASET, divided_sites
from benchmarks.measure import run
from benchmarks.results import EXPLAINED, RATIO, Pair, difference_table
from benchmarks.tables import mean_and_spread
from grandrounds.data.datasets.registry import read_dataset
from grandrounds.data.images.files.reading import Reading
from grandrounds.data.images.preparation import Preparation
from grandrounds.data.images.readers import open_images
from grandrounds.data.images.tensors import to_tensor
from grandrounds.data.manifest import Record
from grandrounds.data.options import MalignancyOptions
from grandrounds.models.registry import build_model
from grandrounds.models.split import split_network
from grandrounds.protocol.names import Preprocess
from grandrounds.protocol.problem import ModelSpec
from grandrounds.seeding import derive_seed, numpy_generator

SETTINGS = {
    "shift_development": "One strong shift: Rosendahl's images in two halves, one of them through a synthetic device",
    "null_development": "No devices: the images of all sites mixed",
    "development": "Three devices",
    "poor_development": "Three devices, site 3 has 200 labels",
}
CONFIGURATION = json.loads(Path(__file__).with_name("configuration.json").read_text())
SEEDS = range(104, 112)
FORMS = {"none": "no whitening", "all": "moments of all training images", "own": "moments of each site's own"}
SIDE, FEATURES, WIDTH = 112, 1280, 64
ROUNDS, STEPS, BATCH, RATE, DECAY, DROPOUT = 24, 15, 24, 3e-4, 1e-4, 0.2
RIDGE = 1e-3
"""Added to the eigenvalues of a covariance, as a share of the largest."""


class SiteImages(NamedTuple):
    """Embeddings ``(images, 1280)`` of one site's images, 1 for a malignant one, the lesions, and what is for training."""

    embeddings: Tensor
    labels: Tensor
    lesions: NDArray[np.str_]
    train: NDArray[np.int64]
    test: NDArray[np.int64]


class Whitened(nn.Module):
    """A linear layer to 64 features, whitening by the moments of :meth:`take`, and the head."""

    def __init__(self) -> None:
        super().__init__()
        self.narrow = nn.Sequential(nn.Dropout(DROPOUT), nn.Linear(FEATURES, WIDTH))
        self.head = nn.Linear(WIDTH, len(CLASSES))
        self.moments = torch.zeros(WIDTH), torch.eye(WIDTH)

    def embed(self, inputs: Tensor) -> Tensor:
        """What the head sees of ``(batch, 1280)``: ``(batch, 64)``."""
        mean, factor = self.moments
        return (self.narrow(inputs) - mean) @ factor

    def forward(self, inputs: Tensor) -> Tensor:
        """Map ``(batch, 1280)`` to logits ``(batch, 2)``."""
        logits: Tensor = self.head(self.embed(inputs))
        return logits

    @torch.no_grad()
    def take(self, inputs: Tensor) -> None:
        """Whiten by the moments of ``(images, 1280)`` from now on."""
        features = self.narrow[1](inputs)
        values, vectors = torch.linalg.eigh(torch.cov(features.T))
        scale = (values + RIDGE * values.max()).rsqrt()
        self.moments = features.mean(0), vectors * scale @ vectors.T


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """Probe and AUC of each setting, seed and form."""
    root = options.root or DATA / "ham10000"
    read = read_dataset(DATASET, root, MalignancyOptions())
    embedded = Embedded(read.images)
    found: dict[str, Any] = {}
    for name in list(SETTINGS)[: 1 if options.quick else None]:
        for seed in SEEDS[: 1 if options.quick else None]:
            setting = CONFIGURATION["settings"][name]
            devices, divided = setting["devices"], divided_sites(read.records, setting, seed)
            sites = _standardised([_site(own, embedded, devices.get(site, "none")) for site, own in divided.items()])
            row: dict[str, Any] = {form: _scores(sites, *_trained(sites, form, seed), form) for form in FORMS}
            row["encoder"] = {"probe": _probe([site.embeddings[site.test] for site in sites], sites)}
            found.setdefault(name, {})[seed] = row
            print(name, seed, json.dumps(row), flush=True)
    return {"settings": found}


class Embedded:
    """ImageNet's embeddings of images, each computed once for a device."""

    def __init__(self, images: Path) -> None:
        self._images = images
        spec = ModelSpec("efficientnet_lite0", len(CLASSES), weights="imagenet", norm="frozen")
        self._encoder = split_network(build_model(spec, seed=0).eval()).encoder
        self._known: dict[tuple[str, Preprocess], Tensor] = {}

    @torch.no_grad()
    def of(self, names: Sequence[str], device: Preprocess) -> Tensor:
        """Embeddings ``(images, 1280)``; a device is a synthetic one, or ``none``."""
        missing = [name for name in names if (name, device) not in self._known]
        with open_images(self._images) as reader:
            for start in range(0, len(missing), 64):
                batch = missing[start : start + 64]
                preparation = Preparation(SIDE, 3, Reading(preprocess=device))
                squares = [preparation.square(reader.encoded(name)).pixels for name in batch]
                values = self._encoder(to_tensor(np.stack(squares), torch.device("cpu")))
                self._known.update(zip([(name, device) for name in batch], values, strict=True))
        return torch.stack([self._known[name, device] for name in names])


def _site(records: Sequence[Record], embedded: Embedded, device: Preprocess) -> SiteImages:
    splits = np.array([record.split for record in records])
    return SiteImages(
        embedded.of([record.image for record in records], device),
        torch.tensor([CLASSES.index(record.label) for record in records]),
        np.array([record.lesion or record.image for record in records]),
        np.flatnonzero(splits == "train"),
        np.flatnonzero(splits == "test"),
    )


def _standardised(sites: Sequence[SiteImages]) -> list[SiteImages]:
    """Each feature by the mean and deviation of all sites' training images."""
    train = torch.cat([site.embeddings[site.train] for site in sites])
    mean, deviation = train.mean(0), train.std(0) + 1e-3
    return [site._replace(embeddings=(site.embeddings - mean) / deviation) for site in sites]


def _trained(sites: Sequence[SiteImages], form: str, seed: int) -> tuple[Whitened, list[Tensor]]:
    """The network after the last round, and the images that each site takes its moments from."""
    train = [site.embeddings[site.train] for site in sites]
    sources = train if form == "own" else [torch.cat(train)] * len(sites)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(seed, "whitening"))
        network = Whitened()
        states: list[Any] = [None] * len(sites)
        for round_number in range(ROUNDS):
            updated = []
            for number, site in enumerate(sites):
                network_here = copy.deepcopy(network)
                if form != "none":
                    network_here.take(sources[number])
                optimizer = torch.optim.Adam(network_here.parameters(), RATE, weight_decay=DECAY)
                if states[number] is not None:
                    optimizer.load_state_dict(states[number])
                generator = numpy_generator(seed, "batches", str(number), round_number)
                for _ in range(STEPS):
                    rows = generator.choice(site.train, BATCH, replace=False)
                    loss = F.cross_entropy(network_here(site.embeddings[rows]), site.labels[rows])
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                states[number] = optimizer.state_dict()
                updated.append(network_here.state_dict())
            mean = {name: torch.stack([state[name] for state in updated]).mean(0) for name in updated[0]}
            network.load_state_dict(mean)
    return network.eval(), sources


@torch.no_grad()
def _scores(sites: Sequence[SiteImages], network: Whitened, sources: Sequence[Tensor], form: str) -> dict[str, Any]:
    """The probe of the test images' embeddings, and the AUC at each site."""
    embedded, areas = [], []
    for site, source in zip(sites, sources, strict=True):
        if form != "none":
            network.take(source)
        embedded.append(network.embed(site.embeddings[site.test]))
        logits = network.head(embedded[-1])
        areas.append(float(roc_auc_score(site.labels[site.test], logits[:, 1] - logits[:, 0])))
    return {"probe": _probe(embedded, sites), "auc": areas}


def _probe(embedded: list[Tensor], sites: Sequence[SiteImages]) -> float:
    names = np.repeat([str(number) for number in range(len(sites))], [len(site.test) for site in sites])
    lesions = np.concatenate([site.lesions[site.test] for site in sites])
    return site_probe(torch.cat(embedded).numpy(), names, seed=1, groups=lesions).accuracy


def tables(result: Mapping[str, Any]) -> str:
    """For each setting the means over seeds, and what the AUC gains where each site takes moments of its own images."""
    texts = []
    for name, seeds in result["settings"].items():
        own, pooled = (np.array([row[form]["auc"] for row in seeds.values()]) for form in ("own", "all"))
        ratio = CONFIGURATION["settings"][name].get(RATIO, CONFIGURATION[RATIO])
        areas_of = [*zip(own.T, pooled.T, strict=True), (own.mean(1), pooled.mean(1))]
        pairs = [Pair(*areas, ratio) for areas in areas_of]
        rows: list[list[object]] = [
            ["encoder alone, 1,280 features", *_probes(seeds, "encoder"), None, *[None] * len(pairs)]
        ]
        for form, title in FORMS.items():
            areas = [float(np.mean(row[form]["auc"])) for row in seeds.values()]
            gained = pairs if form == "own" else [None] * len(pairs)
            rows.append([title, *_probes(seeds, form), mean_and_spread(areas), *gained])
        gains = [f"gain at site {number}" for number in range(1, len(pairs))] + ["gain in the mean"]
        header = ["whitened by", "probe", "lowest", "highest", "mean AUC", *gains]
        texts.append(f"{SETTINGS[name]}; seeds {min(seeds)} to {max(seeds)}.\n\n{difference_table(header, rows)}")
    return "\n\n".join([*texts, f"Gains are in AUC, over moments of all training images. {EXPLAINED}"])


def _probes(seeds: Mapping[Any, Any], form: str) -> list[object]:
    found = [row[form]["probe"] for row in seeds.values()]
    return [mean_and_spread(found), min(found), max(found)]


if __name__ == "__main__":
    run(__file__, measured, tables, root={"type": Path, "help": "folder of HAM10000"})
