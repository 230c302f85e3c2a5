"""Tables of semi-supervised learning on blood cells."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from benchmarks.report import Part
from benchmarks.results import EXPLAINED, Content, Methods, Results, difference_table, pair_by_seed, shared_seeds
from benchmarks.ssl_pbc.experiment import SCORED, mean_score
from benchmarks.tables import markdown_table, mean_and_spread
from grandrounds.evaluation.confusion import confusion_scores

TITLES = dict(zip(SCORED, ("macro F1", "AUC", "balanced accuracy", "accuracy"), strict=True))
TESTED = ("f1_macro", "auc_macro", "balanced_accuracy")
GATES = (
    ("federation helps", "fedavg_lower", "local_lower", 0.0),
    ("labels help", "fedavg_upper", "fedavg_lower", 0.05),
    ("unlabelled images help", "ssfl_aligned", "fedavg_lower", 0.0),
    ("labels of the other sites help", "irm_upper", "irm_lower", 0.05),
)
FIRST_RUN = "first_run"
REFERENCES = (
    "fedavg_lower", "fedavg_site", "two_sites", "server_alone", "ssfl", "ssfl_aligned", "ssfl_site", "t2_pa",
    "irm_lower", "irm_lower_site", "irm_lower_fifth", "irm_still", "irm_still_weighted",
)  # fmt: skip


def parts(results: Results) -> Iterator[Part]:
    """Everything between the markers of the page."""
    for setting, methods in results.settings.items():
        if methods:
            chosen = results.configuration["settings"][setting]
            tested = " and ".join(chosen.get("unseen", ["all sites"]))
            yield from _setting(chosen["title"], tested, methods, results.titles)
    yield from _run_again(results)


def _run_again(results: Results) -> Iterator[Part]:
    """Rows that were run again, beside their first run."""
    folder = results.folder.parent / FIRST_RUN
    first = Results(results.folder.parent.name, folder).settings if folder.is_dir() else {}
    for setting, methods in first.items():
        rows: list[list[object]] = []
        for method, runs in methods.items():
            pair = pair_by_seed(results.settings[setting][method], runs, partial(mean_score, metric="f1_macro"))
            changes = np.abs(np.subtract(pair.ours, pair.theirs))
            means = [float(np.mean(values)) for values in (pair.theirs, pair.ours, changes)]
            rows.append([results.titles[method], len(changes), *means, float(changes.max())])
        if rows:
            yield (
                f"**{results.configuration['settings'][setting]['title']}: rows that were run again.** Macro F1; mean over "
                "seeds of the first run, of the second, and of their absolute difference; the largest difference."
            )
            yield markdown_table(["method", "seeds", "first", "again", "difference", "largest"], rows)


def _setting(title: str, tested: str, methods: Methods, titles: dict[str, str]) -> Iterator[Part]:
    yield (
        f"**{title}.** Test images of {tested} together; mean over the scored rounds of a run, then mean and standard "
        "deviation over seeds. *Accepted* and *correct*: pseudo-labels of the last five rounds with any; *matched*: rows of "
        "the relation matrix that a batch matches."
    )
    rows: list[list[object]] = []
    for method, runs in methods.items():
        scores = [mean_and_spread([mean_score(run, metric) for run in runs.values()]) for metric in SCORED]
        labels = [
            _last_rounds(list(runs.values()), name) for name in ("accepted", "pseudo_label_accuracy", "matched_rows")
        ]
        rows.append([titles[method], len(runs), *scores, *labels])
    rows.append(_always(methods))
    yield markdown_table(["method", "seeds", *TITLES.values(), "accepted", "correct", "matched"], rows)
    yield from _gates(methods)
    yield from _differences(methods, titles)
    yield from _labels(methods, titles)


def _always(methods: Methods) -> list[object]:
    """The scores of always predicting the most frequent class."""
    runs = next(iter(methods.values()))
    found = []
    for run in runs.values():
        true = np.array(next(iter(run["scores"].values()))["confusion"]).sum(axis=1)
        confusion = np.zeros((len(true), len(true)))
        confusion[:, int(true.argmax())] = true
        found.append(confusion_scores(confusion))
    cells = [None if name == "auc_macro" else mean_and_spread([float(one[name]) for one in found]) for name in SCORED]
    return ["always the most frequent class", len(runs), *cells, *[None] * 3]


def _last_rounds(runs: list[Content], name: str) -> float | None:
    known = [value for run in runs for value in run["pseudo_labels"].get(name, [])[-5:] if value is not None]
    return float(np.mean(known)) if known else None


def _gates(methods: Methods) -> Iterator[Part]:
    rows: list[list[object]] = []
    for title, above, below, least in GATES:
        if above in methods and below in methods:
            pair = pair_by_seed(methods[above], methods[below], partial(mean_score, metric="f1_macro"))
            gain = float(np.mean(np.subtract(pair.ours, pair.theirs)))
            rows.append([title, f"above {least:g}", gain, "passed" if gain > least else "failed"])
    if rows:
        yield "Gates on macro F1 (mean difference over seeds):"
        yield markdown_table(["gate", "needed", "found", ""], rows)


def _differences(methods: Methods, titles: dict[str, str]) -> Iterator[Part]:
    rows: list[list[object]] = []
    for number, reference in enumerate(REFERENCES):
        for method, runs in methods.items():
            shared = shared_seeds(runs, methods.get(reference, {}))
            if method not in REFERENCES[: number + 1] and len(shared) > 1:
                cells = [pair_by_seed(runs, methods[reference], partial(mean_score, metric=name)) for name in TESTED]
                rows.append([f"{titles[method]} - {titles[reference]}", len(shared), *cells])
    if rows:
        yield EXPLAINED
        yield difference_table(["difference", "seeds", *(TITLES[name] for name in TESTED)], rows)


def _labels(methods: Methods, titles: dict[str, str]) -> Iterator[Part]:
    """Of the unlabelled images, what the last global model labels confidently, by class."""
    rows: list[list[object]] = []
    classes: list[str] = []
    for method, runs in methods.items():
        found = [run["pseudo_labels"]["by_class"] for run in runs.values() if run["pseudo_labels"]["by_class"]]
        if found:
            classes = next(iter(runs.values()))["classes"]
            accepted, right = (np.sum([one[name] for one in found], axis=0) for name in ("accepted", "right"))
            shares = [
                f"{good / all_:.2f} of {all_}" if all_ else "none" for good, all_ in zip(right, accepted, strict=True)
            ]
            rows.append([titles[method], *shares])
    if rows:
        yield "Share of correct labels among the confident ones that the last global model gives unlabelled images:"
        yield markdown_table(["method", *classes], rows)
