"""Write the tables and figures of this benchmark from its committed results.

    python benchmarks/fedperl_ham10000/report.py

Tables go between the markers in ``docs/methods.md``, figures to ``docs/figures/``. Rows of which not all seeds are there
say so.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from grandrounds.evaluation.communication import additional_communication, measured_communication, relative_improvement
from grandrounds.evaluation.communities import chance_within_group, community_order, pick_matrix, within_group_share
from grandrounds.evaluation.per_class import precision_recall_f1
from grandrounds.evaluation.tables import format_interval, markdown_table
from grandrounds.evaluation.tests import paired_difference
from grandrounds.models.registry import build_model
from grandrounds.ordering import natural_sorted
from grandrounds.protocol.problem import ModelSpec
from grandrounds.reporting.figures.run import SimilarityRound, peer_frequency_figure, similarity_figure

HERE = Path(__file__).parent
DOCS = HERE.parents[1] / "docs"
CONFIGURATION = json.loads((HERE / "configuration.json").read_text())
TITLES = {method: entry["title"] for method, entry in CONFIGURATION["methods"].items()}
ABLATIONS = {method: entry["title"] for method, entry in CONFIGURATION["ablations"].items()}
METRICS = {"f1_weighted": "weighted F1", "balanced_accuracy": "balanced accuracy"}
BEGIN, END = "<!-- fedperl_ham10000: begin -->", "<!-- fedperl_ham10000: end -->"
LOWER, REFERENCE, PROPOSED = "local_lower", "ssfl", "t2_pa"
SHOWN_PER_SITE = ("local_lower", "fedavg_lower", "ssfl", "fedmatch_pa", "t2_pa", "fedavg_upper")

Results = dict[str, dict[int, dict[str, Any]]]


def main() -> None:
    """Write tables and figures."""
    results: Results = {}
    for method in (*TITLES, *CONFIGURATION["ablations"]):
        for seed in CONFIGURATION["seeds"]:
            path = HERE / "results" / f"{method}_{seed}.json"
            if path.is_file():
                results.setdefault(method, {})[seed] = json.loads(path.read_text())
    rows = {method: runs for method, runs in results.items() if method in TITLES}
    sections = (_means, _differences, _per_site, _per_class, _policies, _peers)
    parts = [part for section in sections for part in section(rows)]
    text = "\n\n".join([*parts, *_ablations(results)])
    page = DOCS / "methods.md"
    before, _, rest = page.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    page.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}")


def _values(runs: dict[int, dict[str, Any]], model: str, metric: str) -> np.ndarray:
    """Shape ``(seeds, sites)``; not a number where there is no such model."""
    return np.array(
        [
            [run["test"][site].get(f"{model}.{metric}", np.nan) for site in natural_sorted(run["test"])]
            for run in runs.values()
        ]
    )


def _means(results: Results) -> Iterator[str]:
    yield (
        "Mean over sites, then mean and standard deviation over seeds. `own`: each site's choice among the rounds' models "
        "by its validation images (the paper's tables); `common`: one model for all, selected by the mean of the sites' "
        "scores. RI: relative improvement of the weighted F1 (`own`) over local training on the labelled part. AC: models "
        "beside the global one per site and round trained in, the warm-up included; sent: the same by the ledger of bytes, "
        "which is less where a site has an unchanged peer already; ECE: expected "
        "calibration error (`own`)."
    )
    header = ["method", "seeds"] + [f"{title}, {model}" for model in ("own", "common") for title in METRICS.values()]
    lower = _values(results[LOWER], "own", "f1_weighted").mean() if LOWER in results else None
    rows = []
    for method, runs in results.items():
        row: list[object] = [TITLES[method], len(runs)]
        for model in ("own", "common"):
            row += [_over_seeds(_values(runs, model, metric).mean(axis=1)) for metric in METRICS]
        gain = None if lower is None else relative_improvement(_values(runs, "own", "f1_weighted").mean(), lower)
        ece = np.mean([site["ece"] for run in runs.values() for site in run["predictions"]["own"].values()])
        rows.append([*row, gain if gain is None else f"{gain:+.1f} %", *_communication(runs), float(ece)])
    yield markdown_table([*header, "RI", "AC", "sent", "ECE"], rows)


def _over_seeds(means: np.ndarray) -> str | None:
    if np.isnan(means).any():
        return None
    return f"{means.mean():.3f}" + (f" ± {means.std(ddof=1):.3f}" if len(means) > 1 else "")


def _communication(runs: dict[int, dict[str, Any]]) -> tuple[str, str]:
    """Models beside the global one per client-round, in percent: as chosen, and as sent by the ledger of bytes."""
    if not all(run["peers"] for run in runs.values()):
        return "0 %", "0 %"
    network = build_model(ModelSpec("compact", len(next(iter(runs.values()))["classes"])), seed=0)
    model_bytes = sum(value.numel() * value.element_size() for value in network.state_dict().values())
    chosen, sent = [], []
    for run in runs.values():
        peers = [sites for entry in run["peers"].values() for sites in entry.values()]
        models = [min(len(sites), 1) if run["options"]["controller"]["anonymise"] else len(sites) for sites in peers]
        chosen.append(additional_communication(sum(models), len(peers)))
        rounds = [{"asked": list(entry)} for entry in run["peers"].values()]
        sent.append(measured_communication({"bytes": run["bytes"], "rounds": rounds}, model_bytes))
    return f"{np.mean(chosen):.0f} %", f"{np.mean(sent):.0f} %"


def _differences(results: Results) -> Iterator[str]:
    yield (
        f"Paired differences to {TITLES[REFERENCE]} (per site, mean over the seeds that both have; ten pairs, 95 % Student "
        "interval; `own` model):"
    )
    rows = []
    for method, runs in results.items():
        shared = sorted(runs.keys() & results[REFERENCE].keys())
        if method == REFERENCE or not shared:
            continue
        row: list[object] = [f"{TITLES[method]} - SSFL", len(shared)]
        for metric in METRICS:
            ours, theirs = (
                _values({seed: found[seed] for seed in shared}, "own", metric).mean(axis=0).tolist()
                for found in (runs, results[REFERENCE])
            )
            difference = paired_difference(ours, theirs)
            row.append(format_interval(difference.mean, difference.low, difference.high))
        rows.append(row)
    yield markdown_table(["difference", "seeds", *METRICS.values()], rows)


def _per_site(results: Results) -> Iterator[str]:
    shown = [method for method in SHOWN_PER_SITE if method in results]
    devices = next(iter(results[PROPOSED].values()))["devices"]
    yield "Weighted F1 per site (mean over seeds, `own` model):"
    columns = [_values(results[method], "own", "f1_weighted").mean(axis=0) for method in shown]
    rows = [
        [site, devices[site], *(float(column[number]) for column in columns)]
        for number, site in enumerate(natural_sorted(devices))
    ]
    yield markdown_table(["site", "device", *(TITLES[method] for method in shown)], rows)


def _per_class(results: Results) -> Iterator[str]:
    shown = [method for method in SHOWN_PER_SITE if method in results]
    classes = next(iter(results[PROPOSED].values()))["classes"]
    yield "F1 per class over the pooled test images of all sites and seeds (`own` model), with the number of images:"
    pooled = {
        method: np.sum(
            [site["confusion"] for run in results[method].values() for site in run["predictions"]["own"].values()],
            axis=0,
        )
        for method in shown
    }
    scores = {method: precision_recall_f1(confusion) for method, confusion in pooled.items()}
    counts = pooled[PROPOSED].sum(axis=1) // len(results[PROPOSED])
    rows = [
        [name, int(counts[number]), *(scores[method][number].f1 for method in shown)]
        for number, name in enumerate(classes)
    ]
    yield markdown_table(["class", "images", *(TITLES[method] for method in shown)], rows)


def _policies(results: Results) -> Iterator[str]:
    yield (
        "What the policies let pass after the warm-up: share of the most similar peers that pass, mean number of peers "
        "behind a sent model, share of client-rounds without peers. With anonymisation one peer alone is not sent."
    )
    rows = []
    best = 0.0
    for method, runs in results.items():
        if "pa" not in method or not any(word in method for word in ("gated", "validation", "t2_pa")):
            continue
        asked = kept = rounds = empty = 0
        for run in runs.values():
            for number, chosen in run["peers"].items():
                for site, peers in chosen.items():
                    candidates = run["candidates"].get(number, {}).get(site, [])
                    if candidates:
                        asked, kept = asked + len(candidates), kept + len(peers)
                        rounds, empty = rounds + 1, empty + (not peers)
            for accuracy in run["peer_validation"].values():
                best = max(best, *accuracy.values())
        rows.append([TITLES[method], len(runs), kept / max(asked, 1), kept / max(rounds, 1), empty / max(rounds, 1)])
    yield markdown_table(["policy", "seeds", "pass", "mean peers", "without peers"], rows)
    if best:
        yield (
            f"The best accuracy of any site's model on the server's validation images in these runs is {best:.3f}. "
            "The paper's absolute gates of 0.75, 0.85 and 0.95 are to be read beside it: one that is above it lets nobody "
            "pass, and the run is SSFL bit for bit (a test holds that)."
        )


def _peers(results: Results) -> Iterator[str]:
    shares, chances, matrices = [], [], []
    for run in results[PROPOSED].values():
        devices = run["devices"]
        sites = natural_sorted(devices)
        picks = [(site, peer) for chosen in run["peers"].values() for site, peers in chosen.items() for peer in peers]
        matrices.append(pick_matrix(picks, sites))
        share, chance = within_group_share(picks, devices), chance_within_group(devices)
        for site in sites:
            if chance[site] > 0 and not np.isnan(share[site]):
                shares.append(share[site])
                chances.append(chance[site])
    difference = paired_difference(shares, chances)
    yield (
        f"Peers of the own device ({TITLES[PROPOSED]}): {np.mean(shares):.3f} of the picks (mean over {len(shares)} pairs "
        f"of site and seed; the site that has its device for itself cannot pick one), by chance {np.mean(chances):.3f}; "
        f"difference {format_interval(difference.mean, difference.low, difference.high)}."
    )
    low, high = np.percentile([c for run in results[PROPOSED].values() for c in _raw_cosines(run)], [0, 100])
    yield (
        f"Without scaling of features the cosines of two sites' models lie between {low:.6f} and {high:.6f}: every gate of "
        "the paper would let everybody pass."
    )
    order = community_order(devices)
    rows = [sites.index(site) for site in order]
    own = {site: (share[site], chance[site]) for site in order}
    _save(peer_frequency_figure(np.mean(matrices, axis=0)[np.ix_(rows, rows)], order, devices, own), "peers")
    rounds = [
        SimilarityRound(int(number), entry["sites"], np.array(entry["matrix"]))
        for number, entry in run["similarity"].items()
    ]
    _save(similarity_figure(rounds, [20, 30, 50], order, devices, first_peers=11), "similarity")
    yield (
        "![Share of peer picks](figures/fedperl_ham10000_peers.png)\n\n"
        f"Peers are means over seeds, the share within the device is of seed {max(results[PROPOSED])}, as is the "
        "similarity:\n\n"
        "![Similarity of models](figures/fedperl_ham10000_similarity.png)"
    )


def _save(figure: Any, name: str) -> None:
    folder = DOCS / "figures"
    folder.mkdir(exist_ok=True)
    figure.savefig(folder / f"fedperl_ham10000_{name}.png", dpi=110)


def _ablations(results: Results) -> Iterator[str]:
    seeds = CONFIGURATION["ablation_seeds"]
    shown = {**{name: TITLES[name] for name in (REFERENCE, PROPOSED)}, **ABLATIONS}
    rows = []
    for method, title in shown.items():
        runs = {seed: results[method][seed] for seed in seeds if seed in results.get(method, {})}
        if len(runs) == len(seeds):
            values = [float(_values(runs, model, name).mean()) for model in ("own", "common") for name in METRICS]
            accepted = [
                np.mean([v for v in run["pseudo_labels"]["accepted"] if v is not None]) for run in runs.values()
            ]
            right = [
                np.mean([v for v in run["pseudo_labels"]["pseudo_label_accuracy"] if v is not None])
                for run in runs.values()
            ]
            rows.append([title, *values, float(np.mean(accepted)), float(np.mean(right))])
    yield (
        f"One option changed at a time (seed {', '.join(map(str, seeds))}), with the share of accepted pseudo-labels and "
        "how many of those are right:"
    )
    header = [f"{title}, {model}" for model in ("own", "common") for title in METRICS.values()]
    yield markdown_table(["run", *header, "accepted", "right"], rows)


def _raw_cosines(run: dict[str, Any]) -> list[float]:
    return [value for entry in run["similarity"].values() for value in entry["raw_cosines"]]


if __name__ == "__main__":
    main()
