"""Tables of Fed-Align-CL. Every row states its number of seeds."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from itertools import combinations

import numpy as np

from benchmarks.report import Part
from benchmarks.results import EXPLAINED, Content, Methods, Results, Seeds, difference_table, pair_by_seed
from benchmarks.tables import markdown_table

AREAS = {"roc": "AUC", "precision_recall": "PR-AUC"}
PROBES, SILHOUETTES = ("probe", "probe_benign"), ("silhouette", "silhouette_benign")
MODELS = {"last": "last round", "selected": "least validation loss"}
LAST, CROSS = "last", "cross"
COMPARED = ("fed", "fed_cl", "fed_align", "fed_align_cl")


def parts(results: Results) -> Iterator[Part]:
    """Everything between the markers of the page."""
    for setting, found in results.settings.items():
        if found:
            ordered = {method: found[method] for method in results.titles if method in found}
            yield from Setting(results, setting, ordered).parts()


class Setting:
    """The tables of one setting."""

    def __init__(self, results: Results, setting: str, methods: Methods) -> None:
        self.results, self.name, self.methods = results, setting, methods
        self.configuration = results.configuration
        self.content = self.configuration["settings"][setting]
        self.titles = {**results.titles, CROSS: "Cross"}
        runs = [run for seeds in methods.values() for run in seeds.values()]
        self.sites = list(next(iter(runs[0]["models"].values()))["scores"][LAST]["sites"])
        minimum = self.configuration["min_malignant"]
        malignant = {site: min(_scores(run, LAST, site)["malignant"] for run in runs) for site in self.sites}
        self.counted = [site for site, count in malignant.items() if count >= minimum]

    def parts(self) -> Iterator[Part]:
        """All tables."""
        yield f"**{self.content['title']}.**"
        if self.content.get("table") == "short":
            yield self._short()
        else:
            yield (
                "Median over seeds of the areas at each site. The mean is over the sites with at least "
                f"{self.configuration['min_malignant']} malignant test images in every seed: {', '.join(self.counted)}."
            )
            for model in self.configuration.get("models", MODELS):
                for area, name in AREAS.items():
                    yield f"{name}, model: {MODELS[model]}."
                    yield self._areas(model, area)
            yield from self._statistics()
        yield from self._probes()

    def _areas(self, model: str, area: str) -> str:
        rows = []
        for method, runs in self._with_cross():
            cells = [
                float(np.median([_area(run, model, s, area, method) for run in runs.values()])) for s in self.sites
            ]
            means = [_mean(run, model, self.counted, area, method) for run in runs.values()]
            deviation = float(np.std(means, ddof=1)) if len(means) > 1 else math.nan
            rows.append([self.titles[method], len(runs), *cells, float(np.median(means)), deviation])
        guesses = [self._guess(site, area) for site in self.sites]
        counted = [guess for site, guess in zip(self.sites, guesses, strict=True) if site in self.counted]
        rows.append(["guessing", None, *guesses, float(np.mean(counted)), None])
        described = self.configuration["sites"]
        header = [f"{site} ({described[site]})" if site in described else site for site in self.sites]
        return markdown_table(["method", "seeds", *header, "mean", "deviation of the mean"], rows)

    def _guess(self, site: str, area: str) -> float:
        """The area of guessing: one half, and for average precision the share of malignant images."""
        if area == "roc":
            return 0.5
        found = [_scores(run, LAST, site) for runs in self.methods.values() for run in runs.values()]
        return float(np.median([one["malignant"] / one["images"] for one in found]))

    def _short(self) -> str:
        rows = []
        for method, runs in self.methods.items():
            means = [[_mean(run, LAST, self.counted, area) for run in runs.values()] for area in AREAS]
            rows.append([self.titles[method], len(runs), *(float(np.median(values)) for values in means)])
        guesses = [float(np.mean([self._guess(site, area) for site in self.counted])) for area in AREAS]
        rows.append(["guessing", None, *guesses])
        return markdown_table(["method", "seeds", *(f"{title}, mean" for title in AREAS.values())], rows)

    def _with_cross(self) -> Iterator[tuple[str, Seeds]]:
        for method, runs in self.methods.items():
            yield method, runs
            if method == "single":
                yield CROSS, runs

    def _statistics(self) -> Iterator[Part]:
        """Each two methods, or those that the configuration names, paired by seed."""
        known = self.methods
        rows: list[list[object]] = []
        for one, other in self.configuration.get("pairs", combinations(COMPARED, 2)):
            if one not in known or other not in known:
                continue
            pairs = [
                pair_by_seed(known[other], known[one], partial(_mean, model=LAST, sites=self.counted, area=area))
                for area in AREAS
            ]
            rows.append([f"{self.titles[other]} - {self.titles[one]}", len(pairs[0].ours), *pairs])
        if rows:
            yield f"Mean over the sites that count, last round. {EXPLAINED}"
            yield difference_table(["difference", "seeds", *AREAS.values()], rows)

    def _probes(self) -> Iterator[Part]:
        rows, chance = [], math.nan
        for method, runs in self.methods.items():
            layers = [run["models"][name]["scores"][LAST]["layers"] for run in runs.values() for name in _common(run)]
            known = [found["embedding"] for found in layers if found]
            if known:
                chance = known[0]["probe"]["chance"]
                cells = [[found[kind]["accuracy"] for found in known] for kind in PROBES]
                cells += [[found[kind] for found in known] for kind in SILHOUETTES]
                rows.append([self.titles[method], len(known), *(float(np.mean(cell)) for cell in cells)])
        if rows:
            yield (
                "How far the embeddings of the one model tell the sites of test images apart: balanced accuracy of a linear "
                f"probe (chance {chance:.2f}) and silhouette, of all images and of benign ones alone; means over seeds."
            )
            header = ["probe", "probe, benign", "silhouette", "silhouette, benign"]
            yield markdown_table(["method", "seeds", *header], rows)


def _common(run: Content) -> list[str]:
    """The names of a run's models that serve all sites."""
    return [name for name in run["models"] if name in ("federation", "pooled")]


def _scores(run: Content, model: str, site: str) -> dict[str, float]:
    """The scores at a site of the model that is meant for it; of the last round where no other was tested."""
    trained = run["models"][next(iter(_common(run)), site)]["scores"]
    scores: dict[str, float] = trained.get(model, trained[LAST])["sites"][site]
    return scores


def _area(run: Content, model: str, site: str, area: str, method: str) -> float:
    """An area at a site; for Cross the mean of the other sites' models there."""
    if method != CROSS:
        return float(_scores(run, model, site)[area])
    others = [trained["scores"][model]["sites"][site][area] for name, trained in run["models"].items() if name != site]
    return float(np.mean(others))


def _mean(run: Content, model: str, sites: list[str], area: str, method: str = "") -> float:
    return float(np.mean([_area(run, model, site, area, method) for site in sites]))
