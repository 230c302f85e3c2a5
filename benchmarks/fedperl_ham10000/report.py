"""Tables of FedPerl on HAM10000."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from benchmarks.report import Part
from benchmarks.results import (
    EXPLAINED,
    RATIO,
    Content,
    Methods,
    Pair,
    Results,
    Seeds,
    difference_cells,
    difference_table,
    pair_by_seed,
    shared_seeds,
)
from benchmarks.tables import markdown_table, mean_and_spread
from grandrounds.evaluation.confusion import confusion_class_scores, confusion_scores
from grandrounds.methods.fedperl.figures import chance_within_group, within_group_share
from grandrounds.ordering import natural_sorted
from grandrounds.reporting.comparison import relative_improvement

METRICS = {"f1_weighted": "weighted F1", "balanced_accuracy": "balanced accuracy"}
MODELS = ("own", "common")
SCORES = [f"{title}, {model}" for model in MODELS for title in METRICS.values()]
LOWER, REFERENCE, PROPOSED = "local_lower", "ssfl", "t2_pa"
SHOWN = ("local_lower", "fedavg_lower", "ssfl", "fedmatch_pa", "t2_pa", "fedavg_upper")


def parts(results: Results) -> Iterator[Part]:
    """Everything between the markers of the page."""
    titles, main = results.titles, results.settings["main"]
    for section in (_means, _differences, _per_site, _per_class, _policies, _peers):
        yield from section(main, titles)
    yield from _ablations(results)


def _values(runs: Seeds, model: str, metric: str) -> list[float]:
    """For each seed the mean over sites; not a number where there is no such model."""
    return [_mean_over_sites(run, metric, model) for run in runs.values()]


def _mean_over_sites(run: Content, metric: str, model: str = "own") -> float:
    return float(np.mean([scores.get(f"{model}.{metric}", np.nan) for scores in run["test"].values()]))


def _means(results: Methods, titles: dict[str, str]) -> Iterator[Part]:
    yield (
        "Mean over sites, then mean and standard deviation over seeds. `own`: each site's choice among the rounds' models "
        "by its validation images (the paper's tables); `common`: one model for all, selected by the mean of the sites' "
        "scores. RI: relative improvement of the weighted F1 (`own`) over local training on the labelled part. AC: models "
        "beside the global one per site and round trained in, the warm-up included; ECE: expected calibration error (`own`)."
    )
    lower = float(np.mean(_values(results[LOWER], "own", "f1_weighted"))) if LOWER in results else None
    rows = []
    for method, runs in results.items():
        means = [_values(runs, model, metric) for model in MODELS for metric in METRICS]
        scores = [None if np.isnan(found).any() else mean_and_spread(found) for found in means]
        gain = None if lower is None else f"{relative_improvement(float(np.mean(means[0])), lower):+.1f} %"
        ece = np.mean([site["ece"] for run in runs.values() for site in run["predictions"]["own"].values()])
        rows.append([titles[method], len(runs), *scores, gain, _communication(runs), float(ece)])
    rows += [[title, len(runs), *(scores * len(MODELS)), None, "0 %", None] for title, scores in _references(runs)]
    yield markdown_table(["method", "seeds", *SCORES, "RI", "AC", "ECE"], rows)


def _references(runs: Seeds) -> Iterator[tuple[str, list[str]]]:
    """Always predicting the most frequent class of all sites, and guessing: scores as those of the methods."""
    classes = next(iter(runs.values()))["classes"]
    by_seed = [
        np.array([site["confusion"] for site in run["predictions"]["own"].values()]).sum(axis=2)
        for run in runs.values()
    ]
    frequent = int(sum(true.sum(axis=0) for true in by_seed).argmax())
    always = np.eye(len(classes))[frequent]
    for title, share in ((f"always {classes[frequent]}", always), ("chance", np.full(len(classes), 1 / len(classes)))):
        found = [confusion_scores(true[:, :, None] * share) for true in by_seed]
        yield title, [mean_and_spread([float(scores[metric].mean()) for scores in found]) for metric in METRICS]


def _communication(runs: Seeds) -> str:
    """Models beside the global one per client-round, in percent."""
    chosen = []
    for run in runs.values():
        peers = [sites for entry in run["peers"].values() for sites in entry.values()]
        models = [min(len(sites), 1) if run["options"]["controller"]["anonymise"] else len(sites) for sites in peers]
        chosen.append(100 * sum(models) / max(len(peers), 1))
    return f"{np.mean(chosen):.0f} %"


def _differences(results: Methods, titles: dict[str, str]) -> Iterator[Part]:
    yield (
        f"Each method less {titles[REFERENCE]} (mean over sites, `own` model). {EXPLAINED} The sites share a model, so they "
        "are no repetitions."
    )
    rows = []
    for method, runs in results.items():
        shared = shared_seeds(runs, results[REFERENCE])
        if method == REFERENCE or not shared:
            continue
        cells = [pair_by_seed(runs, results[REFERENCE], partial(_mean_over_sites, metric=metric)) for metric in METRICS]
        rows.append([f"{titles[method]} - SSFL", len(shared), *cells])
    yield difference_table(["difference", "seeds", *METRICS.values()], rows)


def _per_site(results: Methods, titles: dict[str, str]) -> Iterator[Part]:
    shown = [method for method in SHOWN if method in results]
    devices = next(iter(results[PROPOSED].values()))["devices"]
    yield "Weighted F1 per site (mean over seeds, `own` model):"
    rows = []
    for site in natural_sorted(devices):
        scores = [[run["test"][site]["own.f1_weighted"] for run in results[method].values()] for method in shown]
        rows.append([site, devices[site], *(float(np.mean(found)) for found in scores)])
    yield markdown_table(["site", "device", *(titles[method] for method in shown)], rows)


def _per_class(results: Methods, titles: dict[str, str]) -> Iterator[Part]:
    shown = [method for method in SHOWN if method in results]
    classes = next(iter(results[PROPOSED].values()))["classes"]
    yield "F1 per class over the pooled test images of all sites and seeds (`own` model), with the number of images:"
    pooled = {
        method: np.sum(
            [site["confusion"] for run in results[method].values() for site in run["predictions"]["own"].values()],
            axis=0,
        )
        for method in shown
    }
    scores = {method: confusion_class_scores(confusion)["f1"].tolist() for method, confusion in pooled.items()}
    counts = pooled[PROPOSED].sum(axis=1) // len(results[PROPOSED])
    rows = [
        [name, int(counts[number]), *(scores[method][number] for method in shown)]
        for number, name in enumerate(classes)
    ]
    yield markdown_table(["class", "images", *(titles[method] for method in shown)], rows)


def _policies(results: Methods, titles: dict[str, str]) -> Iterator[Part]:
    yield (
        "What the policies let pass after the warm-up: share of the most similar peers that pass, mean number of peers "
        "behind a sent model, share of client-rounds without peers. With anonymisation one peer alone is not sent."
    )
    rows, best = [], 0.0
    for method, runs in results.items():
        if "pa" not in method or not any(word in method for word in ("gated", "validation", "t2_pa")):
            continue
        pairs = [
            (len(candidates), len(peers))
            for run in runs.values()
            for number, chosen in run["peers"].items()
            for site, peers in chosen.items()
            if (candidates := run["candidates"].get(number, {}).get(site, []))
        ]
        rounds, kept = max(len(pairs), 1), sum(peers for _, peers in pairs)
        passed = kept / max(sum(asked for asked, _ in pairs), 1)
        rows.append([titles[method], len(runs), passed, kept / rounds, sum(not peers for _, peers in pairs) / rounds])
        best = max([best, *(v for run in runs.values() for a in run["peer_validation"].values() for v in a.values())])
    yield markdown_table(["policy", "seeds", "pass", "mean peers", "without peers"], rows)
    if best:
        yield (
            f"The best accuracy of any site's model on the server's validation images in these runs is {best:.3f}. "
            "The paper's absolute gates of 0.75, 0.85 and 0.95 are to be read beside it: one that is above it lets nobody "
            "pass, and the run is SSFL bit for bit (a test holds that)."
        )


def _peers(results: Methods, titles: dict[str, str]) -> Iterator[Part]:
    shares, chances = [], []
    for run in results[PROPOSED].values():
        devices = run["devices"]
        picks = [(site, peer) for chosen in run["peers"].values() for site, peers in chosen.items() for peer in peers]
        share, chance = within_group_share(picks, devices), chance_within_group(devices)
        counted = [site for site in natural_sorted(devices) if chance[site] > 0 and not np.isnan(share[site])]
        shares.append(float(np.mean([share[site] for site in counted])))
        chances.append(float(np.mean([chance[site] for site in counted])))
    yield (
        f"Peers of the own device ({titles[PROPOSED]}): {np.mean(shares):.3f} of the picks (mean over the sites that share "
        f"their device, and over {len(shares)} seeds), by chance {np.mean(chances):.3f}; difference by seed "
        f"{difference_cells([Pair(shares, chances, run[RATIO])])[0]}."
    )


def _ablations(results: Results) -> Iterator[Part]:
    seeds = results.configuration["settings"]["ablations"]["seeds"]
    methods = {name: results.settings["main"].get(name, {}) for name in (REFERENCE, PROPOSED)}
    rows = []
    for method, having in {**methods, **results.settings["ablations"]}.items():
        runs = {seed: having[seed] for seed in seeds if seed in having}
        if len(runs) == len(seeds):
            values = [float(np.mean(_values(runs, model, name))) for model in MODELS for name in METRICS]
            labels = [_mean_of_rounds(runs, name) for name in ("accepted", "pseudo_label_accuracy")]
            rows.append([results.titles[method], *values, *labels])
    yield (
        f"One option changed at a time (seed {', '.join(map(str, seeds))}), with the share of accepted pseudo-labels and "
        "how many of those are right:"
    )
    yield markdown_table(["run", *SCORES, "accepted", "right"], rows)


def _mean_of_rounds(runs: Seeds, name: str) -> float:
    return float(np.mean([np.mean([v for v in run["pseudo_labels"][name] if v is not None]) for run in runs.values()]))
