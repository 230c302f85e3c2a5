"""Write the tables and figures of this benchmark from its results.

    python benchmarks/fed_align_cl_ham10000/report.py

Tables go between the markers of that name in ``docs/methods.md``, figures to ``docs/figures/``. It works with whatever
results are there; each row says of how many seeds it is. ``--configuration`` names another benchmark of this kind.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from grandrounds.evaluation.tables import format_interval, markdown_table, replace_section
from grandrounds.evaluation.tests import compare_methods, paired_difference

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "methods.md"
AREAS = {"roc": "AUC", "precision_recall": "PR-AUC"}
LAYERS = {"embedding": "embedding", "penultimate": "layer before the last"}
PROBES, SILHOUETTES = ("probe", "probe_benign"), ("silhouette", "silhouette_benign")
MODELS = {"last": "last round", "selected": "least validation loss"}
LAST = "last"
CROSS = "cross"
COMPARED = ("fed", "fed_cl", "fed_align", "fed_align_cl")

Run = dict[str, Any]
Runs = dict[int, Run]


class Report:
    """The tables of one configuration.

    Args:
        configuration: a JSON file beside its results.
        figures: folder of the figures.
    """

    def __init__(self, configuration: Path, figures: Path) -> None:
        self.content: dict[str, Any] = json.loads(configuration.read_text())
        self.folder = configuration.parent
        self.name = self.folder.name
        self.figures = figures
        self.titles = {method: entry["title"] for method, entry in self.content["methods"].items()} | {CROSS: "Cross"}
        self.results = {setting: self._read(setting) for setting in self.content["settings"]}

    def _read(self, setting: str) -> dict[str, Runs]:
        """Results by method and seed; what a setting reuses of another is read from there."""
        content = self.content["settings"][setting]
        found: dict[str, Runs] = {}
        places = {method: setting for method in content["methods"]} | content.get("reuse", {})
        for method in [name for name in self.content["methods"] if name in places]:
            for seed in content["seeds"]:
                path = self.folder / "results" / f"{places[method]}_{method}_{seed}.json"
                if path.is_file():
                    found.setdefault(method, {})[seed] = json.loads(path.read_text())
        return found

    def text(self) -> str:
        """Everything that stands between the markers."""
        parts = [part for setting in self.content["settings"] for part in self._setting(setting)]
        return "\n\n".join(parts) if parts else "There are no results yet."

    def _setting(self, setting: str) -> Iterator[str]:
        methods = self.results[setting]
        if not methods:
            return
        yield f"**{self.content['settings'][setting]['title']}.**"
        if self.content["settings"][setting].get("table") != "short":
            counted = self.counted(methods)
            yield (
                "Median over seeds of the areas at each site. The mean is over the sites with at least "
                f"{self.content['min_malignant']} malignant test images in every seed: {', '.join(counted)}."
            )
            for model, title in MODELS.items():
                for area in AREAS:
                    yield f"{AREAS[area]}, model: {title}."
                    yield self._areas(methods, model, area)
            yield from self._statistics(methods)
        else:
            yield self._short(methods)
        yield from self._probes(setting, methods)

    def counted(self, methods: dict[str, Runs]) -> list[str]:
        """The sites with enough malignant test images in every seed for an area to mean something."""
        runs = [run for runs in methods.values() for run in runs.values()]
        least = self.content["min_malignant"]
        sites = _tested(runs[0])
        return [site for site in sites if min(_scores(run, LAST, site)["malignant"] for run in runs) >= least]

    def _areas(self, methods: dict[str, Runs], model: str, area: str) -> str:
        sites, rows = _tested(_any(methods)), []
        counted = self.counted(methods)
        for method, runs in self._with_cross(methods):
            values = {site: [_area(run, method, model, site, area) for run in runs.values()] for site in sites}
            means = [_mean(run, method, model, counted, area) for run in runs.values()]
            cells = [float(np.median(values[site])) for site in sites]
            rows.append([self.titles[method], len(runs), *cells, float(np.median(means)), _spread(means)])
        header = [f"{site} ({self.content['sites'].get(site, '')})" for site in sites]
        return markdown_table(["method", "seeds", *header, "mean", "deviation of the mean"], rows)

    def _short(self, methods: dict[str, Runs]) -> str:
        counted, rows = self.counted(methods), []
        for method, runs in methods.items():
            means = {area: [_mean(run, method, LAST, counted, area) for run in runs.values()] for area in AREAS}
            rows.append([self.titles[method], len(runs), *(float(np.median(values)) for values in means.values())])
        return markdown_table(["method", "seeds", *(f"{title}, mean" for title in AREAS.values())], rows)

    def _with_cross(self, methods: dict[str, Runs]) -> Iterator[tuple[str, Runs]]:
        for method, runs in methods.items():
            yield method, runs
            if method == "single":
                yield CROSS, runs

    def _statistics(self, methods: dict[str, Runs]) -> Iterator[str]:
        """Analysis of variance as in the paper, and differences paired by seed."""
        counted = self.counted(methods)
        known = {method: methods[method] for method in COMPARED if method in methods}
        for area, title in AREAS.items():
            values = {
                m: {seed: _mean(run, m, LAST, counted, area) for seed, run in runs.items()} for m, runs in known.items()
            }
            shared = sorted(set.intersection(*(set(runs) for runs in values.values()))) if len(values) > 1 else []
            if len(shared) < 3:
                continue
            compared = compare_methods({m: [runs[seed] for seed in shared] for m, runs in values.items()})
            yield (
                f"{title}, mean over the sites that count, {len(shared)} seeds: analysis of variance F = "
                f"{compared.statistic:.2f}, p = {compared.p_value:.3g}. Pairs:"
            )
            rows = []
            for (one, other), p_value in compared.pairs.items():
                pair = paired_difference(*([values[m][seed] for seed in shared] for m in (other, one)))
                difference = format_interval(pair.mean, pair.low, pair.high)
                name = f"{self.titles[other]} - {self.titles[one]}"
                rows.append([name, difference, f"{pair.p_value:.3g}", f"{p_value:.3g}"])
            yield markdown_table(["difference", "paired by seed, 95 %", "p, paired", "p, Bonferroni"], rows)

    def _probes(self, setting: str, methods: dict[str, Runs]) -> Iterator[str]:
        rows = []
        for method, runs in methods.items():
            for layer, title in LAYERS.items():
                layers = [
                    run["models"][name]["scores"][LAST]["layers"] for run in runs.values() for name in _common(run)
                ]
                known = [found[layer] for found in layers if layer in found]
                if known:
                    cells = [
                        *(_mean_of(values[kind]["accuracy"] for values in known) for kind in PROBES),
                        *(_mean_of(values[kind] for values in known) for kind in SILHOUETTES),
                    ]
                    rows.append([self.titles[method], title, len(known), *cells])
        if rows:
            chance = _chance(methods)
            yield (
                "How far the layers of the one model tell the sites of test images apart: balanced accuracy of a linear "
                f"probe (chance {chance:.2f}) and silhouette, of all images and of benign ones alone; means over seeds."
            )
            header = ["probe", "probe, benign", "silhouette", "silhouette, benign"]
            yield markdown_table(["method", "layer", "seeds", *header], rows)
        yield from self._planes(setting, methods)

    def _planes(self, setting: str, methods: dict[str, Runs]) -> Iterator[str]:
        if self.content["settings"][setting].get("table") == "short":
            return
        from grandrounds.reporting.figures.embeddings import plane_figure

        drawn = {self.titles[method]: self._plane(setting, method) for method in methods}
        for layer, title in LAYERS.items():
            planes = {name: found["layers"][layer] for name, found in drawn.items() if layer in found["layers"]}
            if planes:
                images = next(found["images"] for found in drawn.values() if found["images"])
                malignant = np.array(images["malignant"], np.bool_)
                figure = plane_figure(planes, images["site"], malignant, self.content["sites"])
                path = self.figures / f"{self.name}_{setting}_{layer}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                figure.savefig(path, dpi=100)
                yield f"![Test images by {title}](figures/{path.name})"

    def _plane(self, setting: str, method: str) -> dict[str, Any]:
        path = self.folder / "results" / f"plane_{setting}_{method}_{self.content['seeds'][0]}.json"
        found: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {"images": None, "layers": {}}
        return found


def _any(methods: dict[str, Runs]) -> Run:
    return next(run for runs in methods.values() for run in runs.values())


def _tested(run: Run) -> list[str]:
    return list(next(iter(run["models"].values()))["scores"][LAST]["sites"])


def _common(run: Run) -> list[str]:
    """The names of a run's models that serve all sites."""
    return [name for name in run["models"] if name in ("federation", "pooled")]


def _scores(run: Run, model: str, site: str) -> dict[str, float]:
    """The scores at a site of the model that is meant for it; of the last round where no other was tested."""
    trained = run["models"][next(iter(_common(run)), site)]["scores"]
    scores: dict[str, float] = trained.get(model, trained[LAST])["sites"][site]
    return scores


def _area(run: Run, method: str, model: str, site: str, area: str) -> float:
    """An area at a site; for Cross the mean of the other sites' models there."""
    if method != CROSS:
        return float(_scores(run, model, site)[area])
    others = [trained["scores"][model]["sites"][site][area] for name, trained in run["models"].items() if name != site]
    return float(np.mean(others))


def _mean(run: Run, method: str, model: str, sites: list[str], area: str) -> float:
    return float(np.mean([_area(run, method, model, site, area) for site in sites]))


def _mean_of(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))


def _spread(values: list[float]) -> float:
    return float(np.std(values, ddof=1)) if len(values) > 1 else math.nan


def _chance(methods: dict[str, Runs]) -> float:
    for runs in methods.values():
        for run in runs.values():
            for name in _common(run):
                return float(run["models"][name]["scores"][LAST]["layers"]["embedding"]["probe"]["chance"])
    return math.nan


def main() -> None:
    """Write tables and figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--configuration", type=Path, default=HERE / "configuration.json")
    parser.add_argument("--page", type=Path, default=PAGE, help="document with the markers")
    arguments = parser.parse_args()
    configuration = arguments.configuration.absolute()
    text = Report(configuration, arguments.page.parent / "figures").text()
    begin, end = (f"<!-- {configuration.parent.name}: {word} -->" for word in ("begin", "end"))
    arguments.page.write_text(replace_section(arguments.page.read_text(), begin, end, text))


if __name__ == "__main__":
    main()
