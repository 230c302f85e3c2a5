"""Where the models of several runs look, and how the embeddings of the first one lie: figures of Fed-Align-CL's paper.

    python -m benchmarks.fed_align_cl_ham10000.cases RUN OTHER... --sites-dir SITES --out DIR

A sheet has an image that all models have right, one that all have wrong, and those that only one has right, with the
Grad-CAM of each model; for mammograms it gives the share of the map inside the breast. With two classes there are the
embeddings of all test images in a plane, too. The figures show patients' images and must stay where the images are.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.fed_align_cl_ham10000.embeddings import embedding_figures
from grandrounds.data.images.tensors import to_tensor
from grandrounds.data.site import locate_dataset
from grandrounds.errors import ConfigurationError, GrandRoundsError
from grandrounds.evaluation.explanation import prediction_maps
from grandrounds.plotting import NORMAL_SIZE, SMALL_SIZE, new_figure
from grandrounds.reporting.comparison import require_one_vocabulary
from grandrounds.reporting.figures.images import (
    JUDGED,
    MAP_COLOURS,
    JudgedImages,
    draw_map_scale,
    judged_images,
    run_with_model,
)
from grandrounds.reporting.run import ReadRun
from grandrounds.reporting.runs import named_runs, site_predictions, split_argument

Scenario = Literal["all_right", "all_wrong", "ours_right_others_wrong", "reference_right_ours_wrong"]
SCENARIO_TITLES: Mapping[Scenario, str] = {
    "all_right": "all right",
    "all_wrong": "all wrong",
    "ours_right_others_wrong": "{ours} right,\nothers wrong",
    "reference_right_ours_wrong": "{reference} right,\n{ours} wrong",
}
SCENARIO_INCHES = 2.2
OVERLAY = 0.5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "runs", nargs="+", metavar="[NAME=]RUN", help="the model in question, then that which it extends"
    )
    parser.add_argument("--sites-dir", type=Path, required=True, help="folder of the runs' partition")
    parser.add_argument("--out", type=Path, required=True, help="folder for the figures")
    given = parser.parse_args()
    try:
        drawn = case_figures(given.runs, given.sites_dir)
    except GrandRoundsError as error:
        parser.exit(1, f"error: {error}\n")
    given.out.mkdir(parents=True, exist_ok=True)
    for name, figure in drawn.items():
        figure.savefig(given.out / f"{name}.png")
        print(given.out / f"{name}.png")


def share_inside(maps: Tensor, masks: Tensor) -> Tensor:
    """The share of each map's activation that lies inside a mask, for example the breast; NaN without activation.

    Maps are at least zero and, like the masks of bool, of shape ``(batch, height, width)``; the result is ``(batch,)``.

    Raises:
        ValueError: if the shapes differ, the masks are not bool, or a map is negative somewhere.

    Example:
        >>> share_inside(torch.tensor([[[3.0, 1.0]]]), torch.tensor([[[True, False]]]))
        tensor([0.7500])
    """
    if maps.dim() != 3 or maps.shape != masks.shape or masks.dtype != torch.bool:
        raise ValueError(
            f"maps and masks must have one shape (batch, height, width), masks of bool, got {tuple(maps.shape)} and "
            f"{masks.dtype} of {tuple(masks.shape)}"
        )
    if bool((maps < 0).any()):
        raise ValueError("maps must be at least zero: their share would mean nothing")
    return (maps * masks).sum(dim=(1, 2)) / maps.sum(dim=(1, 2))


def scenarios(right: Mapping[str, Tensor], ours: str, reference: str) -> dict[Scenario, Tensor]:
    """The images on which the compared methods agree, and those on which only ours differs.

    Args:
        right: by method, whether it has each image right, bool of shape ``(images,)``.
        ours: the method in question.
        reference: the one that it extends (Fed-Align-CL's is Fed-Align).

    Returns:
        Indices of the images by scenario.

    Raises:
        ValueError: if a method is missing, or there is no other than ours.
    """
    missing = [name for name in (ours, reference) if name not in right]
    others = [flags for name, flags in right.items() if name != ours]
    if missing or not others:
        raise ValueError(f"predictions of {', '.join(missing) or 'a second method'} are missing")
    every = torch.stack(list(right.values()))
    rows: dict[Scenario, Tensor] = {
        "all_right": every.all(dim=0),
        "all_wrong": ~every.any(dim=0),
        "ours_right_others_wrong": right[ours] & ~torch.stack(others).any(dim=0),
        "reference_right_ours_wrong": right[reference] & ~right[ours],
    }
    return {scenario: flags.nonzero()[:, 0] for scenario, flags in rows.items()}


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
            :func:`class_activation`.
        rows: indices of the images by scenario, see :func:`scenarios`.
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
    draw_map_scale(figure, panels)
    return figure


def case_figures(runs: Sequence[str], sites_dir: Path) -> dict[str, Figure]:
    """Where the models of several runs look, and for two classes the embeddings of the first model, by name.

    Args:
        runs: each ``[NAME=]RUN``: the model in question, the one that it extends, and any others.
        sites_dir: the partition whose test images are shown.

    Returns:
        The sheet has a row for each of the four scenarios that has an image; there is none without such images.

    Raises:
        GrandRoundsError: if a run has no model for all, they differ in classes or sites, or images are not as they must be.
    """
    named = named_runs(list(map(split_argument, runs)))
    read = [run_with_model(path, name) for name, path in named.items()]
    require_one_vocabulary(read)
    tested = {run.name: list(site_predictions(run, sites_dir, "test")) for run in read}
    ours, *others = read
    for run in others:
        if [site.site for site in tested[run.name]] != [site.site for site in tested[ours.name]]:
            raise ConfigurationError(f"{run.name} and {ours.name} were tested at different sites")
    drawn = embedding_figures(tested[ours.name]) if len(ours.classes) == 2 else {}
    judged = {run.name: _joined(judged_images(run, tested[run.name])) for run in read}
    flags = {name: torch.from_numpy(images.right) for name, images in judged.items()}
    reference = others[0].name if others else ""
    rows = (
        [int(chosen[0]) for chosen in scenarios(flags, ours.name, reference).values() if len(chosen)] if others else []
    )
    if not rows:
        return drawn
    shown = {name: images.at(np.array(rows)) for name, images in judged.items()}
    tensors = to_tensor(shown[ours.name].images)
    maps = {name: torch.from_numpy(prediction_maps(sites[0].model, tensors)) for name, sites in tested.items()}
    chosen = scenarios({name: own[rows] for name, own in flags.items()}, ours.name, reference)
    breast, answers = _all_mammograms(ours, sites_dir), _answers(shown, ours.name)
    images = shown[ours.name].images
    return drawn | {"scenarios": scenario_figure(images, maps, chosen, ours.name, reference, breast, answers)}


def _answers(shown: Mapping[str, JudgedImages], ours: str) -> dict[str, list[str]]:
    """Below each image its class, then what each model calls it and how sure it is."""
    words = {name: [images.words(row) for row in range(len(images.labels))] for name, images in shown.items()}
    answers = {"": [f"is {true}" for true, _, _ in words[ours]]}
    return answers | {name: [f"{predicted} {sure}" for _, predicted, sure in rows] for name, rows in words.items()}


def _all_mammograms(run: ReadRun, sites_dir: Path) -> bool:
    """Whether all images are prepared mammograms, whose background is black."""
    dataset = str(run.log.problem["dataset"])
    located = (locate_dataset(site, dataset, [sites_dir]) for site in run.tests.predictions)
    return all(location.reading.preprocess == "mammogram" for location in located)


def _joined(parts: Sequence[JudgedImages]) -> JudgedImages:
    """The images of several sites together."""
    joined = {name: np.concatenate([getattr(part, name) for part in parts]) for name in JUDGED}
    return JudgedImages(**joined, classes=parts[0].classes)


if __name__ == "__main__":
    main()
