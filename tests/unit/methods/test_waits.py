"""How often a training makes the host wait for an accelerator, for which torch's device without memory stands here.

An operation on tensors of ``meta`` has shapes and no values. What asks for a value, for the places of true entries or for a
copy on the host would wait for a GPU, and is answered with ones; so would a copy to the GPU that is not asked to run beside
the host. Tensors of different devices are refused, as by a GPU.
"""

import warnings
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from grandrounds.data.images import tensors
from grandrounds.data.images.cache import DecodedCache
from grandrounds.data.images.tensors import HeldImages
from grandrounds.data.site import SiteData
from grandrounds.federation.site.context import SiteContext, StateCache
from grandrounds.federation.site.training import Adam
from grandrounds.methods.fed_align_cl.iteration import (
    AlignmentTrainer,
    LocalSteps,
    Neighbour,
    TrainingImages,
    interval_of_round,
)
from grandrounds.methods.fed_align_cl.loss import make_discriminator
from grandrounds.methods.fed_align_cl.options import EmbeddingNoiseOptions, EncoderAlignmentOptions, ScheduleOptions
from grandrounds.methods.fedirm.options import ClientOptions, LabelledOptions, RelationOptions, UnlabelledOptions
from grandrounds.methods.fedirm.relation import Relation
from grandrounds.methods.fedirm.training import SiteTeacher, self_train, train_labelled, train_unlabelled
from grandrounds.methods.fedperl.loss import PeerPseudoLabeler, UnanimousPseudoLabeler, VotingPseudoLabeler
from grandrounds.methods.fixmatch.training import SemiSupervisedOptions, train_semi_supervised
from grandrounds.methods.mutual.options import AlignmentOptions, LocalOptions
from grandrounds.methods.mutual.training import AlignmentStep, align, train_locally
from grandrounds.methods.supervised.training import TrainingOptions, train_privately, train_supervised
from grandrounds.models.closed_form.sums import sums_of
from grandrounds.models.split import split_network
from grandrounds.privacy.mechanisms.record_level import RecordLevelOptions
from grandrounds.protocol.problem import Problem
from grandrounds.protocol.tasks import SINGLE

CLASSES, COUNT, SIDE = ("a", "b", "c"), 24, 8
ON_VALUES = {"_local_scalar_dense", "nonzero"}
BY_INDEX = {"index", "index_put", "index_put_", "_index_put_impl_"}


class Waits(TorchDispatchMode):
    """Counts the waits in a block of code, and the copies to the device."""

    def __init__(self):
        super().__init__()
        self.counted = Counter()

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = operation.overloadpacket.__name__
        source = next((one.device.type for one in args if isinstance(one, torch.Tensor)), None)
        there = source == "meta"
        if name == "_to_copy" and kwargs.get("device"):
            target = torch.device(kwargs["device"]).type
            if there and target != "meta":
                self.counted["waits"] += 1
                return torch.ones(args[0].shape, dtype=kwargs.get("dtype") or args[0].dtype)
            if target == "meta" and not there:
                self.counted["copies"] += 1
                self.counted["waits"] += not kwargs.get("non_blocking", False)
        if there and name in ON_VALUES:
            self.counted["waits"] += 1
            if name == "nonzero":
                return args[0].new_empty(args[0].numel(), args[0].dim(), dtype=torch.int64)
            return torch.ones((), dtype=args[0].dtype).item()
        if there and name in BY_INDEX and any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in args[1]):
            self.counted["waits"] += 1
            shape = args[0].shape[sum(i.dim() for i in args[1] if i is not None) :]
            return args[0].new_empty(COUNT, *shape) if name == "index" else args[0]
        return operation(*args, **kwargs)


@pytest.fixture(autouse=True)
def _fused_without_memory(monkeypatch):
    module = import_module("torch.optim.optimizer")
    known = module._get_fused_kernels_supported_devices()
    monkeypatch.setattr(module, "_get_fused_kernels_supported_devices", lambda: [*known, "meta"])


def site(labelled, device):
    data = SiteData(
        cache=DecodedCache(np.random.default_rng(1).integers(0, 256, (COUNT, SIDE, SIDE, 3)).astype(np.uint8)),
        labels=np.arange(COUNT) % len(CLASSES),
        labelled=np.arange(COUNT) < labelled,
        split=np.full(COUNT, "train"),
        names=tuple(map(str, range(COUNT))),
        groups=tuple(map(str, range(COUNT))),
        classes=CLASSES,
    )
    problem = Problem("noise", CLASSES, image_size=32)
    return SiteContext(
        "site-1", 1, problem, 1, data, torch.device(device), "float32", lambda: False, StateCache(Path())
    )


def network(device, norm=nn.BatchNorm2d):
    """With batch norm and dropout; made where it is, because no parameter moves to a device without memory."""
    with torch.device(device):
        encoder = nn.Sequential(nn.Conv2d(3, 4, 3), norm(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        return nn.Sequential(encoder, nn.Sequential(nn.Dropout(0.5), nn.Linear(4, len(CLASSES))))


def adam(parameters):
    return Adam(parameters, lr=1e-3, fused=True)


def supervised(steps, device):
    model = network(device)
    train_supervised(model, adam(model.parameters()), site(COUNT, device), TrainingOptions(steps=steps, batch_size=4))


def turned(steps, device):
    """Supervised steps on images that stay on the device, where the views are made."""
    context, held, model = site(COUNT, device), HeldImages(torch.device(device)), network(device)
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(tensors, "may_stay", lambda device, size: True)
        images = np.memmap(Path(folder) / "images", np.uint8, "w+", shape=context.data.images.shape)
        context = replace(context, data=replace(context.data, cache=DecodedCache(images)), held=held)
        options = TrainingOptions(steps=steps, batch_size=4, weak_view="turns")
        train_supervised(model, adam(model.parameters()), context, options)


def adjusted(steps, device):
    model, options = network(device), TrainingOptions(steps=steps, batch_size=4, logit_adjustment=1.0)
    train_supervised(model, adam(model.parameters()), site(COUNT, device), options)


def pseudo_labelled(labeler=None, norm=nn.BatchNorm2d, **options):
    """FixMatch's steps, or those of a labeler with two peers."""

    def work(steps, device):
        context, model = site(8, device), network(device, norm)
        peers = [context.forward(network(device, norm)) for _ in range(2)]
        made = labeler(SINGLE, peers, 1.0) if labeler else None
        how = TrainingOptions(steps=steps, batch_size=4)
        train_semi_supervised(model, adam(model.parameters()), context, how, SemiSupervisedOptions(**options), made)

    return work


def with_labels(steps, device):
    model = network(device)
    local = ClientOptions(batch_size=4, steps=steps)
    options = LabelledOptions(logit_adjustment=1.0)
    train_labelled(model, adam(model.parameters()), site(COUNT, device), local, options, RelationOptions())


def without_labels(**options):
    def work(steps, device):
        context, model, chosen = site(0, device), network(device), UnlabelledOptions(**options)
        target = Relation(torch.full((3, 3), 1 / 3), torch.ones(3, dtype=torch.int64))
        local = ClientOptions(batch_size=4, steps=steps)
        teacher = SiteTeacher(SINGLE, model, chosen, {})
        train_unlabelled(model, adam(model.parameters()), context, local, chosen, RelationOptions(), target, teacher)

    return work


def labelled_once(steps, device):
    model, options = network(device), UnlabelledOptions(min_confidence=0.0)
    local = ClientOptions(batch_size=4, steps=steps)
    self_train(model, adam(model.parameters()), site(0, device), local, options)


def private(steps, device):
    """DP-SGD's steps; noise is drawn on the host, in secret."""
    model, options = network(device, nn.Identity), TrainingOptions(batch_size=4, class_weights="none")
    protection = RecordLevelOptions(clip=1.0, noise_multiplier=1.0, sampling_rate=1.0, steps=steps)
    with pytest.MonkeyPatch.context() as patch:
        if device == "meta":  # which has no autocast that could be switched off
            patch.setattr(torch, "autocast", lambda *_, **__: nullcontext())
        train_privately(model, adam(model.parameters()), site(COUNT, device), options, protection)


def aligned(update):
    """Fed-Align's steps with one neighbour; noise is drawn on the host, in secret."""

    def work(steps, device):
        context, model = site(COUNT, device), network(device)
        discriminator = make_discriminator(4, "site-1").to(device)
        parts = {"classification": model, "adversarial": split_network(model).encoder, "discriminator": discriminator}
        optimizers = {role: adam(part.parameters()) for role, part in parts.items()}
        trainer = AlignmentTrainer(model, discriminator, optimizers, EmbeddingNoiseOptions("absolute", 0.01))
        images = TrainingImages(context, np.arange(COUNT), COUNT // 2, 2)
        schedule = ScheduleOptions(iterations=COUNT // 2, pace=steps)
        local = LocalSteps(
            trainer, images, np.arange(COUNT), interval_of_round(1, COUNT // 2, steps), schedule, context
        )
        neighbour = Neighbour(torch.ones(8, 4, device=device), make_discriminator(4, "site-2").to(device), 2)
        own = torch.ones(8, 4, device=device) if update == "moments" else None
        local.train({"site-2": neighbour}, EncoderAlignmentOptions(update), own)

    return work


def mutual_alignment(steps, device):
    context, model, options = site(COUNT, device), network(device), AlignmentOptions()
    batches = [np.arange(4)] * steps
    target = torch.full((COUNT, len(CLASSES)), 1 / 3)
    align(model, AlignmentStep(model, options), context.data.images, target, batches, options, 1, context)


def mutual_training(steps, device):
    options = LocalOptions(batch_size=4, logit_adjustment=0.5)
    train_locally(network(device), options, steps / 6, 1, 2, site(COUNT, device))


def on_meta(work, steps):
    with Waits() as found:
        work(steps, "meta")
    return found.counted["waits"], found.counted["copies"]


def on_gpu(work, steps):
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            work(steps, "cuda")
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return sum("synchronizing CUDA operation" in str(one.message) for one in found)


CASES = {
    "supervised": (supervised, 0, 2),
    "supervised, images held": (turned, 0, 3),
    "supervised, adjusted": (adjusted, 0, 2),
    "fixmatch, batch norm": (pseudo_labelled(), 1, 6),
    "fixmatch, running statistics": (pseudo_labelled(strong_norm="running"), 0, 5),
    "fixmatch, no batch norm": (pseudo_labelled(norm=nn.Identity), 0, 5),
    "fedperl": (pseudo_labelled(PeerPseudoLabeler, nn.Identity), 0, 5),
    "fedperl, unanimous": (pseudo_labelled(UnanimousPseudoLabeler, nn.Identity), 0, 5),
    "fedmatch": (pseudo_labelled(VotingPseudoLabeler, nn.Identity), 1, 5),
    "fedirm, labels": (with_labels, 0, 3),
    "fedirm, no labels": (without_labels(), 0, 3),
    "fedirm, all draws": (without_labels(mc_dropout="full"), 0, 3),
    "self-training": (labelled_once, 0, 2),
    "dp-sgd": (private, 4, 6),
    "fed_align_cl, summed": (aligned("summed"), 2, 4),
    "fed_align_cl, joint": (aligned("joint"), 2, 4),
    "fed_align_cl, moments": (aligned("moments"), 4, 4),
    "mutual, alignment": (mutual_alignment, 0, 2),
    "mutual, training": (mutual_training, 0, 3),
}
"""The work, the waits and the copies to the device in each step; those of a round come on top."""


@pytest.mark.parametrize(("work", "waits", "copies"), CASES.values(), ids=CASES)
def test_a_step_waits_and_copies_as_often_as_is_stated(work, waits, copies):
    few, many = on_meta(work, 2), on_meta(work, 6)
    assert [(after - before) / 4 for before, after in zip(few, many, strict=True)] == [waits, copies]


def test_sums_of_features_are_added_where_the_features_are():
    for batches in (2, 6):
        given = [(torch.ones(3, 4), torch.ones(3, 2), torch.ones(3))] * batches
        with Waits() as found:
            sums_of(([each.to("meta", non_blocking=True) for each in batch] for batch in given), 4, 2, "meta")
        assert found.counted["waits"] == 2, "products and targets, at the end"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU")
@pytest.mark.parametrize(("work", "waits"), [case[:2] for case in CASES.values()], ids=CASES)
def test_a_step_on_a_gpu_waits_as_often_as_is_stated(work, waits):
    on_gpu(work, 2)  # the first steps choose kernels and make handles
    assert (on_gpu(work, 6) - on_gpu(work, 2)) / 4 == waits


@pytest.mark.parametrize(
    "waits",
    [lambda x: bool(x.any()), torch.nonzero, lambda x: x[x > 0], torch.Tensor.cpu, lambda x: x + x.sum().item()],
)
def test_what_waits_is_counted(waits):
    with Waits() as found:
        waits(torch.ones(3, device="meta"))
        torch.ones(3).to("meta", non_blocking=True)
        assert found.counted == {"waits": 1, "copies": 1}
        torch.ones(3).to("meta")
    assert found.counted == {"waits": 2, "copies": 2}
