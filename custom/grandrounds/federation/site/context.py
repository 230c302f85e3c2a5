"""What an executor knows while it works on one task."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from grandrounds.data.images.ahead import ViewsAhead
from grandrounds.data.images.augmentation import draw_views
from grandrounds.data.images.tensors import HeldImages, to_device, to_tensor
from grandrounds.data.site import SiteData
from grandrounds.errors import ConfigurationError, MessageError
from grandrounds.federation.machine import worker_number
from grandrounds.federation.site.features import Features
from grandrounds.federation.site.outcomes import NoGate
from grandrounds.files import replacing
from grandrounds.models.inference.forward import Forward
from grandrounds.protocol.messages import State
from grandrounds.protocol.problem import ModelSpec, Problem
from grandrounds.protocol.spending import TrainingGate
from grandrounds.seeding import derive_seed, numpy_generator

FIRST_SCALE = 1024.0
"""Of the loss, in each round; torch starts with 65,536 for runs of many more steps."""
KEY = re.compile(r"[A-Za-z0-9_-]{1,64}")


class TaskAborted(Exception):
    """The server has no more use for this task."""


class StateCache:
    """Models that a site was sent and may be asked for again, as files. What is not there can be sent again.

    Keys come from the server; one that could name a file elsewhere is a ``MessageError``.

    Args:
        folder: the cache's own; made when first needed.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, key: str, state: State) -> None:
        """Keep a state."""
        with replacing(self._path(key)) as stream:
            torch.save(dict(state), stream)

    def get(self, key: str) -> dict[str, torch.Tensor] | None:
        """A state, or None if it is not there or its file is damaged."""
        path = self._path(key)
        try:
            return dict(torch.load(path, map_location="cpu", weights_only=True))
        except Exception:  # whatever is wrong with a file of a cache, the answer is to have the state sent again
            return None

    def keep_only(self, keys: Sequence[str]) -> None:
        """Delete all states but these."""
        kept = {self._path(key) for key in keys}
        # All files: a process that was killed while it wrote one has left it under a temporary name.
        for path in self._folder.iterdir() if self._folder.is_dir() else ():
            if path not in kept:
                path.unlink()

    def _path(self, key: str) -> Path:
        if not isinstance(key, str) or not KEY.fullmatch(key):
            raise MessageError(f"the key of a model must be letters, digits, '_' and '-', got {key!r}")
        return self._folder / f"{key}.pt"


def _no_dataset(name: str) -> SiteData:
    raise ConfigurationError(f"data set {name!r} cannot be had in this task")


class Unread:
    """Stands for a site's data until its images are read."""

    def __getattr__(self, name: str) -> Any:
        """Every attribute is an error."""
        raise RuntimeError(f"{name} of the site's data was asked for before its images were read")


def choose_device(name: str, precision: str = "float32") -> torch.device:
    """The device that an option names, and how this process's GPU multiplies: torch's default would round in convolutions.

    Kernels are not chosen by timing, which would differ from run to run.

    Args:
        name: ``auto`` (a GPU if there is one; of several a simulation's workers take one each in turn), ``cpu`` or
            ``cuda[:index]``.
        precision: only ``tf32`` lets a GPU round what it multiplies.

    Raises:
        ConfigurationError: if it is not a device, or not here, or another than a GPU is to compute in ``tf32``.
    """
    device = _device_named(name)
    tf32 = precision == "tf32"
    if tf32 and device.type != "cuda":
        raise ConfigurationError(f"precision=tf32 is of NVIDIA's GPUs, and the device is {device}; use float32")
    if device.type == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
        torch.backends.cudnn.benchmark = False
    return device


def _device_named(name: str) -> torch.device:
    if name == "auto":
        if not torch.cuda.is_available():
            return torch.device("cpu")
        count = torch.cuda.device_count()
        return torch.device("cuda", worker_number() % count) if count > 1 else torch.device("cuda")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigurationError(f"device must be auto, cpu or cuda[:index], got {name!r}") from error
    if device.type not in ("cpu", "cuda"):
        raise ConfigurationError(f"device must be auto, cpu or cuda[:index], got {name!r}")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigurationError(f"device is {name!r}, but torch finds no GPU here; use device=cpu or auto")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigurationError(f"device is {name!r}, but the last GPU here is cuda:{torch.cuda.device_count() - 1}")
    return device


@dataclass(frozen=True)
class SiteContext:
    """One task at one site.

    Attributes:
        site: the site's name.
        round_number: counts from 1.
        problem: what is learnt.
        seed: the run's seed.
        data: the site's images and labels.
        device: where to compute.
        precision: ``float32`` or ``tf32``, or ``bfloat16`` or ``float16`` (autocast).
        aborted: whether the task has been given up.
        cache: states that the site was sent.
        own_spec: the network that this site has for itself; None if it is the problem's.
        datasets: loads another data set of the site by its name.
        ahead: draws views of coming steps while the network trains.
        held: images that stay on the device.
        features: what the frozen layers make of images; None where a network takes the images themselves.
        gate: the site's privacy gate, or what stands for it.
    """

    site: str
    round_number: int
    problem: Problem
    seed: int
    data: SiteData
    device: torch.device
    precision: str
    aborted: Callable[[], bool]
    cache: StateCache
    own_spec: ModelSpec | None = None
    datasets: Callable[[str], SiteData] = field(default=_no_dataset)
    ahead: ViewsAhead = field(default_factory=lambda: ViewsAhead(0))
    held: HeldImages = field(default_factory=lambda: HeldImages(torch.device("cpu")))
    features: Features | None = None
    gate: TrainingGate = field(default_factory=NoGate)

    @property
    def model_spec(self) -> ModelSpec:
        """The network that this site trains, without trained weights."""
        return self.own_spec or self.problem.model_spec(pretrained=False)

    def release_minimum(self, kind: str, release: str) -> int:
        """How many patients the site asks behind each class in a release of a kind and name.

        Raises:
            ConfigurationError: if its privacy policy does not let the release out.
        """
        asked = self.gate.release_minimum(kind, release)
        if asked is None:
            raise ConfigurationError(
                f"{self.site}: the site's privacy policy does not let {release} out, a release of kind {kind}"
            )
        return max(asked, self.data.min_support, 1)

    def dataset(self, name: str) -> SiteData:
        """Another data set of this site, for example public images that every site has.

        Its rows are those of its manifest, none of them missing. Labels outside the problem's vocabulary are unknown.

        Args:
            name: as the site's ``grandrounds.json`` calls it.

        Raises:
            ConfigurationError: if the site does not define it; site and data set are named.
            DataError: if an image cannot be read, or the manifest is not as it must be.
        """
        return self.datasets(name)

    def views(
        self,
        rows: NDArray[np.integer],
        view: str,
        key: int = 0,
        step: int = 0,
        public: NDArray[np.uint8] | None = None,
        positions: NDArray[np.integer] | None = None,
        **strong: Any,
    ) -> Tensor:
        """What a network takes for one view of each image of a batch.

        Args:
            rows: the batch.
            view: the kind of view.
            key: seed of the purpose.
            step: the local step, from 0.
            public: images of a public data set; None for the site's own.
            positions: draw only these positions of the batch.
            strong: options of the view, see :func:`~grandrounds.data.images.augmentation.draw_views`.

        Returns:
            Images, shape ``(batch, channels, height, width)``, or what the network's frozen front makes of them, on the
            context's device.
        """
        images = self.data.images if public is None else public
        if self.features is None:
            drawn = self.held.views(images, rows, view, key, step, positions)
            if drawn is None:
                drawn = self.ahead.take(images, rows, view, key, step, positions, **strong)
            if drawn is not None:
                return to_tensor(drawn, self.device)
            return to_tensor(draw_views(images, rows, view, key, step, positions=positions, **strong), self.device)
        name = "own" if public is None else "public"
        return self.features.draw(name, images, rows, view, key, step, positions, **strong)

    def labels(self, rows: NDArray[np.integer]) -> Tensor:
        """The labels of a batch, int64, on the context's device."""
        return to_device(self.data.labels[rows], self.device)

    def unchanged(self, rows: NDArray[np.integer], view: str = "none") -> Tensor:
        """What a network takes for images as they are, or for a fixed view of them; see :meth:`views`."""
        return self.views(rows, view)

    def draw_ahead(
        self,
        batches: Sequence[NDArray[np.integer]],
        view: str,
        key: int,
        public: NDArray[np.uint8] | None = None,
        **strong: Any,
    ) -> None:
        """Have views drawn while the network trains, where this site does so; :meth:`views` returns the same in any case.

        Args:
            batches: of all steps, from step 0 on.
            view: the kind of view.
            key: seed of the purpose.
            public: images of a public data set; None for the site's own.
            strong: options of strong views.
        """
        images = self.data.images if public is None else public
        if self.features is None and not self.held.makes(images, view):
            self.ahead.plan(images, batches, view, key, **strong)

    def generator(self, purpose: str) -> np.random.Generator:
        """The stream for this purpose in this round at this site."""
        return numpy_generator(self.seed, "site", self.site, self.round_number, purpose)

    def key(self, purpose: str) -> int:
        """The key of a counter-based stream for this purpose in this round at this site."""
        return derive_seed(self.seed, "site", self.site, self.round_number, purpose)

    def check_abort(self) -> None:
        """Stop when the task has been given up.

        Raises:
            TaskAborted: then.
        """
        if self.aborted():
            raise TaskAborted

    @contextmanager
    def autocast(self) -> Iterator[None]:
        """Compute in the configured precision."""
        if self.precision in ("float32", "tf32"):
            yield
            return
        with torch.autocast(self.device.type, dtype=getattr(torch, self.precision)):
            yield

    def forward(self, network: nn.Module) -> Forward:
        """How this site computes a network without gradients, in evaluation mode."""
        return Forward(network, precision=self.autocast)

    def gradient_scaler(self) -> torch.amp.GradScaler:
        """Scales a loss so that gradients do not vanish in ``float16``; in other precisions it changes nothing.

        A step whose gradients overflow is left out, and the scale is halved.
        """
        return torch.amp.GradScaler(self.device.type, FIRST_SCALE, enabled=self.precision == "float16")

    @contextmanager
    def torch_seeded(self, purpose: str) -> Iterator[None]:
        """Seed torch's own generator (dropout) for a block and leave it as it was afterwards."""
        devices = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            # torch.manual_seed would look for every kind of device first, which takes longer than a short task.
            torch.default_generator.manual_seed(self.key(purpose))
            if devices:
                torch.cuda.manual_seed_all(self.key(purpose))
            yield
