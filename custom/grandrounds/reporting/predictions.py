"""Test predictions that sites have written, and predictions of a run's model where the sites' images are on this machine."""

from __future__ import annotations

import csv
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from grandrounds.data.manifest import read_manifest, read_table
from grandrounds.data.site import Part, SiteData, load_site_data, locate_dataset
from grandrounds.errors import DataError
from grandrounds.evaluation.bootstrap import Cases, cases_of
from grandrounds.evaluation.counts import SiteCounts, counts_from_json
from grandrounds.evaluation.curves import SiteCurves, read_curves
from grandrounds.evaluation.multi_label.metrics import finding_cases
from grandrounds.protocol.problem import Problem
from grandrounds.reporting.run import MODELS, Run

if TYPE_CHECKING:
    from torch import nn

CaseGroups = Callable[[str, str, Sequence[str]], list[str]]
"""From site, data set and images to the patient or lesion of each image."""
PREFIX = "probability_"
FIXED = ["image", "label", "predicted"]


class SitePredictions(NamedTuple):
    """The predictions of a run's model for a split of a site's images.

    Attributes:
        images: shape ``(n, size, size, channels)``, 8 bit.
        probabilities: of the classes, shape ``(n, classes)``.
        groups: the patient or lesion of each image.
        model: in evaluation mode.
    """

    site: str
    images: NDArray[np.uint8]
    labels: NDArray[np.int64]
    probabilities: NDArray[np.float64]
    groups: list[str]
    model: nn.Module


def predicted_model(folder: Path, sites: Sequence[str], wanted: str | None = None) -> str:
    """Whose predictions there are: the wanted ones, else the federation's model where it has one, else each site's own."""
    for model in (*([wanted] if wanted else []), *MODELS):
        if any(_file(folder, site, model).is_file() for site in sites):
            return model
    return "common"


def read_site_predictions(
    folder: Path, sites: Sequence[str], model: str, classes: Sequence[str], dataset: str, groups: CaseGroups | None
) -> dict[str, Cases]:
    """The predictions of all sites that have some; without ``groups`` each image is a case.

    Raises:
        DataError: if a file is damaged or of another vocabulary; file and line are named.
    """
    found = {}
    for site in sites:
        path = _file(folder, site, model)
        if path.is_file():
            cases = read_predictions(path, classes, site, dataset, groups)
            if len(cases.labels):
                found[site] = cases
    return found


def read_tests(
    folder: Path,
    sites: Sequence[str],
    model: str,
    classes: Sequence[str],
    dataset: str,
    groups: CaseGroups | None,
    multi: bool,
) -> tuple[dict[str, Cases], dict[str, list[Cases]]]:
    """The predictions of classes, and those of findings by site: one is empty. Errors as :func:`read_site_predictions`."""
    if multi:
        return {}, _read_site_findings(folder, sites, model, classes, dataset, groups)
    return read_site_predictions(folder, sites, model, classes, dataset, groups), {}


def unit_of(predictions: Sequence[Cases]) -> str:
    """What a case is: ``patient or lesion``, or ``image``."""
    return "patient or lesion" if any(one.count < len(one.labels) for one in predictions) else "image"


def _read_site_findings(
    folder: Path, sites: Sequence[str], model: str, findings: Sequence[str], dataset: str, groups: CaseGroups | None
) -> dict[str, list[Cases]]:
    paths = {site: _file(folder, site, model) for site in sites}
    found = {
        site: _read_findings(path, findings, site, dataset, groups) for site, path in paths.items() if path.is_file()
    }
    return {site: cases for site, cases in found.items() if any(len(one.labels) for one in cases)}


def _read_findings(
    path: Path, findings: Sequence[str], site: str, dataset: str, groups: CaseGroups | None
) -> list[Cases]:
    columns = [f"{kind}_{name}" for kind in ("label", "probability") for name in findings]
    rows = [row for _, row in read_table(path, ("image", *columns))] if _has_rows(path) else []
    named = groups(site, dataset, [row["image"] for row in rows]) if groups else None
    try:
        labels, probabilities = (
            np.array([[float(row[f"{kind}_{name}"] or -1) for name in findings] for row in rows]).reshape(
                -1, len(findings)
            )
            for kind in ("label", "probability")
        )
        return finding_cases(labels.astype(np.int64), probabilities, named)
    except ValueError as error:
        raise DataError(f"{path}: a label or probability is wrong ({error}); run the job again") from error


def _has_rows(path: Path) -> bool:
    with path.open(encoding="utf-8") as stream:
        return sum(1 for _ in zip(stream, range(2), strict=False)) > 1


def read_site_curves(folder: Path, sites: Sequence[str], model: str, classes: Sequence[str]) -> dict[str, SiteCurves]:
    """The curves of all sites that have written theirs; arguments as :func:`read_site_predictions`.

    Raises:
        DataError: if a file is damaged or of another vocabulary.
    """
    paths = {site: folder / site / f"curves_{model}.json" for site in sites}
    return {site: read_curves(path, classes) for site, path in paths.items() if path.is_file()}


def read_class_counts(
    content: Mapping[str, Mapping[str, Any]], model: str, classes: int, path: Path, multi: bool = False
) -> dict[str, SiteCounts]:
    """Each site's released counts of one model's test predictions, as the run's summary has them.

    Raises:
        DataError: if they are damaged; the file is named.
    """
    try:
        released = {site: found[model] for site, found in content.items() if model in found}
        return {site: counts_from_json(one, classes, multi) for site, one in released.items()}
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise DataError(f"{path}: counts are damaged ({error}); restore the file or run the job again") from error


def read_predictions(path: Path, classes: Sequence[str], site: str, dataset: str, groups: CaseGroups | None) -> Cases:
    """The predictions in one file; images without a label are left out.

    Raises:
        DataError: if the header is of another vocabulary, or a line has a cell too few or a value that is none.
    """
    with path.open(newline="", encoding="utf-8") as stream:
        reader = csv.reader(stream)
        header = next(reader, [])
        _require_header(header, classes, path)
        index = {name: number for number, name in enumerate(classes)}
        images, labels, rows = [], [], []
        for line, cells in enumerate(reader, start=2):
            if len(cells) != len(header):
                raise DataError(f"{path} line {line}: {len(cells)} cells, expected {len(header)}; the file was cut")
            if cells[1]:
                if cells[1] not in index:
                    classes_known = ", ".join(classes)
                    raise DataError(f"{path} line {line}: label {cells[1]!r} is not one of the classes {classes_known}")
                labels.append(index[cells[1]])
                images.append(cells[0])
                rows.append(cells[len(FIXED) :])
    try:
        probabilities = np.array(rows, np.float64).reshape(len(rows), len(classes))
    except ValueError as error:
        raise DataError(f"{path}: a probability is no number ({error})") from error
    if not np.allclose(probabilities.sum(axis=1), 1, atol=1e-3) or (probabilities < 0).any():
        raise DataError(f"{path}: a row of probabilities does not sum to one")
    named = groups(site, dataset, images) if groups else None
    return cases_of(np.array(labels, np.int64), probabilities, named)


def groups_in(sites_dir: Path) -> CaseGroups:
    """Look patients and lesions up in the manifests of a partition, a folder with one folder per site."""

    def look_up(site: str, dataset: str, images: Sequence[str]) -> list[str]:
        """The images' groups by the site's own manifest."""
        path = locate_dataset(site, dataset, [sites_dir]).manifest
        known = {record.image: record.group for record in read_manifest(path).records}
        missing = sum(image not in known for image in images)
        if missing:
            raise DataError(
                f"{site}: {missing} of {len(images)} predicted images are not in {path}; give the partition of this run"
            )
        return [known[image] for image in images]

    return look_up


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
            record.image: record
            for record in read_manifest(locate_dataset(site, dataset, [sites_dir]).manifest).records
        }
        with _file(folder, site, model).open(newline="", encoding="utf-8") as stream:
            images = [row["image"] for row in csv.DictReader(stream) if row["label"]]
        chosen = [records[image] for image in images]
        rows += [{**({"source": one.source} if one.source else {}), **dict(one.more)} for one in chosen]
    columns = dict.fromkeys(column for row in rows for column in row)
    return {column: tuple(row.get(column, "") for row in rows) for column in columns}


def site_predictions(run: Run, sites_dir: Path, split: Part) -> Iterator[SitePredictions]:
    """Predict a split of each tested site with the selected model.

    ``sites_dir`` has one folder per site, as the run had it. Without weights, or where each site has its own model, there is
    nothing to predict with.

    Yields:
        Sites with labelled images in the split, one after the other.

    Raises:
        GrandRoundsError: if a site's data or the model are not as they must be.
    """
    if run.weights is None or run.model != "common":
        return
    from grandrounds.evaluation.external import predict, tensors_of
    from grandrounds.models.trained import trained_models

    problem = Problem.from_dict(run.problem)
    model_of = trained_models(problem.model_spec(pretrained=False), run.weights, run.seed)
    for site in run.predictions:
        data = site_data_of(problem, site, sites_dir)
        rows = data.rows(split)
        if len(rows):
            model = model_of((data.images, data.rows("train")))
            probabilities = predict(model, tensors_of(data.images), rows).double().numpy()
            groups = [data.groups[row] for row in rows]
            yield SitePredictions(site, data.images[rows], data.labels[rows], probabilities, groups, model)


def site_data_of(problem: Problem, site: str, sites_dir: Path) -> SiteData:
    """A site's images as its run had them, from the folder of its partition.

    Raises:
        GrandRoundsError: if they are not there or not as they must be.
    """
    location = locate_dataset(site, problem.dataset, [sites_dir])
    with decoded_images() as cache:
        return load_site_data(location, problem.classes, problem.image_size, problem.channels, cache, task=problem.kind)


def _file(folder: Path, site: str, model: str) -> Path:
    return folder / site / f"predictions_{model}.csv"


def _require_header(header: Sequence[str], classes: Sequence[str], path: Path) -> None:
    expected = [*FIXED, *(f"{PREFIX}{name}" for name in classes)]
    if list(header) != expected:
        found = [name.removeprefix(PREFIX) for name in header if name.startswith(PREFIX)]
        raise DataError(
            f"{path} is of another vocabulary than its run: expected {', '.join(classes)}, got "
            f"{', '.join(found) or 'no probabilities'}"
        )


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
