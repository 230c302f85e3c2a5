"""The parts of the page below the first screen: comparison, single runs, and what the words mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from grandrounds.evaluation.estimates import MIN_CASES
from grandrounds.evaluation.tests import Blocked, MethodsCompared
from grandrounds.reporting.comparison import Comparison
from grandrounds.reporting.format import (
    CLASS_NAMES,
    MISSING,
    SCORE_NAMES,
    SURENESS_NAMES,
    bytes_words,
    estimate_cell,
    number_words,
    p_words,
)
from grandrounds.reporting.html import Child, Html, table, tag
from grandrounds.reporting.model import MAX_DETAILED_RUNS, Report
from grandrounds.reporting.overview import distrust_box
from grandrounds.reporting.run import MODELS, Run
from grandrounds.reporting.scores import Place, RunScores

SITE_SCORES = ("balanced_accuracy", "accuracy", "f1_weighted", "f1_macro", "precision_weighted")
SENT_SCORES = (*SITE_SCORES, "auroc", "average_precision")
GLOSSARY: Mapping[str, str] = {
    "Case": f"A patient, or a lesion where patients are not known, or an image where neither is. A score that fewer than "
    f"{MIN_CASES} cases carry is not shown.",
    "[low, high]": "95 % interval by bootstrap: how much the score would move with other patients of the same sites. It "
    "does not cover other sites, other seeds or other devices.",
    "Balanced accuracy": "Mean sensitivity over the classes that occur. Guessing gives one over the number of classes.",
    "Accuracy, one against the rest": "How often “is it this class?” is answered rightly, mean over classes; far higher "
    "than the share of images that are classified rightly, and not to be compared with it.",
    "Sensitivity, specificity": "Share of a class's images that are found; share of the others that are not taken for it.",
    "Precision, F1": "Share of the images taken for a class that are of it; its harmonic mean with sensitivity. Weighted: "
    "by the classes' sizes. Macro: every class counts the same.",
    "AUROC, average precision": "Areas under the ROC and the precision-recall curve of a class's probability. Guessing "
    "gives 0.5, and the class's share of the images.",
    "ECE, MCE": "Expected and maximum calibration error: how far confidence and accuracy are apart, in adaptive bins.",
    "AURC, coverage at risk 0.1": "Area under the curve of risk against coverage, lower is better; the largest share of "
    "images that the model could decide alone with at most one error in ten.",
    "Adjusted p": "p-value of a paired t-test over sites, or over seeds where sites have no scores of their own, times the "
    "number of comparisons (Bonferroni).",
}


def comparison_section(report: Report, figures: Sequence[Html]) -> Html | None:
    """Methods against each other; None for one run."""
    if not report.several:
        return None
    comparison = report.comparison
    return tag(
        "section",
        tag("h2", "Comparison"),
        _reduced(report),
        tag("div", figures, class_="figures"),
        _comparison_tables(comparison) if comparison else tag("p", "No two methods have results that can be paired."),
        id="comparison",
    )


def _reduced(report: Report) -> Html | None:
    """Says what a page of many runs leaves out."""
    if len(report.runs) <= MAX_DETAILED_RUNS:
        return None
    text = (
        f"With more than {MAX_DETAILED_RUNS} runs each of them has only its main figures below: precision and recall, risk "
        "and coverage, learning curves, budgets and the figures of its method are left out. A report on that run alone has "
        "them."
    )
    return tag("p", text, class_="note")


def run_section(report: Report, run: Run, figures: Sequence[Html], number: int) -> Html:
    """One run in detail."""
    scores = report.scores[run.name]
    return tag(
        "section",
        tag("h2", run.name),
        tag("p", _what(run), class_="note"),
        distrust_box(report.doubts[run.name], "What to distrust", "h3") if report.several else None,
        [_site_table(scores), _class_table(run, scores)] if scores.pooled else _without_predictions(run, scores),
        _operating_table(report, run),
        tag("div", figures, class_="figures"),
        _course_table(run),
        _privacy_table(run),
        id=f"run-{number}",
    )


def glossary() -> Html:
    """What the words mean."""
    entries = [part for word, meaning in GLOSSARY.items() for part in (tag("dt", word), tag("dd", meaning))]
    return tag("section", tag("h2", "How to read this"), tag("dl", entries, class_="words"), id="words")


def _what(run: Run) -> str:
    seed = "" if run.seed is None else f", seed {run.seed}"
    reason = f" ({run.reason})" if run.reason else ""
    software = ", ".join(f"{name} {version}" for name, version in run.versions.items())
    whose = f" Scores are of {MODELS[run.model]}." if run.places else ""
    return (
        f"Method {run.method}{seed}; {run.rounds_done} of {run.rounds} rounds, {run.status}{reason}.{whose} {software}"
    )


def _site_table(scores: RunScores) -> Html:
    places = [
        *scores.sites.items(),
        *((f"community {name}", place) for name, place in scores.communities.items()),
        *([("all images together", scores.pooled)] if scores.pooled else []),
    ]
    known = [key for key in SURENESS_NAMES if any(key in place.sureness for _, place in places)]
    rows = [_place_row(name, place, known) for name, place in places]
    images = sum(place.images for place in scores.sites.values())
    cases = sum(place.cases for place in scores.sites.values())
    means: list[Child] = [estimate_cell(scores.mean[name]) for name in SITE_SCORES]
    mean: list[Child] = ["mean over sites", str(images), str(cases), *means, *[MISSING] * len(known)]
    rows.insert(len(rows) - bool(scores.pooled), mean)
    header = ["site", "images", "cases", *(SCORE_NAMES[name] for name in SITE_SCORES)]
    header += [SURENESS_NAMES[key] for key in known]
    return table(header, rows, "Test images of each site, with 95 % intervals")


def _place_row(name: str, place: Place, known: Sequence[str]) -> list[Child]:
    scores = [estimate_cell(place.scores[score]) for score in SITE_SCORES]
    sureness: list[Child] = [number_words(place.sureness.get(key)) for key in known]
    return [name, str(place.images), str(place.cases), *scores, *sureness]


def _class_table(run: Run, scores: RunScores) -> Html | None:
    if scores.pooled is None:
        return None
    known = [key for key in CLASS_NAMES if any(key in found for found in scores.pooled.classes)]
    rows: list[list[Child]] = []
    for name, found in zip(run.classes, scores.pooled.classes, strict=True):
        places = sum(place.classes[run.classes.index(name)]["sensitivity"].cases > 0 for place in scores.sites.values())
        cells = [estimate_cell(found[key]) if key in found else MISSING for key in known]
        rows.append([name, str(found["sensitivity"].cases), str(places), *cells])
    header = ["class", "cases", "sites", *(CLASS_NAMES[key] for key in known)]
    caption = "Classes, each against all others, all test images together; by site they are in tables/classes.csv"
    return table(header, rows, caption)


def _operating_table(report: Report, run: Run) -> Html | None:
    points = report.operations.get(run.name)
    if not points:
        return None
    keys = ("sensitivity", "specificity", "precision")
    rows: list[list[Child]] = [
        [
            name,
            number_words(point.threshold),
            number_words(point.sensitivity),
            number_words(point.specificity),
            *(estimate_cell(test[key]) for key in keys),
        ]
        for name, (point, test) in points.items()
    ]
    header = ["class", "threshold", "validation: sensitivity", "specificity", *(f"test: {key}" for key in keys)]
    caption = (
        "Operating points: the threshold of each class that finds nine in ten of its validation images, and what it does on "
        "test images, which had no part in the choice"
    )
    return table(header, rows, caption)


def _without_predictions(run: Run, scores: RunScores) -> Html:
    if scores.told:
        together: list[list[Child]] = [
            [SCORE_NAMES[name], number_words(estimate.value, 3)]
            for name, estimate in scores.told.items()
            if name in SCORE_NAMES
        ]
        return table(["score", "value"], together, "All test images together, as the result gives them")
    known = {site: sent for site, sent in run.scored.items() if sent.get("n")}
    if not known:
        return tag("p", "There are no test predictions: nothing can be said of how good the model is on unseen images.")
    names = [name for name in SENT_SCORES if any(name in sent for sent in known.values())]
    rows: list[list[Child]] = [
        [site, str(int(sent["n"])), *(number_words(sent.get(name)) for name in names)] for site, sent in known.items()
    ]
    without = "intervals" if run.curves else "intervals and no curves"
    caption = f"Means that the sites have sent; their predictions stayed there, so there are no {without}"
    return table(["site", "images", *(SCORE_NAMES[name] for name in names)], rows, caption)


def _course_table(run: Run) -> Html:
    dropped = run.dropped()
    rows: list[list[Child]] = []
    for site in run.sites:
        parts = run.bytes.get(site, {})
        down = sum(size for name, size in parts.items() if name.startswith("down."))
        sent = ", ".join(sorted(name.removeprefix("up.") for name in parts if name.startswith("up.")))
        up = sum(size for name, size in parts.items() if name.startswith("up."))
        rounds = str(run.contributions.get(site, 0)) if run.contributions else MISSING
        missed = ", ".join(str(number) for number in dropped.get(site, [])) or (
            "none" if run.contributions else MISSING
        )
        community = run.communities.get(site, MISSING)
        rows.append([site, community, sent or "nothing", rounds, missed, bytes_words(down), bytes_words(up)])
    header = ["site", "community", "sent", "rounds", "dropped in", "received", "sent bytes"]
    caption = "What travelled: parts that each site sent beside scores, rounds it contributed to, bytes of tensors"
    return table(header, rows, caption, text_columns=3)


def _privacy_table(run: Run) -> Html | None:
    if not run.spent:
        return None
    rows: list[list[Child]] = [
        [
            spent.site,
            spent.unit,
            number_words(spent.epsilon) if spent.epsilon is not None else "infinite",
            f"{spent.delta:g}",
        ]
        for spent in run.spent
    ]
    return table(
        ["site", "protects", "epsilon", "delta"], rows, "Privacy ledgers: all releases together", text_columns=2
    )


def _comparison_tables(comparison: Comparison) -> Html:
    metric = SCORE_NAMES[comparison.metric]
    values: list[list[Child]] = [
        [method, *(number_words(value) for value in found)] for method, found in comparison.values.items()
    ]
    of_blocks = {"site": "at each site, mean over seeds", "seed": "of each seed, all test images together"}
    parts = [table(["method", *comparison.blocks], values, f"{metric} {of_blocks[comparison.kind]}")]
    won: list[list[Child]] = [
        [f"{a} against {b}", str(win.better), str(win.equal), str(win.worse)]
        for (a, b), win in comparison.wins.items()
        if len(comparison.values) <= 4 or comparison.reference in (a, b)
    ]
    caption = f"In how many {comparison.kind}s the first is better, equal or worse, chance not considered"
    if len(comparison.values) > 4:
        caption += f"; all pairs without {comparison.reference} are in report.json"
    parts.append(table(["methods", "better", "equal", "worse"], won, caption))
    tested: list[tuple[str, str, Blocked | MethodsCompared | None]] = [
        (f"{comparison.kind}s are blocks", "", comparison.over_blocks),
        ("seeds are repetitions", "; pairs are in report.json", comparison.over_seeds),
    ]
    parts += [
        tag(
            "p",
            f"Do the methods differ at all? Analysis of variance ({name}): F = {found.statistic:.2f}, p "
            f"{p_words(found.p_value)}{rest}.",
            class_="note",
        )
        for name, rest, found in tested
        if found
    ]
    return Html("".join(parts))
