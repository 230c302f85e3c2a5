"""Figures that show images or embeddings of single cases; they stay where the images are, and no report has them.

A sheet of right, wrong and uncertain predictions; the embeddings of the images in a plane; and, as in Fed-Align-CL's paper,
where several models look in images on which they agree, and in images on which one model differs from all others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from grandrounds.data.images.tensors import to_tensor
from grandrounds.data.site import locate_dataset
from grandrounds.errors import ConfigurationError
from grandrounds.evaluation.explanation import (
    PERPLEXITY,
    Scenario,
    plane_of,
    prediction_maps,
    scenarios,
    share_inside,
    site_silhouette,
)
from grandrounds.models.inference.forward import Forward
from grandrounds.models.split import split_network
from grandrounds.ordering import natural_sorted
from grandrounds.plotting import COLOURS, NORMAL_SIZE, SMALL_SIZE, new_figure
from grandrounds.reporting.comparison import require_one_vocabulary
from grandrounds.reporting.run import ReadRun
from grandrounds.reporting.runs import SitePredictions, named_runs, read_run, site_predictions, split_argument

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
SCENARIO_TITLES: Mapping[Scenario, str] = {
    "all_right": "all right",
    "all_wrong": "all wrong",
    "ours_right_others_wrong": "{ours} right,\nothers wrong",
    "reference_right_ours_wrong": "{reference} right,\n{ours} wrong",
}
PLANE_INCHES, SCENARIO_INCHES = 3.6, 2.2
OVERLAY = 0.5


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
        _draw_map_scale(figure, panels)
    figure.suptitle(title, fontsize=NORMAL_SIZE)
    figure.supxlabel("under each image: its class, then the prediction with its probability", fontsize=SMALL_SIZE)
    return figure


def _draw_case(axes: Axes, image: NDArray[np.uint8], words: str) -> None:
    axes.imshow(image.squeeze(), cmap="gray")
    axes.text(0.5, -0.03, words, ha="center", va="top", fontsize=SMALL_SIZE, transform=axes.transAxes)


def _draw_map_scale(figure: Figure, panels: Any) -> None:
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


def plane_figure(
    plane: NDArray[np.float64], sites: NDArray[np.str_], malignant: NDArray[np.bool_], caption: str
) -> Figure:
    """Draw images as a model embeds them.

    Args:
        plane: the images' positions, shape ``(images, 2)``, see
            :func:`~grandrounds.evaluation.explanation.plane_of`.
        sites: the hospital of each image; with more hospitals than colours, colours repeat.
        malignant: shape ``(images,)``; crosses, all others are circles.
        caption: written below.
    """
    figure = new_figure(PLANE_INCHES, PLANE_INCHES + 0.6)
    axes = figure.subplots()
    for index, site in enumerate(natural_sorted(set(sites.tolist()))):
        colour = COLOURS[index % len(COLOURS)]
        own = sites == site
        benign, cancers = plane[own & ~malignant], plane[own & malignant]
        axes.scatter(benign[:, 0], benign[:, 1], s=7, facecolors="none", edgecolors=colour, linewidths=0.5)
        axes.scatter(cancers[:, 0], cancers[:, 1], s=11, marker="x", color=colour, linewidths=0.8)
        axes.scatter([], [], s=20, color=colour, label=site)
    axes.scatter([], [], s=20, facecolors="none", edgecolors="black", label="not malignant")
    axes.scatter([], [], s=20, marker="x", color="black", label="malignant")
    # Neither axis of such a plane has a meaning or a scale.
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_title("embedding", fontsize=NORMAL_SIZE)
    axes.set_xlabel(caption, fontsize=SMALL_SIZE)
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside lower center", ncols=min(len(labels), 4), fontsize=SMALL_SIZE, frameon=False
    )
    return figure


def breast_masks(images: NDArray[np.uint8]) -> Tensor:
    """Where prepared mammograms, shape ``(images, height, width, channels)``, show the breast: all else is 0.

    Example:
        >>> breast_masks(np.array([[[[0], [9]]]], np.uint8)).tolist()
        [[[False, True]]]
    """
    return torch.from_numpy(images.max(axis=3) > 0)


def scenario_figure(
    images: NDArray[np.uint8],
    maps: Mapping[str, Tensor],
    rows: Mapping[Scenario, Tensor],
    ours: str,
    reference: str,
    breast: bool,
    answers: Mapping[str, Sequence[str]],
) -> Figure:
    """Draw the first image of each scenario in a row, plain and under each model's map, in the image's colours.

    Args:
        images: shape ``(images, height, width, channels)``.
        maps: by model, from 0 to 1, shape ``(images, height, width)``, see
            :func:`~grandrounds.evaluation.explanation.class_activation`.
        rows: indices of the images by scenario, see :func:`~grandrounds.evaluation.explanation.scenarios`.
        ours: the model in question, one of ``maps``.
        reference: the model that it extends.
        breast: whether the images are prepared mammograms: below a map is its share inside the breast (without activation
            a dash).
        answers: texts below the images: under an empty name each image's class, by model its prediction.
    """
    masks = breast_masks(images)
    shares = {name: share_inside(own, masks) for name, own in maps.items()}
    figure = new_figure(SCENARIO_INCHES * (1 + len(maps)), SCENARIO_INCHES * len(SCENARIO_TITLES))
    panels = figure.subplots(len(SCENARIO_TITLES), 1 + len(maps), squeeze=False)
    for row, (scenario, title) in zip(panels, SCENARIO_TITLES.items(), strict=True):
        row[0].set_ylabel(title.format(ours=ours, reference=reference), fontsize=NORMAL_SIZE)
        indices = rows[scenario].tolist()
        for axes in row:
            axes.set_xticks([])
            axes.set_yticks([])
        if not indices:
            row[0].text(0.5, 0.5, "no image", ha="center", va="center", fontsize=SMALL_SIZE, transform=row[0].transAxes)
            continue
        image = images[indices[0]]
        row[0].imshow(image.squeeze(), cmap="gray", vmin=0, vmax=255)
        row[0].set_xlabel(answers[""][indices[0]], fontsize=SMALL_SIZE)
        for axes, name in zip(row[1:], maps, strict=True):
            axes.imshow(image.squeeze(), cmap="gray", vmin=0, vmax=255)
            axes.imshow(maps[name][indices[0]].numpy(), cmap=MAP_COLOURS, vmin=0, vmax=1, alpha=OVERLAY)
            share = shares[name][indices[0]]
            inside = ["—" if share.isnan() else f"{float(share):.0%} inside"] if breast else []
            axes.set_xlabel("\n".join([answers[name][indices[0]], *inside]), fontsize=SMALL_SIZE)
    for axes, name in zip(panels[0][1:], maps, strict=True):
        axes.set_title(name, fontsize=NORMAL_SIZE)
    _draw_map_scale(figure, panels)
    return figure


Step = Callable[[str], None]
"""Called with what is done next."""


def image_figures(run: Path, sites_dir: Path, step: Step) -> dict[str, Figure]:
    """Sheets of each site's test cases, without and with Grad-CAM, of its errors, and the plane of embeddings.

    Raises:
        GrandRoundsError: if the run has no model for all, or the sites' images are not as they must be.
    """
    read = _with_model(run, run.absolute().name)
    drawn: dict[str, Figure] = {}
    step("predicting the test images of the sites")
    sites = list(site_predictions(read, sites_dir, "test"))
    for site, judged in zip(sites, _judged(read, sites), strict=True):
        step(f"drawing the images of {site.site}")
        drawn |= _sheets(site, judged, read.name)
    if len(read.classes) == 2:
        drawn |= _plane(sites)
    return drawn


def scenario_figures(run: Path, others: Sequence[str], sites_dir: Path) -> dict[str, Figure]:
    """Where the models of several runs look: where all are right, all are wrong, and where only one differs.

    The model of ``run`` is in question; the first of the others, ``[NAME=]RUN``, is the one that it extends.

    Returns:
        A row for each of the four scenarios that has an image; nothing without such images.

    Raises:
        GrandRoundsError: if a run has no model for all, they differ in classes or sites, or images are not as they must be.
    """
    named = named_runs([(None, run), *map(split_argument, others)])
    runs = [_with_model(path, name) for name, path in named.items()]
    require_one_vocabulary(runs)
    tested = {one.name: list(site_predictions(one, sites_dir, "test")) for one in runs}
    ours, reference = runs[0], runs[1]
    for one in runs[1:]:
        if [site.site for site in tested[one.name]] != [site.site for site in tested[ours.name]]:
            raise ConfigurationError(f"--against: {one.name} and {ours.name} were tested at different sites")
    judged = {one.name: _joined(_judged(one, tested[one.name])) for one in runs}
    flags = {name: torch.from_numpy(images.right) for name, images in judged.items()}
    rows = [int(chosen[0]) for chosen in scenarios(flags, ours.name, reference.name).values() if len(chosen)]
    if not rows:
        return {}
    shown = {name: images.at(np.array(rows)) for name, images in judged.items()}
    tensors = to_tensor(shown[ours.name].images)
    maps = {name: torch.from_numpy(prediction_maps(sites[0].model, tensors)) for name, sites in tested.items()}
    chosen = scenarios({name: own[rows] for name, own in flags.items()}, ours.name, reference.name)
    breast, answers = _all_mammograms(ours, sites_dir), _answers(shown, ours.name)
    images = shown[ours.name].images
    return {"scenarios": scenario_figure(images, maps, chosen, ours.name, reference.name, breast, answers)}


def _answers(shown: Mapping[str, JudgedImages], ours: str) -> dict[str, list[str]]:
    """Below each image its class, then what each model calls it and how sure it is."""
    words = {name: [images.words(row) for row in range(len(images.labels))] for name, images in shown.items()}
    answers = {"": [f"is {true}" for true, _, _ in words[ours]]}
    return answers | {name: [f"{predicted} {sure}" for _, predicted, sure in rows] for name, rows in words.items()}


def _with_model(path: Path, name: str) -> ReadRun:
    run = read_run(path, name)
    if run.origin.weights is None or run.tests.model != "common":
        raise ConfigurationError(
            f"--sites-dir: {path} has no model for all sites to show cases of: it is not finished, or every site kept its "
            "own"
        )
    return run


def _all_mammograms(run: ReadRun, sites_dir: Path) -> bool:
    """Whether all images are prepared mammograms, whose background is black."""
    dataset = str(run.log.problem["dataset"])
    located = (locate_dataset(site, dataset, [sites_dir]) for site in run.tests.predictions)
    return all(location.reading.preprocess == "mammogram" for location in located)


def _judged(run: ReadRun, sites: Sequence[SitePredictions]) -> list[JudgedImages]:
    return [JudgedImages(one.images, one.labels, one.probabilities, one.predicted, run.classes) for one in sites]


def _joined(parts: Sequence[JudgedImages]) -> JudgedImages:
    """The images of several sites together."""
    joined = {name: np.concatenate([getattr(part, name) for part in parts]) for name in JUDGED}
    return JudgedImages(**joined, classes=parts[0].classes)


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


def _plane(sites: Sequence[SitePredictions]) -> dict[str, Figure]:
    """Embeddings of all sites' test images, and what does not depend on the projection below it."""
    names = np.array([site.site for site in sites for _ in site.labels], np.str_)
    if len(names) <= PERPLEXITY or len(sites) < 2:
        return {}
    embedded = [Forward(split_network(site.model).encoder)(to_tensor(site.images)) for site in sites]
    values = torch.cat(embedded).numpy()
    malignant = np.concatenate([site.labels for site in sites]) == 1
    caption = f"silhouette of the sites {site_silhouette(values, names):.2f}"
    return {"embeddings": plane_figure(plane_of(values, seed=1), names, malignant, caption)}
