"""Tables and figures of Fed-Align-CL. Every row states its number of seeds."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from itertools import combinations
from typing import Any

import numpy as np

from benchmarks.report import Drawing, Part
from benchmarks.results import EXPLAINED, Content, Methods, Pair, Results, Seeds, difference_table, shared_seeds
from benchmarks.tables import markdown_table
from grandrounds.reporting.figures.images import plane_figure

AREAS = {"roc": "AUC", "precision_recall": "PR-AUC"}
LAYERS = {"embedding": "embedding", "penultimate": "layer before the last"}
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
        """All tables and figures."""
        yield f"**{self.content['title']}.**"
        if self.content.get("table") == "short":
            yield self._short()
        else:
            yield (
                "Median over seeds of the areas at each site. The mean is over the sites with at least "
                f"{self.configuration['min_malignant']} malignant test images in every seed: {', '.join(self.counted)}."
            )
            for model, title in MODELS.items():
                for area, name in AREAS.items():
                    yield f"{name}, model: {title}."
                    yield self._areas(model, area)
            yield from self._statistics()
        yield from self._probes()
        yield from self._planes()

    def _areas(self, model: str, area: str) -> str:
        rows = []
        for method, runs in self._with_cross():
            cells = [
                float(np.median([_area(run, method, model, s, area) for run in runs.values()])) for s in self.sites
            ]
            means = [_mean(run, method, model, self.counted, area) for run in runs.values()]
            deviation = float(np.std(means, ddof=1)) if len(means) > 1 else math.nan
            rows.append([self.titles[method], len(runs), *cells, float(np.median(means)), deviation])
        header = [f"{site} ({self.configuration['sites'].get(site, '')})" for site in self.sites]
        return markdown_table(["method", "seeds", *header, "mean", "deviation of the mean"], rows)

    def _short(self) -> str:
        rows = []
        for method, runs in self.methods.items():
            means = [[_mean(run, method, LAST, self.counted, area) for run in runs.values()] for area in AREAS]
            rows.append([self.titles[method], len(runs), *(float(np.median(values)) for values in means)])
        return markdown_table(["method", "seeds", *(f"{title}, mean" for title in AREAS.values())], rows)

    def _with_cross(self) -> Iterator[tuple[str, Seeds]]:
        for method, runs in self.methods.items():
            yield method, runs
            if method == "single":
                yield CROSS, runs

    def _statistics(self) -> Iterator[Part]:
        """Each two methods, paired by seed."""
        known = {method: self.methods[method] for method in COMPARED if method in self.methods}
        rows: list[list[object]] = []
        for one, other in combinations(known, 2):
            shared = shared_seeds(known[one], known[other])
            pairs = [
                Pair(*([_mean(known[m][seed], m, LAST, self.counted, area) for seed in shared] for m in (other, one)))
                for area in AREAS
            ]
            rows.append([f"{self.titles[other]} - {self.titles[one]}", len(shared), *pairs])
        if rows:
            yield f"Mean over the sites that count, last round. {EXPLAINED}"
            yield difference_table(["difference", "seeds", *AREAS.values()], rows)

    def _probes(self) -> Iterator[Part]:
        rows, chance = [], math.nan
        for method, runs in self.methods.items():
            layers = [run["models"][name]["scores"][LAST]["layers"] for run in runs.values() for name in _common(run)]
            for layer, title in LAYERS.items():
                known = [found[layer] for found in layers if layer in found]
                if known:
                    chance = known[0]["probe"]["chance"] if math.isnan(chance) else chance
                    cells = [[found[kind]["accuracy"] for found in known] for kind in PROBES]
                    cells += [[found[kind] for found in known] for kind in SILHOUETTES]
                    rows.append([self.titles[method], title, len(known), *(float(np.mean(cell)) for cell in cells)])
        if rows:
            yield (
                "How far the layers of the one model tell the sites of test images apart: balanced accuracy of a linear "
                f"probe (chance {chance:.2f}) and silhouette, of all images and of benign ones alone; means over seeds."
            )
            header = ["probe", "probe, benign", "silhouette", "silhouette, benign"]
            yield markdown_table(["method", "layer", "seeds", *header], rows)

    def _planes(self) -> Iterator[Part]:
        if self.content.get("table") == "short":
            return
        drawn = {self.titles[method]: found for method in self.methods if (found := self._plane(method))}
        for layer, title in LAYERS.items():
            planes = {name: found["layers"][layer] for name, found in drawn.items() if layer in found["layers"]}
            if planes:
                images = next(iter(drawn.values()))["images"]
                malignant = np.array(images["malignant"], np.bool_)
                figure = plane_figure(planes, images["site"], malignant, self.configuration["sites"])
                yield Drawing(f"{self.name}_{layer}", f"Test images by {title}", figure, 100)

    def _plane(self, method: str) -> dict[str, Any]:
        path = self.results.folder / f"plane_{self.name}_{method}_{self.content['seeds'][0]}.json"
        return dict(json.loads(path.read_text())) if path.is_file() else {}


def _common(run: Content) -> list[str]:
    """The names of a run's models that serve all sites."""
    return [name for name in run["models"] if name in ("federation", "pooled")]


def _scores(run: Content, model: str, site: str) -> dict[str, float]:
    """The scores at a site of the model that is meant for it; of the last round where no other was tested."""
    trained = run["models"][next(iter(_common(run)), site)]["scores"]
    scores: dict[str, float] = trained.get(model, trained[LAST])["sites"][site]
    return scores


def _area(run: Content, method: str, model: str, site: str, area: str) -> float:
    """An area at a site; for Cross the mean of the other sites' models there."""
    if method != CROSS:
        return float(_scores(run, model, site)[area])
    others = [trained["scores"][model]["sites"][site][area] for name, trained in run["models"].items() if name != site]
    return float(np.mean(others))


def _mean(run: Content, method: str, model: str, sites: list[str], area: str) -> float:
    return float(np.mean([_area(run, method, model, site, area) for site in sites]))
