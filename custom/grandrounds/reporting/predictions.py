"""Test predictions that sites have written, and predictions of a run's model where the sites' images are on this machine."""

from __future__ import annotations

import csv
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from grandrounds.csv_files import csv_cells
from grandrounds.data.manifest import read_manifest
from grandrounds.data.site import Part, SiteData, load_site_data, locate_dataset
from grandrounds.errors import DataError
from grandrounds.evaluation.bootstrap import Cases, questions_of
from grandrounds.evaluation.curves.binned import SiteCurves
from grandrounds.evaluation.curves.files import read_curves
from grandrounds.protocol.names import CASE
from grandrounds.protocol.problem import Problem
from grandrounds.reporting.run import ReadRun

if TYPE_CHECKING:
    from torch import nn

    from grandrounds.protocol.task import Task


class SitePredictions(NamedTuple):
    """The predictions of a run's model for a split of a site's images.

    Attributes:
        images: shape ``(n, size, size, channels)``, 8 bit.
        probabilities: of the classes, shape ``(n, classes)``.
        model: in evaluation mode.
    """

    site: str
    images: NDArray[np.uint8]
    labels: NDArray[np.int64]
    probabilities: NDArray[np.float64]
    model: nn.Module


def read_tests(
    folder: Path, sites: Sequence[str], model: str, task: Task, classes: Sequence[str]
) -> dict[str, tuple[Cases, ...]]:
    """The predictions of all sites that have some, for each question of the task.

    Raises:
        DataError: if a file is damaged or of another vocabulary; file and line are named.
    """
    paths = {site: _file(folder, site, model) for site in sites}
    tests = {site: read_predictions(path, task, classes) for site, path in paths.items() if path.is_file()}
    return {site: cases for site, cases in tests.items() if any(len(case.labels) for case in cases)}


def read_site_curves(folder: Path, sites: Sequence[str], model: str, classes: Sequence[str]) -> dict[str, SiteCurves]:
    """The curves of all sites that have written theirs; arguments as :func:`read_tests`.

    Raises:
        DataError: if a file is damaged or of another vocabulary.
    """
    paths = {site: folder / site / f"curves_{model}.json" for site in sites}
    return {site: read_curves(path, classes) for site, path in paths.items() if path.is_file()}


def read_predictions(path: Path, task: Task, classes: Sequence[str]) -> tuple[Cases, ...]:
    """The predictions in one file; images without a known label are left out.

    Raises:
        DataError: if the header is of another vocabulary, or a line has a cell too few or a value that is none.
    """
    expected = ["image", *task.prediction_header(classes), CASE]
    with path.open(newline="", encoding="utf-8") as stream:
        header, *rows = [*map(csv_cells, csv.reader(stream))] or [[]]
    if header != expected:
        raise DataError(
            f"{path} is of another vocabulary or version than its run: expected {', '.join(expected)}, got "
            f"{', '.join(header) or 'no table of predictions'}; run the job again"
        )
    labels, probabilities, cases = [], [], []
    for line, (_, *cells) in enumerate(rows, start=2):
        try:
            label, values = task.read_prediction(cells[:-1], classes)
        except (ValueError, IndexError) as error:
            raise DataError(f"{path} line {line}: {error}; the file was cut or altered") from error
        labels.append(label)
        probabilities.append(values)
        cases.append(cells[-1].zfill(12))
    if not rows:
        return ()
    known_labels = np.stack(labels)
    known = task.known(known_labels)
    named = [case for case, kept in zip(cases, known, strict=True) if kept]
    return tuple(questions_of(task, known_labels[known], np.array(probabilities)[known], named))


def read_columns(
    folder: Path, sites: Sequence[str], model: str, dataset: str, sites_dir: Path
) -> dict[str, tuple[str, ...]]:
    """The further columns of the sites' manifests for the predicted images, in the order of the sites' predictions.

    Args:
        folder: the run's results, with a folder for each site.
        sites: those with predictions.
        model: whose predictions they are.
        dataset: the job's name of the data set.
        sites_dir: the partition of the run.

    Returns:
        A value for each image by column, ``source`` among them; empty where a site has none.
    """
    rows: list[dict[str, str]] = []
    for site in sites:
        records = {
            record.image: record for record in read_manifest(locate_dataset(site, dataset, [sites_dir]).manifest)
        }
        with _file(folder, site, model).open(newline="", encoding="utf-8") as stream:
            header, *lines = map(csv_cells, csv.reader(stream))
        image, label = header.index("image"), header.index("label")
        chosen = [records[line[image]] for line in lines if line[label]]
        rows += [{**({"source": one.source} if one.source else {}), **dict(one.more)} for one in chosen]
    columns = dict.fromkeys(column for row in rows for column in row)
    return {column: tuple(row.get(column, "") for row in rows) for column in columns}


def site_predictions(run: ReadRun, sites_dir: Path, split: Part) -> Iterator[SitePredictions]:
    """Predict a split of each tested site with the selected model.

    ``sites_dir`` has one folder per site, as the run had it. Without weights, or where each site has its own model, there is
    nothing to predict with.

    Yields:
        Sites with labelled images in the split, one after the other.

    Raises:
        GrandRoundsError: if a site's data or the model are not as they must be.
    """
    if run.origin.weights is None or run.tests.model != "common":
        return
    from grandrounds.evaluation.prediction import predict, tensors_of
    from grandrounds.models.trained import trained_models

    problem = Problem.from_dict(run.log.problem)
    model_of = trained_models(problem.model_spec(pretrained=False), run.origin.weights, run.log.seed)
    for site in run.tests.questions:
        data = site_data_of(problem, site, sites_dir)
        rows = data.rows(split)
        if len(rows):
            model = model_of((data.images, data.rows("train")))
            probabilities = (
                predict(model, tensors_of(data.images), rows, problem.kind, problem.test_view).double().numpy()
            )
            yield SitePredictions(site, data.images[rows], data.labels[rows], probabilities, model)


def site_data_of(problem: Problem, site: str, sites_dir: Path) -> SiteData:
    """A site's images as its run had them, from the folder of its partition.

    Raises:
        GrandRoundsError: if they are not there or not as they must be.
    """
    location = locate_dataset(site, problem.dataset, [sites_dir])
    with decoded_images() as cache:
        return load_site_data(location, problem, cache)


def _file(folder: Path, site: str, model: str) -> Path:
    return folder / site / f"predictions_{model}.csv"


@contextmanager
def decoded_images() -> Iterator[Path]:
    """The folder of decoded images that the environment names, else one that is removed afterwards."""
    from grandrounds.protocol.paths import CACHE_VARIABLE

    named = os.environ.get(CACHE_VARIABLE)
    if named:
        yield Path(named)
        return
    with tempfile.TemporaryDirectory(prefix="grandrounds-") as temporary:
        yield Path(temporary)
