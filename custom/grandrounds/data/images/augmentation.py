"""Views by name, each drawn from a random stream of its own.

A view depends on its name, key, step and position in the batch alone, so that the strong views of the few samples that pass
a confidence threshold can be drawn after the weak ones were predicted, and the result is as if all had been drawn.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from grandrounds.data.images.views import VIEWS, RegisteredView, View
from grandrounds.errors import ConfigurationError
from grandrounds.options import require_type
from grandrounds.plugins import Registry

OwnView = TypeVar("OwnView", bound=type[View])
OWN_VIEWS: Registry[RegisteredView] = Registry("view")
FIRST_OWN_STREAM = 100
"""The least number of a plug-in's random stream."""
_TRIED_SEEDS, _TRIED_SHAPE = 32, (24, 24, 3)


class MonaiView:
    """A view by MONAI: a class of it states ``transform``, an array transform or a ``Compose`` of several.

    The transform gets an image as float32 ``(channels, height, width)`` in [0, 1] and gives one of that shape; values beyond
    are clipped. For each image its random state is set from the view's stream. When the class is defined, two copies of
    the transform are compared on 32 seeds, one after the other by one copy, and each by a fresh one.

    Raises:
        ConfigurationError: when the class is defined, or an image is drawn, if the transform has no ``set_random_state``,
            fails, gives another shape or values that are not finite, or two results for one random state.

    Example::

        @gr.register_view("tilted", stream=102)
        class Tilted(gr.MonaiView):
            transform = RandAffine(prob=1, rotate_range=0.3, padding_mode="zeros")
    """

    transform: ClassVar[Any] = None

    def __init_subclass__(cls) -> None:
        """Refuse a transform that a seed does not determine."""
        if not callable(getattr(cls.transform, "set_random_state", None)):
            raise ConfigurationError(
                f"view {cls.__name__}: transform must be a random array transform of MONAI or a Compose, got "
                f"{type(cls.transform).__name__}"
            )
        image = np.random.Generator(np.random.Philox(0)).integers(0, 256, _TRIED_SHAPE, dtype=np.uint8)
        used = cls()
        for seed in range(_TRIED_SEEDS):
            drawn, again = (view.draw(image, np.random.Generator(np.random.Philox(seed))) for view in (used, cls()))
            if not np.array_equal(drawn, again):
                raise ConfigurationError(
                    f"{cls._name()} gives two results for one random state; take a transform whose only randomness is that "
                    "of set_random_state"
                )

    def __init__(self) -> None:
        # A transform keeps what it has drawn, so no two threads may share one.
        self._own = copy.deepcopy(type(self).transform)

    def draw(self, image: NDArray[np.uint8], generator: np.random.Generator) -> NDArray[np.uint8]:
        """The image as the transform changes it, rounded to 8 bits."""
        given = np.moveaxis(image, -1, 0) / np.float32(255)
        try:
            self._own.set_random_state(seed=int(generator.integers(2**32)))
            drawn = np.asarray(self._own(given))
        except Exception as error:  # foreign code
            reason = " ".join(str(error.__cause__ or error).split())[:200]
            raise ConfigurationError(
                f"{self._name()} fails for an array float32 {given.shape}: {reason}; take the form for arrays (RandAffine, "
                "not RandAffined)"
            ) from error
        kept = drawn.shape == given.shape and drawn.dtype.kind in "fiu"
        if not kept or not np.isfinite(drawn).all():
            what = "values that are not finite" if kept else f"{drawn.dtype} {drawn.shape}"
            raise ConfigurationError(
                f"{self._name()} makes {what} of an array float32 {given.shape}; keep shape and range"
            )
        return np.rint(np.moveaxis(drawn, 0, -1).clip(0, 1) * 255).astype(np.uint8)

    @classmethod
    def _name(cls) -> str:
        return f"view {cls.__name__}: MONAI's {type(cls.transform).__name__}"


def register_view(name: str, *, stream: int) -> Callable[[OwnView], OwnView]:
    """Register a view for the options that name one, such as ``executor.weak_view``; use it as a decorator of a class.

    Args:
        name: lower-case letters, digits and ``_``; none of the package's own.
        stream: the number of the view's random stream, at least 100 and below 2^63. It is part of every draw: keep it
            as long as results are to be repeated, and take another one for another view.

    Returns:
        A decorator of a class with a method ``draw(image, generator)``, see :class:`~grandrounds.data.images.views.View`.

    Raises:
        ConfigurationError: if the name is taken or has other characters, the number is taken or out of range, or the class
            has no such method.

    Example::

        @register_view("mirror", stream=101)
        class Mirror:
            def draw(self, image, generator):
                return image[:, ::-1].copy() if generator.random() < 0.5 else image
    """
    OWN_VIEWS.require_name(name)
    require_type(stream, int, f"view {name}: stream")
    if not FIRST_OWN_STREAM <= stream < 2**63:
        raise ConfigurationError(
            f"view {name}: stream must be at least {FIRST_OWN_STREAM} and below 2^63, got {stream}"
        )
    for other, (_, known) in OWN_VIEWS.entries.items():
        if known.stream == stream and other != name:
            raise ConfigurationError(f"view {name}: stream {stream} is that of view {other}; take another number")

    def register(view: OwnView) -> OwnView:
        if not inspect.isclass(view) or not callable(getattr(view, "draw", None)):
            raise ConfigurationError(f"view {name}: {view!r} must be a class with a method draw(image, generator)")
        OWN_VIEWS.add(name, RegisteredView(view, stream), view)
        return view

    return register


def view_names() -> tuple[str, ...]:
    """The names of all views, the package's first."""
    return (*VIEWS, *OWN_VIEWS.all(VIEWS))


def view_named(name: str, option: str = "view") -> RegisteredView:
    """The view of that name.

    Args:
        name: of the view.
        option: how the error calls what names it.

    Raises:
        ConfigurationError: if there is none; those that exist are named.
    """
    view = VIEWS.get(name) or OWN_VIEWS.all(VIEWS).get(name)
    if view is None:
        raise ConfigurationError(
            f"{option} must be one of {', '.join(view_names())}, got {name!r}; register others with gr.register_view"
        )
    return view


def sample_generator(view: str, key: int, step: int, position: int) -> np.random.Generator:
    """The generator of one view of one sample, independent of the order in which generators are made.

    ``key`` is the seed of the purpose, for example ``derive_seed(run, round, site, "unlabelled")``; ``step`` the local step
    and ``position`` the sample's position in the step's batch, both from 0. Views of different kinds share nothing.
    """
    return _generator(view_named(view).stream, key, step, position)


def draw_views(
    images: NDArray[np.uint8],
    rows: NDArray[np.integer],
    view: str,
    key: int,
    step: int,
    positions: NDArray[np.integer] | None = None,
    **options: Any,
) -> NDArray[np.uint8]:
    """Draw one view of each image of a batch, or of some of them.

    Args:
        images: all images, shape ``(samples, height, width, channels)``, values 0..255; may be memory-mapped.
        rows: the batch: which images, by row.
        view: the name of the view.
        key: the purpose's seed; see :func:`sample_generator`.
        step: the local step, from 0.
        positions: draw only these positions of the batch; what comes out for them is as if all had been drawn.
        options: of the view, for example of :class:`~grandrounds.data.images.views.Strong`.

    Returns:
        A new array of shape ``(batch, height, width, channels)``, or ``(len(positions), ...)``.

    Raises:
        ConfigurationError: if there is no such view.
        ValueError: if ``images`` is not uint8 with four dimensions, or an option is out of range.
    """
    if images.dtype != np.uint8 or images.ndim != 4:
        raise ValueError(f"images must be uint8 (samples, height, width, channels), got {images.dtype} {images.shape}")
    make, stream = view_named(view)
    chosen = np.arange(len(rows)) if positions is None else positions
    batch: NDArray[np.uint8] = np.array(images[rows[chosen]])
    if view == "none":  # no generator for each image of every evaluation
        return batch
    drawer = make(**options)
    for index, position in enumerate(chosen.tolist()):
        batch[index] = drawer.draw(batch[index], _generator(stream, key, step, position))
    return batch


def _generator(stream: int, key: int, step: int, position: int) -> np.random.Generator:
    # The lowest word counts the draws; the upper three, which no stream ever reaches, separate the streams.
    counter = np.array([0, position, step, stream], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=counter))
