"""The parts of the page below the first screen: comparison, single runs, and the glossary."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from grandrounds.evaluation.clinical.suppression import count_text, shown_counts
from grandrounds.evaluation.record import ALWAYS, CHANCE, EvalRecord
from grandrounds.evaluation.score import MIN_CASES
from grandrounds.protocol.task_multi import CALLED_FROM
from grandrounds.reporting.comparison import METRIC
from grandrounds.reporting.format import (
    CLASS_NAMES,
    CONFIDENCE_NAMES,
    MISSING,
    SCORE_NAMES,
    Cell,
    PageFigure,
    Table,
    estimate_cell,
    format_bytes,
    format_number,
)
from grandrounds.reporting.model import MAX_DETAILED_RUNS, Report
from grandrounds.reporting.overview import MAX_CAVEATS
from grandrounds.reporting.population import population_tables
from grandrounds.reporting.run import MODELS, Run
from grandrounds.reporting.scores import RunScores

SITE_SCORES = ("balanced_accuracy", "accuracy", "f1_weighted", "f1_macro", "precision_weighted")
FINDING_SCORES = ("auc_macro", "balanced_accuracy", "f1_macro")
REPORTED_SCORES = ("auc_macro", *SITE_SCORES, "auroc", "average_precision")
GLOSSARY: Mapping[str, str] = {
    "Case": f"A patient, or a lesion where patients are not known, or an image where neither is. A score that fewer than "
    f"{MIN_CASES} cases carry is not shown.",
    "[low, high]": "95 % interval: how much the score would move with other patients of the same sites. It does not cover "
    "other sites, other seeds or other devices.",
    "Always CLASS, chance": "The scores of predicting the most frequent class for every image, and of guessing with equal "
    "probabilities. A model must exceed both.",
    "Balanced accuracy": f"Mean sensitivity over the classes with {MIN_CASES} cases or more; there must be two of them. "
    "Guessing gives one over the number of classes.",
    "All images together, mean over sites": "The first counts every image once and is the score by which models are "
    "compared. In the second every site counts the same, however few images it has.",
    "Accuracy, one against the rest": "How often “is it this class?” is answered correctly, mean over classes; far higher "
    "than the share of images that are classified correctly, and not to be compared with it.",
    "Sensitivity, specificity": "Share of a class's images that are detected; share of the others that are not "
    "predicted as it.",
    "Precision, F1": "Share of the images predicted as a class that are of it; its harmonic mean with sensitivity. "
    "Weighted: by the classes' sizes. Macro: every class counts the same.",
    "AUROC, average precision": "Areas under the ROC and the precision-recall curve of a class's probability. Guessing "
    "gives 0.5, and the class's share of the images.",
    "ECE, MCE": "Expected and maximum calibration error: the difference of confidence and accuracy, in adaptive bins.",
    "AURC, coverage at risk 0.1": "Area under the curve of risk against coverage, lower is better; the largest share of "
    "images that the model could decide alone with at most one error in ten.",
    "Adjusted p": "p-value of a t-test paired by seed, or of a bootstrap of the test cases for two fixed models, corrected "
    "for the number of comparisons (Holm).",
    "Detectable": "The smallest difference between methods that these seeds or cases would have shown with a probability of "
    "80 %. A smaller one may exist where none was found.",
}


class ComparisonSection(NamedTuple):
    """Methods against each other: whether any two are compared, and what a page of many runs leaves out."""

    paired: bool
    reduced: str
    figures: Sequence[PageFigure]


class RunSection(NamedTuple):
    """One run in detail: tables of its ``scores``, of the ``population`` and settings, and ``records`` of the rounds."""

    name: str
    note: str
    caveats: Sequence[str]
    scores: Sequence[Table]
    population: Sequence[Table]
    figures: Sequence[PageFigure]
    records: Sequence[Table]


def comparison_section(report: Report, figures: Sequence[PageFigure]) -> ComparisonSection:
    """Methods against each other."""
    reduced = (
        f"With more than {MAX_DETAILED_RUNS} runs each of them has only its main figures below: precision and recall, risk "
        "and coverage, learning curves, budgets and the figures of its method are left out. A report on that run alone has "
        "them."
    )
    crowded = len(report.runs) > MAX_DETAILED_RUNS
    return ComparisonSection(report.comparison is not None, reduced if crowded else "", figures)


def run_section(report: Report, run: Run, figures: Sequence[PageFigure]) -> RunSection:
    """One run in detail."""
    scores = report.scores[run.name]
    whole = scores.sites and scores.pooled and scores.pooled.tallies
    tables = [_site_table(run, scores), _class_table(run, scores)] if whole else [_reported_table(run, scores)]
    return RunSection(
        run.name,
        _note(run),
        report.caveats[run.name] if report.several else report.caveats[run.name][MAX_CAVEATS:],
        [table for table in (*tables, _operating_table(report, run)) if table],
        population_tables(run),
        figures,
        [table for table in (_traffic_table(run), _privacy_table(run)) if table],
    )


def _note(run: Run) -> str:
    seed = "" if run.log.seed is None else f", seed {run.log.seed}"
    reason = f" ({run.log.reason})" if run.log.reason else ""
    software = ", ".join(f"{name} {version}" for name, version in run.log.versions.items())
    whose = f" Scores are of {MODELS[run.tests.model]}." if run.tests.questions else ""
    done = f"{run.log.rounds_done} of {run.log.rounds} rounds, {run.log.status}{reason}"
    return f"Method {run.log.method}{seed}; {done}.{whose} {software}"


def _site_table(run: Run, scores: RunScores) -> Table:
    if not run.task.exclusive:
        return _finding_site_table(scores)
    groups = [
        *scores.sites.items(),
        *((f"community {name}", group) for name, group in scores.communities.items()),
        *([("all images together", scores.pooled)] if scores.pooled else []),
    ]
    known = [key for key in CONFIDENCE_NAMES if any(key in group.confidence for _, group in groups)]
    rows = [_group_row(name, group, known) for name, group in groups]
    images = sum(group.images for group in scores.sites.values())
    cases = sum(group.cases or 0 for group in scores.sites.values())
    means: list[Cell | str] = [estimate_cell(scores.best_mean(name)) for name in SITE_SCORES]
    if scores.pooled:
        rows += _reference_rows(scores.pooled.references, "all images", len(known))
    rows.append(["mean over sites", str(images), str(cases), "", "", *means, *[MISSING] * len(known)])
    rows += _reference_rows(scores.mean_references, "mean over sites", len(known))
    header = [
        "site",
        "images",
        "cases",
        "always: accuracy",
        "always: balanced",
        *(SCORE_NAMES[name] for name in SITE_SCORES),
    ]
    header += [CONFIDENCE_NAMES[key] for key in known]
    caption = (
        "Test images of each site, with 95 % intervals. “Always” is predicting the site's most frequent class for every "
        f"image. Means over classes are over those with {MIN_CASES} cases or more at the site: sites with different classes "
        "cannot be compared by them."
    )
    return Table(header, rows, caption)


def _finding_site_table(scores: RunScores) -> Table:
    groups = {
        **scores.sites,
        **{f"community {name}": group for name, group in scores.communities.items()},
        **({"all images together": scores.pooled} if scores.pooled else {}),
    }
    guess = scores.pooled.references.get(CHANCE, {}) if scores.pooled else {}
    rows: list[list[Cell | str]] = []
    for name, group in groups.items():
        counts = [MISSING, MISSING] if group.masked else [str(group.images), str(group.cases)]
        rows.append([name, *counts, *(estimate_cell(group.best(score)) for score in FINDING_SCORES)])
    rows.append(["mean over sites", "", "", *(estimate_cell(scores.best_mean(score)) for score in FINDING_SCORES)])
    rows.append(["chance", "", "", *(format_number(guess.get(score)) for score in FINDING_SCORES)])
    caption = (
        "Test images of each site, with 95 % intervals of patients. Means are over the findings with at least "
        f"{MIN_CASES} cases with it and {MIN_CASES} without; a finding is called from a probability of {CALLED_FROM} on."
    )
    return Table(["site", "images", "cases", *(SCORE_NAMES[score] for score in FINDING_SCORES)], rows, caption)


def _group_row(name: str, group: EvalRecord, known: Sequence[str]) -> list[Cell | str]:
    scores = [estimate_cell(group.best(score)) for score in SITE_SCORES]
    confidence = [format_number(group.confidence.get(key)) for key in known]
    always = (
        f"{group.references[f'{ALWAYS}{group.majority}']['accuracy']:.2f} ({group.majority})" if group.majority else ""
    )
    counts = [MISSING, MISSING] if group.masked else [str(group.images), str(group.cases)]
    balanced = group.references[f"{ALWAYS}{group.majority}"].get(METRIC) if group.majority else None
    return [name, *counts, always, format_number(balanced), *scores, *confidence]


def _reference_rows(
    references: Mapping[str, Mapping[str, float]], of: str, confidences: int
) -> Iterator[list[Cell | str]]:
    """The scores of predicting without a model."""
    for name, found in references.items():
        values = [format_number(found.get(key)) for key in SITE_SCORES]
        yield [f"{name}, {of}", "", "", "", "", *values, *[MISSING] * confidences]


def _class_table(run: Run, scores: RunScores) -> Table | None:
    if scores.pooled is None:
        return None
    known = [key for key in CLASS_NAMES if any(key in found for found in scores.pooled.classes)]
    rows: list[list[Cell | str]] = []
    for name, share, found in zip(run.classes, scores.pooled.shares, scores.pooled.classes, strict=True):
        sites = sum(
            bool(group.classes[run.classes.index(name)]["sensitivity"].known) for group in scores.sites.values()
        )
        cells = [estimate_cell(found[key]) if key in found else MISSING for key in known]
        positives = found["sensitivity"]
        counted = MISSING if positives.cases is None else str(positives.cases)
        rows.append([name, counted, str(sites), format_number(share), *cells])
    header = [run.task.noun, "cases", "sites", "share", *(CLASS_NAMES[key] for key in known)]
    if not run.task.exclusive:
        caption = (
            "Findings, all test images together, of which it is known whether they show it. Guessing has balanced accuracy "
            f"and AUROC 0.50. A finding is called from a probability of {CALLED_FROM} on; “cases” is the smaller side."
        )
        return Table(header, rows, caption)
    guess = 1 / len(run.classes)
    caption = (
        "Classes, each against all others, all test images together; by site they are in tables/classes.csv. Guessing has "
        f"sensitivity {guess:.2f}, specificity {1 - guess:.2f} and AUROC 0.50; its precision and average precision are the "
        "class's share of the images. Always predicting one class has sensitivity 1 for it and 0 for the others."
    )
    return Table(header, rows, caption)


def _operating_table(report: Report, run: Run) -> Table | None:
    points = report.operations.get(run.name)
    if not points:
        return None
    keys = ("sensitivity", "specificity", "precision")
    rows: list[list[Cell | str]] = [
        [
            name,
            f"{point.threshold:.2g}",
            format_number(point.sensitivity),
            format_number(point.specificity),
            *(estimate_cell(test[key]) for key in keys),
        ]
        for name, (point, test) in points.items()
    ]
    header = ["class", "threshold", "validation: sensitivity", "specificity", *(f"test: {key}" for key in keys)]
    caption = (
        "Operating points: the threshold of each class that finds nine in ten of its validation images, and what it does on "
        "test images, which had no part in the choice"
    )
    return Table(header, rows, caption)


def _reported_table(run: Run, scores: RunScores) -> Table | None:
    if scores.pooled and not scores.sites:
        together: list[list[Cell | str]] = [
            [SCORE_NAMES[name], format_number(estimate.value, 3)]
            for name, estimate in scores.pooled.scores.items()
            if name in SCORE_NAMES
        ]
        return Table(["score", "value"], together, "All test images together, as the result gives them")
    known = {site: record.exact for site, record in scores.sites.items()}
    if not known:
        return None
    names = [name for name in REPORTED_SCORES if any(name in sent for sent in known.values())]
    counts = shown_counts({site: record.images for site, record in scores.sites.items()}, run.origin.minimum)
    rows: list[list[Cell | str]] = [
        [site, count_text(counts[site], run.origin.minimum), *(format_number(sent.get(name)) for name in names)]
        for site, sent in known.items()
    ]
    without = "intervals" if run.tests.curves else "intervals and no curves"
    caption = f"Means that the sites have reported; their predictions stayed there, so there are no {without}"
    return Table(["site", "images", *(SCORE_NAMES[name] for name in names)], rows, caption)


def _traffic_table(run: Run) -> Table:
    dropped = run.log.dropped()
    rows: list[list[Cell | str]] = []
    for site in run.log.sites:
        parts = run.log.bytes.get(site, {})
        down = sum(size for name, size in parts.items() if name.startswith("down."))
        sent = ", ".join(sorted(name.removeprefix("up.") for name in parts if name.startswith("up.")))
        up = sum(size for name, size in parts.items() if name.startswith("up."))
        rounds = str(run.log.contributions.get(site, 0)) if run.log.contributions else MISSING
        missed = ", ".join(str(number) for number in dropped.get(site, [])) or (
            "none" if run.log.contributions else MISSING
        )
        community = run.origin.communities.get(site, MISSING)
        rows.append([site, community, sent or "nothing", rounds, missed, format_bytes(down), format_bytes(up)])
    header = ["site", "community", "sent", "rounds", "dropped in", "received", "sent bytes"]
    caption = "Communication: parts that each site sent beside scores, rounds it contributed to, bytes of tensors"
    return Table(header, rows, caption, text_columns=3)


def _privacy_table(run: Run) -> Table | None:
    if not run.origin.spent:
        return None
    rows: list[list[Cell | str]] = [
        [
            spent.site,
            spent.unit,
            format_number(spent.epsilon) if spent.epsilon is not None else "infinite",
            f"{spent.delta:g}",
        ]
        for spent in run.origin.spent
    ]
    return Table(
        ["site", "protects", "epsilon", "delta"], rows, "Privacy ledgers: all releases together", text_columns=2
    )
