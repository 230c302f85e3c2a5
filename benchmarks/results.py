"""Committed results of an experiment, read by setting, method and seed."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.experiment import BENCHMARKS, Row, experiment_class
from benchmarks.origins import MARK, marked, mixed
from benchmarks.tables import cell, format_interval, markdown_table
from grandrounds.evaluation.comparisons import Difference, holm, paired_by_seed

Content = dict[str, Any]
Seeds = dict[int, Content]
Methods = dict[str, Seeds]
RATIO = "test_per_training"
"""In a configuration or a setting: test images per training image of a division; every seed divides the data set anew."""


class Results:
    """What has been run of an experiment.

    Args:
        name: of the benchmark.
        folder: of the result files; None takes the committed ones.
    """

    def __init__(self, name: str, folder: Path | None = None) -> None:
        self.folder = folder or BENCHMARKS / name / "results"
        self._experiment = experiment_class(name)(name, results=self.folder)
        self.configuration = self._experiment.configuration
        self.titles = {method: entry["title"] for method, entry in self.configuration["methods"].items()}
        self.settings: dict[str, Methods] = {setting: self._read(setting) for setting in self.configuration["settings"]}
        self.mixed = mixed(self.settings)
        self.titles |= {method: self.titles[method] + MARK for method in marked(self.mixed)}

    def _read(self, setting: str) -> Methods:
        """Results by method and seed; what a setting reuses of another is read from there."""
        content, found = self.configuration["settings"][setting], Methods()
        ratio = {RATIO: content.get(RATIO, self.configuration.get(RATIO))}
        reused = content.get("reuse", {})
        for method in [*reused, *content["methods"]]:
            for seed in content["seeds"]:
                path = self._experiment.result(Row(reused.get(method, setting), method, seed))
                if path.is_file():
                    found.setdefault(method, {})[seed] = json.loads(path.read_text()) | ratio
        return found

    def __bool__(self) -> bool:
        return any(self.settings.values())


class Pair(NamedTuple):
    """Results of two methods, one for each seed that both have; test images per training image, where that is known."""

    ours: Sequence[float]
    theirs: Sequence[float]
    ratio: float | None = None


def pair_by_seed(ours: Seeds, theirs: Seeds, score: Callable[[Content], float]) -> Pair:
    """A score of two methods, for each seed that both have."""
    shared = shared_seeds(ours, theirs)
    ratio = ours[shared[0]].get(RATIO) if shared else None
    return Pair(*([score(runs[seed]) for seed in shared] for runs in (ours, theirs)), ratio)


def resampled_margin(margin: float, n: int, ratio: float) -> float:
    r"""The margin of a mean over n divisions of one data set, corrected for the images that the divisions share.

    .. math:: m \sqrt{1 + n r}

    Student's variance :math:`s^2 / n` becomes :math:`s^2 (1/n + r)` (Nadeau & Bengio, Machine Learning 52, 2003), where r is
    the number of test images per training image.

    Args:
        margin: half of Student's interval.
        n: number of divisions.
        ratio: r.

    Example:
        >>> resampled_margin(0.1, 8, 0.375)
        0.2
    """
    return margin * math.sqrt(1 + n * ratio)


def difference_table(header: Sequence[str], rows: Sequence[Sequence[object]], digits: int = 3) -> str:
    """A table whose cells may be pairs: each is shown as its difference, and corrected for the others in its column."""
    columns = [difference_cells(column, digits) for column in zip(*rows, strict=True)]
    return markdown_table(header, list(zip(*columns, strict=True)), digits)


def difference_cells(column: Sequence[object], digits: int = 3) -> list[object]:
    """Pairs as text: the mean difference with its 95 % interval, the adjusted p-value and the detectable difference."""
    tested = [value for value in column if isinstance(value, Pair)]
    found = {
        str(row): paired_by_seed(value.ours, value.theirs, len(tested))
        for row, value in enumerate(column)
        if isinstance(value, Pair)
    }
    adjusted = holm({row: difference.p_value for row, difference in found.items()})
    ratios = {str(row): value.ratio for row, value in enumerate(column) if isinstance(value, Pair)}
    texts = {row: _text(difference, adjusted[row], digits, ratios[row]) for row, difference in found.items()}
    return [texts.get(str(row), value) for row, value in enumerate(column)]


RE_DIVIDED = (
    "Every seed divides one data set anew: an interval is of other divisions of it, not of other hospitals. *Corrected* "
    "allows for the images that divisions share (Nadeau and Bengio, 2003; r: test images per training image). † only "
    "Student's interval is beside 0: no claim is made of it."
)
EXPLAINED = (
    "Differences are paired by seed: mean [95 % Student interval]; p adjusted for the rows of the column by Holm's method; "
    "d, the smallest difference that Student's test, or the corrected interval, would have found with a probability of "
    "80 %, at 5 % over the number of these rows. Fewer than three seeds give no test. " + RE_DIVIDED
)


def untested_difference(pair: Pair, digits: int = 3) -> str:
    """The mean difference of a pair with its 95 % interval, where there are seeds enough for one."""
    return _interval(paired_by_seed(pair.ours, pair.theirs, 1), digits, pair.ratio)


def _text(found: Difference, adjusted: float, digits: int, ratio: float | None) -> str:
    interval = _interval(found, digits, ratio)
    if math.isnan(found.low):
        return interval
    text = f"{interval}; p {cell(adjusted, 3)}; d {cell(found.detectable, digits)}"
    if ratio is None:
        return text
    return f"{text}, corrected {cell(resampled_margin(found.detectable, found.n, ratio), digits)}"


def _interval(found: Difference, digits: int, ratio: float | None) -> str:
    if math.isnan(found.low):
        return cell(found.mean, digits)
    text = format_interval(found.mean, found.low, found.high, digits)
    if ratio is None:
        return text
    margin = resampled_margin(found.high - found.mean, found.n, ratio)
    ends = f"{cell(found.mean - margin, digits)}, {cell(found.mean + margin, digits)}"
    beside = [round(abs(found.mean) - half, digits) > 0 for half in (found.high - found.mean, margin)]
    mark = " †" if beside == [True, False] else ""
    return f"{text}{mark}, corrected [{ends}] (r {ratio:.2f})"


def shared_seeds(*runs: Mapping[int, Content]) -> list[int]:
    """The seeds that all methods have."""
    return sorted(set.intersection(*map(set, runs)))
