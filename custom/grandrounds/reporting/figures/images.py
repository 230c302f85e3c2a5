"""Figures that show images of single cases; they stay where the images are, and no report has them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from grandrounds.data.images.tensors import to_tensor
from grandrounds.errors import ConfigurationError
from grandrounds.evaluation.explanation import (
    prediction_maps,
)
from grandrounds.plotting import NORMAL_SIZE, SMALL_SIZE, new_figure
from grandrounds.reporting.run import ReadRun
from grandrounds.reporting.runs import SitePredictions, read_run, site_predictions

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


SAMPLES, FAILURES = 6, 24
"""Images of each kind on a sheet of samples, and on one of errors."""
MAP_COLOURS = "inferno"
SHEET_TITLES = {
    "right": "right, by falling confidence",
    "wrong": "wrong, by falling confidence",
    "uncertain": "uncertain, by rising confidence",
}

JUDGED = ("images", "labels", "probabilities", "predicted")


@dataclass(frozen=True, eq=False)
class JudgedImages:
    """Images of known class with a model's predictions.

    Attributes:
        images: shape ``(n, size, size, channels)``, 8 bit.
        labels: true classes, shape ``(n,)``.
        probabilities: of the classes, shape ``(n, classes)``.
        predicted: the predicted classes, shape ``(n,)``.
        classes: their names.
    """

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]
    probabilities: NDArray[np.float64]
    predicted: NDArray[np.int64]
    classes: Sequence[str]

    @property
    def right(self) -> NDArray[np.bool_]:
        """Whether each prediction is right, shape ``(n,)``."""
        return self.predicted == self.labels

    def at(self, rows: NDArray[np.int64]) -> JudgedImages:
        """Some of the images."""
        known = {name: getattr(self, name)[rows] for name in JUDGED}
        return JudgedImages(**known, classes=self.classes)

    def words(self, row: int) -> tuple[str, str, str]:
        """The class of an image, the predicted class, and its probability."""
        predicted = int(self.predicted[row])
        return self.classes[int(self.labels[row])], self.classes[predicted], f"{self.probabilities[row, predicted]:.2f}"


class Samples(NamedTuple):
    """Rows of right and wrong predictions by falling confidence, and of all predictions by rising confidence."""

    right: NDArray[np.int64]
    wrong: NDArray[np.int64]
    uncertain: NDArray[np.int64]


def choose_samples(judged: JudgedImages, count: int = SAMPLES) -> Samples:
    """Choose the cases of a sheet, up to ``count`` of each kind; of equal confidence the first.

    Example:
        >>> probabilities = np.array([[0.9, 0.1], [0.4, 0.6], [0.3, 0.7]])
        >>> predicted = probabilities.argmax(axis=1)
        >>> judged = JudgedImages(np.zeros((3, 4, 4, 1), np.uint8), np.array([0, 0, 1]), probabilities, predicted, "ab")
        >>> choose_samples(judged, count=1)
        Samples(right=array([0]), wrong=array([1]), uncertain=array([1]))
    """
    confidence, right = judged.probabilities[np.arange(len(judged.predicted)), judged.predicted], judged.right
    falling = np.argsort(-confidence, kind="stable")
    return Samples(
        falling[right[falling]][:count], falling[~right[falling]][:count], np.argsort(confidence, kind="stable")[:count]
    )


def sample_figure(judged: JudgedImages, title: str, maps: NDArray[np.float32] | None = None) -> Figure:
    """Draw the sheet: a row of ``SAMPLES`` images for each kind, under each image its class and its prediction.

    Args:
        judged: the images to choose from.
        title: whose model and which images.
        maps: laid over the images, where the network finds its evidence; shape ``(n, size, size)``, in [0, 1].
    """
    chosen = choose_samples(judged)
    figure = new_figure(1.5 * SAMPLES + (0.7 if maps is not None else 0), 7.0)
    panels = figure.subplots(len(chosen), SAMPLES, squeeze=False)
    for row, (kind, rows) in zip(panels, chosen._asdict().items(), strict=True):
        row[0].set_title(SHEET_TITLES[kind] if len(rows) else f"{kind}: none", fontsize=NORMAL_SIZE, loc="left")
        for axes in row:
            axes.set_axis_off()
        for axes, index in zip(row, rows.tolist(), strict=False):
            true, predicted, sure = judged.words(index)
            _draw_case(axes, judged.images[index], f"{true}\n{predicted} {sure}")
            if maps is not None:
                axes.imshow(maps[index], cmap=MAP_COLOURS, alpha=0.6 * maps[index], vmin=0, vmax=1)
    if maps is not None:
        draw_map_scale(figure, panels)
    figure.suptitle(title, fontsize=NORMAL_SIZE)
    figure.supxlabel("under each image: its class, then the prediction with its probability", fontsize=SMALL_SIZE)
    return figure


def _draw_case(axes: Axes, image: NDArray[np.uint8], words: str) -> None:
    axes.imshow(image.squeeze(), cmap="gray")
    axes.text(0.5, -0.03, words, ha="center", va="top", fontsize=SMALL_SIZE, transform=axes.transAxes)


def draw_map_scale(figure: Figure, panels: Any) -> None:
    """The scale of Grad-CAM maps beside panels; each map's highest value is 1."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    scale = ScalarMappable(Normalize(0, 1), cmap=MAP_COLOURS)
    bar = figure.colorbar(scale, ax=panels, shrink=0.5, aspect=25, pad=0.01)
    bar.set_label("Grad-CAM, share of the highest value of the map", fontsize=SMALL_SIZE)
    bar.ax.tick_params(labelsize=SMALL_SIZE)


def failure_figure(judged: JudgedImages, place: str) -> Figure:
    """Draw the most confident errors, by falling confidence, each with its class, the prediction and its probability.

    It shows patients' images and stays where they are: no report has it. ``place`` is written above.
    """
    wrong = choose_samples(judged, FAILURES).wrong
    columns = min(SAMPLES, max(len(wrong), 3))
    rows = max(-(-len(wrong) // columns), 1)
    figure = new_figure(1.6 * columns, 2.1 * rows + 0.9)
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes in panels:
        axes.set_axis_off()
    for axes, index in zip(panels, wrong.tolist(), strict=False):
        true, predicted, sure = judged.words(index)
        _draw_case(axes, judged.images[index], f"is {true}\ncalled {predicted}, {sure}")
    errors = int((~judged.right).sum())
    shown = f"the {len(wrong)} most confident of {errors} errors" if errors else "no error"
    figure.suptitle(
        f"{place}: {shown} in {len(judged.labels)} images. Keep this sheet at the place.", fontsize=NORMAL_SIZE
    )
    return figure


Step = Callable[[str], None]
"""Called with what is done next."""


def image_figures(run: Path, sites_dir: Path, step: Step) -> dict[str, Figure]:
    """Sheets of each site's test cases, without and with Grad-CAM, and of its errors.

    Raises:
        GrandRoundsError: if the run has no model for all, or the sites' images are not as they must be.
    """
    read = run_with_model(run, run.absolute().name)
    drawn: dict[str, Figure] = {}
    step("predicting the test images of the sites")
    sites = list(site_predictions(read, sites_dir, "test"))
    for site, judged in zip(sites, judged_images(read, sites), strict=True):
        step(f"drawing the images of {site.site}")
        drawn |= _sheets(site, judged, read.name)
    return drawn


def run_with_model(path: Path, name: str) -> ReadRun:
    """Read a run that has a model for all sites.

    Raises:
        ConfigurationError: if it has none.
        DataError: if it is damaged.
    """
    run = read_run(path, name)
    if run.origin.weights is None or run.tests.model != "common":
        raise ConfigurationError(
            f"--sites-dir: {path} has no model for all sites to show cases of: it is not finished, or every site kept its "
            "own"
        )
    return run


def judged_images(run: ReadRun, sites: Sequence[SitePredictions]) -> list[JudgedImages]:
    """The test images of each site with the predictions of the run's model."""
    return [JudgedImages(one.images, one.labels, one.probabilities, one.predicted, run.classes) for one in sites]


def _sheets(predictions: SitePredictions, judged: JudgedImages, model: str) -> dict[str, Figure]:
    # Of these alone the same ones are chosen again: maps are computed for what is shown.
    shown = judged.at(np.unique(np.concatenate(choose_samples(judged))))
    maps = prediction_maps(predictions.model, to_tensor(shown.images))
    title = f"{predictions.site}, {len(predictions.labels)} test images, model of {model}"
    return {
        f"samples_{predictions.site}": sample_figure(shown, title),
        f"grad_cam_{predictions.site}": sample_figure(shown, title, maps),
        f"failures_{predictions.site}": failure_figure(judged, f"{predictions.site}, model of {model}"),
    }
