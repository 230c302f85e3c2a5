"""What the frozen layers make of a site's images: once for all passes over a view, or kept on disk for a few views.

With a frozen front (``problem.trainable``) most of a step's time goes into layers that never change. All passes over a view,
of the network, its teacher or its peers, share one pass of the front. A cache draws ``feature_cache`` weak and as many
strong views of an image, sends each through the front when it is first needed, and later draws among these. Batches of the
front all have one size and one precision, so that a feature has the same bits whichever run computed it. Features are
stored in half precision, or in single precision for a head of several depths, in files that only the site's user can read,
until the run's end. Where the site sets
``GRANDROUNDS_FEATURES`` they are kept in that folder, for other runs with the same images, seed and frozen layers.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from grandrounds.data.images.augmentation import draw_views, sample_generator, view_named
from grandrounds.data.images.tensors import HeldImages, may_stay, to_device, to_tensor
from grandrounds.errors import ConfigurationError
from grandrounds.models.depths import DepthNetwork
from grandrounds.models.inference.forward import EXACT
from grandrounds.models.partial import Front, front_of
from grandrounds.options import Min, Options
from grandrounds.seeding import derive_seed

FOLDER = "features"
VARIABLE = "GRANDROUNDS_FEATURES"
MIB = 1 << 20
FEATURE_BATCH = 32
ACCELERATED_BATCH = 128
LARGE_SIDE = 176
"""In pixels: maps of 32 such images do not stay in a CPU's cache, those of half as many do."""
Images = NDArray[np.uint8] | Tensor
Layers = Callable[[Images], Tensor]
"""Images, uint8, to what frozen layers make of them."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class FeatureOptions(Options):
    """Whether a site keeps what the frozen layers make of its images."""

    of_machine: ClassVar[bool] = True

    feature_cache: Annotated[
        int, "weak and strong views of each image whose features are kept; 0 computes fresh ones in each step", Min(0)
    ] = 0
    feature_cache_mib: Annotated[int, "maximum size of the kept features at a site", Min(1)] = 4096


class Features:
    """The features of the images of a run at one site, kept or computed anew for each batch.

    Args:
        folder: the site's folder of the run.
        options: how many views, and how large the cache may be.
        network: a network of the site.
        seed: of the run; the views depend on it, on the image's row and on the view's number alone.
        site: the site's name, for errors.
        form: in which the frozen layers are computed.

    Attributes:
        held: images that stay on the device.

    Raises:
        ConfigurationError: if features are to be kept and no layer is frozen.
    """

    def __init__(
        self, folder: Path, options: FeatureOptions, network: nn.Module, seed: int, site: str, form: str = EXACT
    ) -> None:
        front = front_of(network)
        if front is None:
            raise ConfigurationError(
                "executor.feature_cache keeps what frozen layers make of images, and no layer is frozen: set "
                "problem.trainable to head or from:<block>"
            )
        self._front: Front = front
        self._form, self._forward, self.held = form, front.in_form(form), HeldImages(front.device)
        # A head in closed form is solved from products of features, where half precision is not enough.
        self._dtype = np.dtype(np.float32 if isinstance(network, DepthNetwork) else np.float16)
        self._folder = Path(os.environ.get(VARIABLE) or folder / FOLDER)
        self._options, self._seed, self._site = options, seed, site
        self._stored: dict[tuple[Any, ...], _StoredFeatures] = {}
        self._contents: dict[str, tuple[NDArray[np.uint8], str]] = {}

    def draw(
        self,
        name: str,
        images: NDArray[np.uint8],
        rows: NDArray[np.integer],
        view: str,
        key: int,
        step: int,
        positions: NDArray[np.integer] | None = None,
        **options: Any,
    ) -> Tensor:
        """Features of one view of each image of a batch, drawn among those that are kept if any are.

        Arguments are as of :func:`~grandrounds.data.images.augmentation.draw_views`.

        Args:
            name: of the data set.
            images: all images of the data set.
            rows: the batch.
            view: the kind of view.
            key: seed of the choice among the stored views.
            step: the local step, from 0.
            positions: draw only these positions of the batch.
            options: of strong views.

        Returns:
            Shape ``(batch, features, rows, columns)``, float32, on the front's device.

        Raises:
            ConfigurationError: if the cache would exceed its limit or the disk.
        """
        if not self._options.feature_cache:
            views = draw_views(images, rows, view, key, step, positions=positions, **options)
            return self._made(views)
        chosen = np.arange(len(rows)) if positions is None else positions
        count = 1 if view_named(view).fixed else self._options.feature_cache
        numbers = np.zeros(len(chosen), np.int64)
        if count > 1:
            numbers[:] = [sample_generator(view, key, step, position).integers(count) for position in chosen.tolist()]
        stored = self._of(name, images, view, count, options)
        features = stored.read(np.asarray(rows)[chosen], numbers)
        return to_device(features, self._front.device).to(dtype=torch.float32, memory_format=torch.channels_last)

    def close(self) -> None:
        """Write what was computed to disk, at the end of a task."""
        for stored in self._stored.values():
            stored.close()

    def _made(self, images: Images) -> Tensor:
        return self._forward(to_tensor(images, self._front.device))

    def _in_single_precision(self, images: Images) -> Tensor:
        """Whatever the precision of the network is: the last bits of a feature that is kept depend on it."""
        with torch.autocast(self._front.device.type, enabled=False):
            return self._made(images)

    def _of(
        self, name: str, images: NDArray[np.uint8], view: str, count: int, options: Mapping[str, Any]
    ) -> _StoredFeatures:
        what = (name, view, *sorted(options.items()))
        if what not in self._stored:
            shape = tuple(self._made(images[:1]).shape[1:])
            size = len(images) * count * int(np.prod(shape)) * self._dtype.itemsize
            self._require_room(size, f"{len(images)} images x {count} {view} views of {name}")
            key = derive_seed(self._seed, "features", self._site, *map(str, what))
            # No run reads features of other layers, batches, images or numbers of views.
            content = self._digest(name, images)
            device = self._front.device
            batch = feature_batch(device, images.shape[1])
            rounded = " tf32" if device.type == "cuda" and torch.backends.cudnn.allow_tf32 else ""
            made = (self._front.digest, self._form, device.type + rounded, str(batch), self._dtype.str)
            source = derive_seed(key, *made, content, *map(str, images.shape), str(count))
            path = self._folder / f"{name}-{view}-{source:016x}"
            drawn: Callable[..., Any] = self.held.views if self.held.makes(images, view) else draw_views
            views = partial(drawn, images, np.arange(len(images)), view, key, **options)
            file = _memory_map(path.with_suffix(".features"), self._dtype, (len(images), count, *shape[1:], shape[0]))
            computed = _memory_map(path.with_suffix(".computed"), np.bool_, (len(images), count))
            self._stored[what] = _StoredFeatures(file, computed, views, self._in_single_precision, batch, device)
        return self._stored[what]

    def _digest(self, name: str, images: NDArray[np.uint8]) -> str:
        """Of all images of a data set, computed once for all its views."""
        if name not in self._contents or self._contents[name][0] is not images:
            self._contents[name] = images, hashlib.sha256(np.ascontiguousarray(images).data).hexdigest()
        return self._contents[name][1]

    def _require_room(self, size: int, what: str) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        used, limit = sum(stored.size for stored in self._stored.values()), self._options.feature_cache_mib * MIB
        _logger.info("%s: the features of %s take %.0f MiB", self._site, what, size / MIB)
        if used + size > limit:
            raise ConfigurationError(
                f"{self._site}: the features of {what} take {size / MIB:.0f} MiB beside {used / MIB:.0f} MiB, more than "
                f"executor.feature_cache_mib={self._options.feature_cache_mib}; raise it, or lower executor.feature_cache"
            )
        free = shutil.disk_usage(self._folder).free
        if size > free:
            raise ConfigurationError(
                f"{self._site}: the features of {what} take {size / MIB:.0f} MiB and the disk of {self._folder} has "
                f"{free / MIB:.0f} MiB free; lower executor.feature_cache"
            )


def feature_batch(device: torch.device, side: int) -> int:
    """How many images frozen layers take at a time; always the same for a side, as are the last bits of features then.

    Args:
        device: where they compute.
        side: of the images, in pixels.

    Example:
        >>> [feature_batch(torch.device("cpu"), side) for side in (112, 192)]
        [32, 16]
    """
    if device.type != "cpu":
        return ACCELERATED_BATCH
    return FEATURE_BATCH // 2 if side >= LARGE_SIDE else FEATURE_BATCH


def remove_features(folder: Path) -> None:
    """Remove the features of a run from the site's folder, if there are any; those that outlast it stay."""
    shutil.rmtree(folder / FOLDER, ignore_errors=True)


class _StoredFeatures:
    """The features of some views of all images of a data set; each is computed when it is first read.

    Args:
        features: of a file, by image and number of the view; channels last, as the network computes.
        computed: which of them are on disk, of a file, too.
        views: draws views; it takes the step, which is the view's number, and the positions, which are rows.
        front: computes features.
        batch: images that it takes at a time.
        device: where it computes, and where the features stay beside the file if they fit.
    """

    def __init__(
        self,
        features: np.memmap[Any, Any],
        computed: NDArray[np.bool_],
        views: Callable[..., Images],
        front: Layers,
        batch: int,
        device: torch.device,
    ) -> None:
        self._features, self._kept, self._views, self._front = features, computed, views, front
        self._batch, self._device = batch, device
        self._computed = np.array(computed)
        self._copied = self._computed.copy()  # before the features, to which other processes may add
        self._held = torch.from_numpy(features).to(device, copy=True) if may_stay(device, features.nbytes) else None
        self.size = features.nbytes

    def read(self, rows: NDArray[np.integer], numbers: NDArray[np.int64]) -> Tensor:
        """The features of these views, by row and number of the view, as they are kept."""
        self._computed |= self._kept
        views = np.ravel_multi_index((rows, numbers), self._computed.shape)
        missing = np.unique(views[~self._computed[rows, numbers]])
        whole = -(-len(missing) // self._batch) * self._batch
        # Batches are filled up with other views of these images, which will be needed soon.
        wanted = np.concatenate([missing, np.setdiff1d(self._missing_of(np.unique(rows)), missing)])[:whole]
        for start in range(0, len(wanted), self._batch):
            self._compute(wanted[start : start + self._batch])
        self._computed.flat[wanted] = True
        if self._held is None:
            return torch.from_numpy(self._features[rows, numbers]).permute(0, 3, 1, 2)
        late = ~self._copied[rows, numbers]
        if late.any():  # another process has computed them
            self._hold(rows[late], numbers[late], torch.from_numpy(self._features[rows[late], numbers[late]]))
        return self._held[self._there(rows, numbers)].permute(0, 3, 1, 2)

    def close(self) -> None:
        """Write the features to disk, if there are new ones, before they count as computed there."""
        if np.any(self._computed & ~self._kept):
            self._features.flush()
            self._kept |= self._computed

    def _hold(self, rows: NDArray[np.integer], numbers: NDArray[np.integer], features: Tensor) -> None:
        if self._held is not None:
            self._held[self._there(rows, numbers)] = features.to(self._held)
            self._copied[rows, numbers] = True

    def _missing_of(self, rows: NDArray[np.integer]) -> NDArray[np.intp]:
        chosen, numbers = np.nonzero(~self._computed[rows])
        return np.ravel_multi_index((rows[chosen], numbers), self._computed.shape)

    def _there(self, rows: NDArray[np.integer], numbers: NDArray[np.integer]) -> tuple[Tensor, ...]:
        return to_device(np.stack([rows, numbers]), self._device).unbind()

    def _compute(self, wanted: NDArray[np.intp]) -> None:
        rows, numbers = np.unravel_index(wanted, self._computed.shape)
        # The random stream of a view is that of its row and number, whatever batch it is computed in.
        views = [self._views(number, positions=rows[numbers == number]) for number in np.unique(numbers).tolist()]
        order = np.argsort(np.argsort(numbers, kind="stable"))
        # The last bits of a feature depend on the size of its batch, so it is always the same.
        places = torch.from_numpy(order[np.arange(self._batch) % len(order)])
        batch = torch.cat([torch.as_tensor(drawn) for drawn in views])
        features = self._front(batch[places.to(batch.device)]).permute(0, 2, 3, 1)[: len(order)]
        self._features[rows, numbers] = features.cpu().numpy()
        self._hold(rows, numbers, features)


def _memory_map(path: Path, kind: Any, shape: tuple[int, ...]) -> Any:
    """A file's values, zero where nothing was written; readable by its owner alone."""
    if not path.exists():
        path.touch(mode=0o600)
        with path.open("r+b") as stream:
            # Without its blocks, a write to the map of a disk that has become full would end the process.
            os.posix_fallocate(stream.fileno(), 0, int(np.prod(shape)) * np.dtype(kind).itemsize)
    return np.memmap(path, kind, "r+", shape=shape)
