"""Tables of MDH-FL on blood cells. Every row states its number of seeds."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial

import numpy as np

from benchmarks.report import Part
from benchmarks.results import (
    EXPLAINED,
    RATIO,
    RE_DIVIDED,
    Content,
    Pair,
    Results,
    Seeds,
    difference_table,
    pair_by_seed,
    shared_seeds,
    untested_difference,
)
from benchmarks.tables import markdown_table, mean_and_spread, reference_rows
from grandrounds.ordering import natural_sorted

METRICS = {"accuracy": "accuracy", "balanced_accuracy": "balanced accuracy", "f1_macro": "macro-F1"}
COMPARED = (
    *(("mdhfl", "local_sce"), ("mdhfl_ce", "local_ce"), ("mdhfl", "mdhfl_ce"), ("mdhfl", "fedmd")),
    *(("mdhfl_ce", "fedmd"), ("mdhfl", "feddf"), ("mdhfl", "rhfl"), ("rhfl_plus", "mdhfl")),
    *(("mdhfl", "fedmd_sce"), ("mdhfl", "feddf_sce"), ("mdhfl_ce", "rhfl_ce"), ("rhfl", "local_sce")),
    ("rhfl_plus", "local_sce"),
    *(("mdhfl_adjusted", other) for other in ("local_ce", "local_adjusted", "mdhfl_ce", "fedmd", "fedmd_adjusted")),
    *(("mdhfl_five", other) for other in ("local_ce", "mdhfl_adjusted", "fedmd", "fedmd_five", "fedmd_adjusted_five")),
)
DEVELOPMENT = "development"
"""The setting whose seeds are for choices; it is in no table."""
SHOWN = ("local_sce", "mdhfl", "rhfl_plus")
SHOWN_BESIDE_BEST = ("local_ce", "mdhfl_ce")
"""Methods whose mean of predictions is set beside the best site."""
Rounds = dict[str, dict[str, dict[str, float]]]


def parts(results: Results) -> Iterator[Part]:
    """Everything between the markers of the page."""
    report = Report(results)
    for section in (
        *(report.scores, report.moments, report.ensembles, report.differences),
        *(report.per_site, report.per_class, report.traffic),
    ):
        yield from section()


class Report:
    """The tables, with the kinds of noise as rows and the methods as columns of most."""

    def __init__(self, results: Results) -> None:
        self.titles = results.titles
        names = {name: content["title"] for name, content in results.configuration["settings"].items()}
        self.settings = {
            setting: {method: runs[method] for method in self.titles if method in runs}
            for setting, runs in results.settings.items()
            if runs and setting != DEVELOPMENT
        }
        self.noise = {setting: names[setting] for setting in self.settings}
        planned = results.configuration["settings"]
        self.planned = {setting: sorted(planned[setting]["seeds"]) for setting in self.settings}
        self.first = next(
            run for methods in self.settings.values() for runs in methods.values() for run in runs.values()
        )
        self.models = results.configuration.get("heads", self.first["backbones"])

    def _by_noise(self, cell: Callable[[Seeds], object], without: Collection[str] = ()) -> str:
        """A row for each kind of noise, a column for each method."""
        methods = [name for name in self.titles if name not in without]
        rows = []
        for setting, found in self.settings.items():
            counts = sorted({len(runs) for runs in found.values()})
            seeds = " or ".join(map(str, counts))
            rows.append(
                [self.noise[setting], seeds, *(cell(found[name]) if name in found else None for name in methods)]
            )
        return markdown_table(["noise", "seeds", *(self.titles[name] for name in methods)], rows)

    def scores(self) -> Iterator[Part]:
        """The last round."""
        yield (
            "Mean over the four sites (last round), then mean and standard deviation over seeds; the labels of the test "
            "images are clean. A value without a deviation is of one seed."
        )
        for metric, name in METRICS.items():
            yield f"{name[0].upper()}{name[1:]}:"
            yield self._by_noise(partial(_spread, value=partial(_score, metric=metric)))
        true = [
            np.array(next(iter(run["confusion"].values()))).sum(axis=1)
            for run in next(iter(next(iter(self.settings.values())).values())).values()
        ]
        rows = list(reference_rows(true, self.first["classes"], METRICS))
        yield markdown_table(["", "seeds", *METRICS.values()], rows)

    def moments(self) -> Iterator[Part]:
        """Scores after alignment and after local training."""
        alone = [
            method
            for method in self.titles
            if not all(run["aligned_rounds"] for m in self.settings.values() for run in m.get(method, Seeds()).values())
        ]
        one_moment = all(
            len(rounds) == 1
            for methods in self.settings.values() for runs in methods.values() for run in runs.values()
            for rounds in run["last_rounds"].values()
        )  # fmt: skip
        if one_moment or len(alone) == len(self.titles):
            return
        yield "The same models at two moments of a round. Accuracy after learning from the others:"
        yield self._by_noise(partial(_spread, value=_after_others), alone)
        yield "Accuracy after the training on own labels that follows (without the last round, which ends with the others):"
        yield self._by_noise(partial(_spread, value=_after_own_labels), alone)

    def ensembles(self) -> Iterator[Part]:
        """The mean of the sites' predictions."""
        yield "Accuracy of the mean of the four sites' predictions (last round), which no site has by itself:"
        yield self._by_noise(partial(_spread, value=partial(_ensemble, metric="accuracy")))
        title = "mean of predictions - best site, {}"
        rows = [
            [title.format(self.titles[method]), self.noise[setting], len(runs), *_beside_best(runs)]
            for setting, methods in self.settings.items()
            for method, runs in methods.items()
            if method in SHOWN_BESIDE_BEST and sorted(runs) == self.planned[setting]
        ]
        if rows:
            yield (
                "The mean of the predictions beside the best of the four sites, which is chosen by its score on the same "
                f"test images: that favours the site. Of methods that have all planned seeds. {EXPLAINED}"
            )
            yield difference_table(["difference", "noise", "seeds", *METRICS.values()], rows)

    def differences(self) -> Iterator[Part]:
        """Paired by seed: with tests where a pair has all planned seeds, and accuracy without tests elsewhere."""
        tested, means = [], []
        others: dict[str, dict[str, str]] = {noise: {} for noise in self.noise.values()}
        for pair in (pair for pair in COMPARED if set(pair) <= self.titles.keys()):
            title, whole = " - ".join(self.titles[method] for method in pair), []
            for setting, methods in self.settings.items():
                runs = [methods.get(method, Seeds()) for method in pair]
                seeds, found = shared_seeds(*runs), [_pair(*runs, metric) for metric in METRICS]
                if seeds == self.planned[setting]:
                    tested.append([title, self.noise[setting], len(seeds), *found])
                    whole.append(found)
                elif seeds:
                    others[self.noise[setting]][title] = untested_difference(found[0])
            if len(whole) > 1:
                mean = [_mean_pair(pairs) for pairs in zip(*whole, strict=True)]
                means.append([title, f"mean of {len(whole)}", len(mean[0].ours), *mean])
        if tested:
            yield f"Mean over sites, last round, of pairs that have all planned seeds. {EXPLAINED}"
            yield difference_table(["difference", "noise", "seeds", *METRICS.values()], tested + means)
        columns = list(dict.fromkeys(title for found in others.values() for title in found))
        if columns:
            yield (
                "Differences of accuracy where seeds are missing (mean over sites, last round; paired by seed, with 95 % "
                f"intervals from three seeds on; no tests). {RE_DIVIDED}"
            )
            rows = [[noise, *(found.get(title) for title in columns)] for noise, found in others.items() if found]
            yield markdown_table(["noise", *columns], rows)

    def per_site(self) -> Iterator[Part]:
        """Accuracy of each site, which has a network of its own, with the first kind of noise."""
        setting, methods = next(iter(self.settings.items()))
        header = [f"{site}: {self.models[site]}" for site in natural_sorted(self.models)]
        yield f"Accuracy of each site, noise: {self.noise[setting]} (last round, mean over seeds):"
        rows = [
            [self.titles[method], *np.mean([last(run, "accuracy") for run in runs.values()], axis=0).tolist()]
            for method, runs in methods.items()
        ]
        yield markdown_table(["method", *header], rows)

    def per_class(self) -> Iterator[Part]:
        """Recall of each class, with the first kind of noise."""
        setting, methods = next(iter(self.settings.items()))
        yield f"Recall of each class over the predictions of all sites and seeds, noise: {self.noise[setting]} (last round):"
        rows = []
        for method in [method for method in SHOWN if method in methods] or methods:
            pooled = np.sum([list(run["confusion"].values()) for run in methods[method].values()], axis=(0, 1))
            recall = np.diag(pooled) / np.maximum(pooled.sum(axis=1), 1)
            rows.append([self.titles[method], *recall.tolist()])
        yield markdown_table(["method", *self.first["classes"]], rows)

    def traffic(self) -> Iterator[Part]:
        """Bytes on their way."""
        yield "Bytes of tensors per site and run, by the ledger (mean):"
        rows = []
        for method, title in self.titles.items():
            runs = [run for m in self.settings.values() for run in m.get(method, Seeds()).values()]
            if runs:
                sizes = [round(_mean([_bytes(run, way) for run in runs])) for way in ("up.", "down.")]
                rows.append([title, *sizes])
        yield markdown_table(["method", "up", "down"], rows)


def _mean_pair(pairs: Sequence[Pair]) -> Pair:
    """The mean of settings for each seed."""
    ours, theirs = (np.mean([pair[side] for pair in pairs], axis=0).tolist() for side in (0, 1))
    return Pair(ours, theirs, pairs[0].ratio)


def _pair(ours: Seeds, theirs: Seeds, metric: str) -> Pair:
    return pair_by_seed(ours, theirs, partial(_score, metric=metric))


def _spread(runs: Seeds, value: Callable[[Content], float]) -> str:
    return mean_and_spread([value(run) for run in runs.values()])


def _score(run: Content, metric: str) -> float:
    return _mean(last(run, metric))


def _after_others(run: Content) -> float:
    return _mean(_over_rounds(run["aligned_rounds"], "accuracy"))


def _after_own_labels(run: Content) -> float:
    return _mean(_over_rounds(run["last_rounds"], "accuracy", without_end=True))


def _ensemble(run: Content, metric: str) -> float:
    return float(run["ensemble"][metric])


def _beside_best(runs: Seeds) -> list[Pair]:
    """By metric, the mean of the sites' predictions and the best site, each seed."""
    best = {metric: [max(last(run, metric)) for run in runs.values()] for metric in METRICS}
    ratio = next(iter(runs.values())).get(RATIO)
    return [Pair([_ensemble(run, metric) for run in runs.values()], best[metric], ratio) for metric in METRICS]


def last(run: Content, metric: str) -> list[float]:
    """The last round's test score of each site."""
    return [run["test"][site][f"own.{metric}"] for site in natural_sorted(run["test"])]


def _over_rounds(found: Rounds, metric: str, without_end: bool = False) -> list[float]:
    """Of each site, the mean over its rounds."""
    end = max(next(iter(found.values())), key=int) if without_end else None
    return [
        _mean([scores[metric] for number, scores in found[site].items() if number != end])
        for site in natural_sorted(found)
    ]


def _mean(values: list[float]) -> float:
    return float(np.mean(values))


def _bytes(run: Content, way: str) -> float:
    counted = sum(n for site in run["bytes"].values() for part, n in site.items() if part.startswith(way))
    return float(counted / len(run["test"]))
