"""A whole run of four sites, messages included, ends where one loop over all four models does, in float64."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from grandrounds.data.images.readers import open_images
from grandrounds.data.manifest import read_manifest
from grandrounds.deployment.jobs import load_job
from grandrounds.deployment.presets import with_options
from grandrounds.methods.mutual.schedule import local_batches, public_order
from grandrounds.models.registry import build_model
from grandrounds.protocol.problem import Problem
from grandrounds.seeding import numpy_generator
from tests.federations import draw_hospitals, give_public_images

# One small network: in others rounding errors grow beyond the tolerance in some Adam steps. The sites' images differ.
BACKBONES = dict.fromkeys(("site-1", "site-2", "site-3", "site-4"), "compact")
SIDE, PUBLIC_IMAGES, EPOCHS, BATCH, SEED = 32, 12, 2, 4, 1
OPTIONS = [
    f"controller.rounds={EPOCHS + 1}",
    "controller.min_sites=4",
    "controller.wire=fp64",
    f"controller.public_batch={BATCH}",
    "controller.validate_every=0",
    f"problem.image_size={SIDE}",
    # With batch norm over four images rounding errors grow by orders of magnitude in each step.
    "problem.norm=group",
    "executor.pretrain_epochs=1.0",
    f"executor.batch_size={BATCH}",
    "executor.local_view=none",
    f"executor.backbones={json.dumps(BACKBONES)}",
    "executor.device=cpu",
]


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory, shared_cache):
    folder = draw_hospitals(tmp_path_factory.mktemp("hospitals"), BACKBONES, images=12)
    for site in BACKBONES:
        give_public_images(folder, site, PUBLIC_IMAGES)
    return folder


def read(folder, classes):
    """Pixels in [0, 1], labels, and which images are for training."""
    records = read_manifest(folder / "manifest.csv", classes)
    with open_images(folder / "images.npz") as reader:
        images = np.stack([reader.read(record.image) for record in records])
    pixels = torch.from_numpy(images).permute(0, 3, 1, 2).to(torch.float32).div(255).double()
    labels = torch.tensor([classes.index(record.label) if record.label else -1 for record in records])
    return pixels, labels, np.array([row for row, record in enumerate(records) if record.split == "train"])


def symmetric(logits, labels, classes):
    """Cross-entropy with weight 0.1 and reverse cross-entropy, from the table of labels with its floor."""
    given = F.one_hot(labels, classes).double().clamp(min=1e-4).log()
    return 0.1 * F.cross_entropy(logits, labels) - (logits.softmax(1) * given).sum(1).mean()


def descend(model, batches, loss_of):
    model.train()
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
    for batch in batches:
        optimiser.zero_grad()
        loss_of(batch).backward()
        optimiser.step()


def one_loop(problem, hospitals):
    """All models in one process: divergences from every other model, no sums and no messages."""
    spec, classes = problem.model_spec(pretrained=False), list(problem.classes)
    models = {site: build_model(replace(spec, backbone=name), SEED).double() for site, name in BACKBONES.items()}
    own = {site: read(hospitals / site, classes) for site in BACKBONES}
    # The public set is in the order of the images' names: images/0, images/1, images/10, ...
    public = read(hospitals / "site-1" / "public", classes)[0][sorted(range(PUBLIC_IMAGES), key=str)]

    def learn(site, epoch):
        pixels, labels, rows = own[site]
        generator = numpy_generator(SEED, "site", site, epoch, "private batches")
        model, batches = models[site], local_batches(rows, BATCH, 1.0, generator)
        descend(model, batches, lambda batch: symmetric(model(pixels[batch]), labels[batch], len(classes)))

    def align(site, rows, epoch):
        model, order = models[site], public_order(PUBLIC_IMAGES, SEED, epoch, None)
        others = [other for other in models if other != site]

        def divergence(batch):
            predicted = model(public[batch]).log_softmax(1)
            each = [F.kl_div(predicted, rows[other][batch], reduction="batchmean") for other in others]
            return torch.stack(each).mean()

        whole = len(order) // BATCH * BATCH
        descend(model, [order[start : start + BATCH] for start in range(0, whole, BATCH)], divergence)

    for site in models:
        learn(site, 0)
    for epoch in range(1, EPOCHS + 1):
        with torch.no_grad():
            rows = {site: model.eval()(public).softmax(1) for site, model in models.items()}
        for site in models:
            align(site, rows, epoch)
            learn(site, epoch)
    return models


def test_a_run_of_four_sites_equals_one_loop_over_four_models(run, hospitals, tmp_path):
    job = with_options(load_job("mdhfl"), OPTIONS)
    job.client["executors"][0]["executor"]["path"] = "doubles.DoubleExecutor"
    found = run(job, tmp_path, list(BACKBONES), sites_dir=hospitals, wire=True)
    assert found.summary["status"] == "finished"
    problem = Problem.from_dict(job.options("problem"))
    for site, model in one_loop(problem, hospitals).items():
        last = torch.load(next((tmp_path / "state").glob(f"*/{site}/own_last.pt")), weights_only=True)
        start = build_model(replace(problem.model_spec(pretrained=False), backbone=BACKBONES[site]), SEED).state_dict()
        for name, value in model.state_dict().items():
            assert last[name].dtype == value.dtype
            assert float((last[name] - value).abs().max()) < 1e-10, (site, name)
        assert max(float((last[name] - value).abs().max()) for name, value in start.items()) > 1e-3
