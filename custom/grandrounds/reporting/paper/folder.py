"""The folder of an article's parts, written whole or not at all: figures, tables, methods and checklists.

Tables are LaTeX (package booktabs), CSV and, by python-docx (the extra ``word``), Word. The items of two checklists are
in ``checklists.csv``, in short words, each with the subjects of the record that answer it. CLAIM is the update of 2024 by
Tejani et al., "Checklist for Artificial Intelligence in Medical Imaging (CLAIM): 2024 Update", Radiology: Artificial
Intelligence 2024; 6(4): e240300, with 44 items. TRIPOD+AI is that of Collins et al., BMJ 2024; 385: e078378, with 27
items. The published wording is what counts.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import stdev
from typing import TYPE_CHECKING, Any, NamedTuple

from grandrounds.csv_files import csv_bytes
from grandrounds.data.importing import account
from grandrounds.errors import ConfigurationError
from grandrounds.evaluation.history import Event
from grandrounds.evaluation.score import Score
from grandrounds.federation.server.record import traffic
from grandrounds.folders import put_in_place, temporary_sibling
from grandrounds.plotting import Drawing
from grandrounds.protocol.names import SPENT
from grandrounds.reporting.comparison import Comparison
from grandrounds.reporting.figures.runs import comparison_drawings, run_drawings
from grandrounds.reporting.model import Method, Report, seeds_score
from grandrounds.reporting.page import NO_PRIVACY, SVG_OPTIONS, svg_of
from grandrounds.reporting.population import population_of, population_tables, settings_of
from grandrounds.reporting.run import ReadRun, Row, Spent, table_rows
from grandrounds.reporting.tables import (
    CLASS_NAMES,
    FEW,
    MISSING,
    SCORE_NAMES,
    format_number,
    format_p,
    plain_markdown,
    pluralize,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DIGITS = 3
OVER_SEEDS = ("value", "sd", "low", "high", "cases", "of", "few_cases")
"""Columns of a score in a CSV file."""


class OverSeeds(NamedTuple):
    """A score of a method.

    Attributes:
        score: of one run its own with the interval of its cases; of several the mean over seeds, from three seeds with
            Student's interval; None without any.
        deviation: the sample's standard deviation over seeds; NaN for fewer than two.
    """

    score: Score | None
    deviation: float = math.nan

    @property
    def text(self) -> str:
        """The score as a cell of a printed table."""
        score = self.score
        if score is None or not score.known:
            return score.reason if score and score.reason else MISSING
        mark = f"{FEW if score.few else ''}{f' ({score.of})' if score.of else ''}"
        value = f"{score.value:.{DIGITS}f}"
        if not math.isnan(self.deviation):
            return f"{value} ± {self.deviation:.{DIGITS}f}{mark}"
        # A reference has no cases of its own, so its interval is no interval.
        if math.isnan(score.low) or score.low == score.high == score.value:
            return f"{value}{mark}"
        return f"{value}{mark} [{score.low:.{DIGITS}f}, {score.high:.{DIGITS}f}]"

    @property
    def plain(self) -> list[str]:
        """The cells of ``OVER_SEEDS``; empty for what is not known."""
        if self.score is None:
            return [""] * len(OVER_SEEDS)
        content = self.score.to_json()
        numbers = [content["value"], None if math.isnan(self.deviation) else round(self.deviation, 6)]
        cells = [*numbers, content["low"], content["high"], content["cases"]]
        few = "yes" if self.score.few else ""
        return [*("" if cell is None else str(cell) for cell in cells), self.score.of, few]


class MethodRow(NamedTuple):
    """One row of a method: a site, ``mean``, ``pooled`` or a reference; images, the seeds that have it, and its scores."""

    name: str
    images: str
    seeds: int
    scores: Mapping[str, OverSeeds]


def over_seeds(scores: Sequence[Score | None]) -> OverSeeds:
    """One score of several seeds."""
    known = [score.value for score in scores if score and score.known]
    mean = seeds_score(scores)
    several = mean is not None and mean.known and len(known) > 1
    return OverSeeds(mean, stdev(known) if several else math.nan)


def method_rows(runs: Sequence[ReadRun]) -> tuple[list[MethodRow], list[MethodRow]]:
    """The rows of runs that differ in their seed alone: those of sites, and those of all sites together."""
    tables = [(run, table_rows(run)) for run in runs]
    sites = [rows[: len(run.tests.sites)] for run, rows in tables]
    whole = [rows[len(run.tests.sites) :] for run, rows in tables]
    return _joined(sites, runs[0]), _joined(whole, runs[0])


def _joined(tables: Sequence[Sequence[Row]], first: ReadRun) -> list[MethodRow]:
    names = dict.fromkeys(row.name for rows in tables for row in rows)
    parts = []
    for name in names:
        rows = [row for table in tables for row in table if row.name == name]
        scores = {score: over_seeds([row.scores.get(score) for row in rows]) for score in first.task.scores}
        parts.append(MethodRow(name, _range([row.images for row in rows]), len(rows), scores))
    return parts


def _range(counts: Sequence[int | None]) -> str:
    """A number of images, or the smallest and the largest of the seeds; empty where it is not known."""
    known = sorted({count for count in counts if count is not None})
    if len(known) < 2:
        return str(known[0]) if known else ""
    return f"{known[0]} to {known[-1]}"


OF_SEEDS = (
    "Of several seeds: mean ± standard deviation over seeds; of one: with the 95 % interval of its test cases. "
    "*: fewer than ten cases."
)
OF_MODELS = ("mean", "pooled")
"""Rows of all sites together that are a model's; the others are references."""
POPULATION = ("images_by_site", "images_by_class", "images_by_site_and_class")


class PaperTable(NamedTuple):
    """A table of an article.

    Attributes:
        name: of its files, without ending.
        caption: what it shows.
        header: of the printed table.
        rows: printed cells.
        text_columns: how many of the first columns are text; the others are numbers.
        plain_header: of the CSV file; that of the printed table if empty.
        plain_rows: of the CSV file, where it has another header.
    """

    name: str
    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    text_columns: int = 1
    plain_header: Sequence[str] = ()
    plain_rows: Sequence[Sequence[str]] = ()


def paper_tables(report: Report) -> list[PaperTable]:
    """All tables of results, images and settings."""
    rows = {name: method_rows(_runs(method)) for name, method in report.methods.items()}
    whole = [(name, row) for name, (_, found) in rows.items() for row in found]
    by_site = [(name, row) for name, (found, _) in rows.items() for row in found]
    tables = [
        _scores("scores", _references_once(whole), report, "All sites together"),
        _scores("scores_by_site", by_site, report, "Each site"),
        *_classes(report),
        *([_comparison(report.comparison)] if report.comparison else []),
        *_population(report.first.run),
        _settings(report),
    ]
    return [table for table in tables if table.rows]


def _runs(method: Method) -> list[ReadRun]:
    return [reported.run for reported in method.runs]


def _references_once(rows: Sequence[tuple[str, MethodRow]]) -> list[tuple[str, MethodRow]]:
    """The rows of methods, then each reference (ridge, chance) once if all methods have the same."""
    own = [(method, row) for method, row in rows if row.name in OF_MODELS]
    references: dict[str, list[tuple[str, MethodRow]]] = {}
    for method, row in rows:
        if row.name not in OF_MODELS:
            references.setdefault(row.name, []).append((method, row))
    for reference in references.values():
        values = {tuple(score.plain[0] for score in row.scores.values()) for _, row in reference}
        own += (
            reference
            if len(values) > 1
            else [("reference", max((row for _, row in reference), key=lambda row: row.seeds))]
        )
    return own


def _scores(name: str, methods: Sequence[tuple[str, MethodRow]], report: Report, what: str) -> PaperTable:
    names = list(report.task.scores)
    rows, plain = [], []
    for method, row in methods:
        leading = [method, row.name, row.images, str(row.seeds)]
        rows.append([*leading, *(row.scores[score].text for score in names)])
        plain += [[*leading, score, *row.scores[score].plain] for score in names]
    header = ["method", "test images of", "images", "seeds"]
    kinds = {reported.run.tests.model for reported in report.runs.values()}
    whose = {"common": "the federation's selected model", "own": "each site's own choice"}
    caption = (
        f"{what}: scores on test images, of {' or '.join(whose.get(kind, kind) for kind in sorted(kinds))}. {OF_SEEDS} "
        "Pooled: the images of all sites; mean: the unweighted mean over sites."
    )
    titles = [SCORE_NAMES.get(score, score.replace("_", " ")) for score in names]
    return PaperTable(name, caption, [*header, *titles], rows, 2, [*header, "score", *OVER_SEEDS], plain)


def _classes(report: Report) -> Iterator[PaperTable]:
    rows, plain = [], []
    noun, scores = report.task.noun, _scores_of_classes(report)
    known = [key for key in CLASS_NAMES if any(key in seed for seeds in scores.values() for seed in seeds)]
    for names, seeds in scores.items():
        leading = [*names, str(len(seeds))]
        cells = {key: over_seeds([seed.get(key) for seed in seeds]) for key in known}
        rows.append([*leading, *(cell.text for cell in cells.values())])
        plain += [[*leading, key, *cell.plain] for key, cell in cells.items()]
    header = ["method", noun, "seeds"]
    caption = f"Each {noun}, all test images together. {OF_SEEDS}"
    titles = [CLASS_NAMES[key] for key in known]
    yield PaperTable("scores_by_class", caption, [*header, *titles], rows, 2, [*header, "score", *OVER_SEEDS], plain)


def _scores_of_classes(report: Report) -> dict[tuple[str, str], list[Mapping[str, Score]]]:
    """By method and class the scores of each seed that has some."""
    scores = {}
    for method, members in report.methods.items():
        sheets = [run.scores.pooled for run in members.runs if run.scores.pooled]
        for name in report.classes:
            scores[method, name] = [sheet.classes[name] for sheet in sheets if name in sheet.classes]
    return {names: seeds for names, seeds in scores.items() if seeds}


def _comparison(comparison: Comparison) -> PaperTable:
    rows, plain, header = [], [], ["method", "reference"]
    for method, difference in comparison.differences.items():
        row = comparison.row(method)
        header = ["method", "reference", *row]
        interval = f" [{format_number(difference.low, 3)}, {format_number(difference.high, 3)}]"
        known = difference.low == difference.low
        text = f"{format_number(difference.mean, 3)}{interval if known else ''}"
        p_values = format_p(difference.p_value), format_p(comparison.adjusted[method])
        rows.append([method, comparison.reference, str(comparison.seeds[method]), text, *p_values])
        plain.append([method, comparison.reference, *("" if cell is None else str(cell) for cell in row.values())])
    metric = SCORE_NAMES.get(comparison.metric, comparison.metric)
    caption = (
        f"Differences in {metric} to {comparison.reference}, with 95 % intervals. Adjusted p: corrected for the number of "
        "methods (Holm)."
    )
    titles = ["method", "reference", "seeds", "difference", "p", "adjusted p"]
    return PaperTable("comparison", caption, titles, rows, 2, header, plain)


def _population(run: ReadRun) -> Iterator[PaperTable]:
    """The images of the first run; what was not recorded is no table."""
    tables = population_tables(run)[:-1]
    names = POPULATION if len(tables) >= len(POPULATION) else ("images",)
    for name, table in zip(names, tables, strict=False):
        rows = [[cell if isinstance(cell, str) else cell.line for cell in row] for row in table.rows]
        yield PaperTable(name, f"{table.caption}.", table.header, rows, table.text_columns)


def _settings(report: Report) -> PaperTable:
    rows = []
    for name, method in report.methods.items():
        seeds = [reported.run.log.seed for reported in method.runs]
        rows.append([name, "seeds", ", ".join(MISSING if seed is None else str(seed) for seed in seeds)])
        rows += [[name, *pair] for pair in settings_of(method.runs[0].run)]
    caption = "Data, options and software of each method; of several seeds those of the first."
    return PaperTable("settings", caption, ["method", "", "how the models were made"], rows, text_columns=3)


NOT_IN_RECORD = "not recorded"
NO_RULE = "none reported"
SCALARS = "numbers"
ANNEX = ("run", "site", "round", "task", "what left", "kind", "bytes", "rule", "epsilon so far")


def annex_tables(runs: Sequence[ReadRun]) -> list[PaperTable]:
    """What left each site: the sums of each run, and every answer."""
    header = [
        "run",
        "site",
        "rounds",
        "dropped in",
        "parts",
        "bytes of tensors sent",
        "bytes received",
        "rules",
        "epsilon",
    ]
    sums = [row for run in runs for row in _sums(run)]
    answers = [row for run in runs for event in run.log.events for row in _of_event(run, event)]
    return [
        PaperTable(
            "annex_sites",
            "Data protection: what each site sent in the whole run. Rules are the treatments that the site's gate reports; "
            "bytes are of tensors, without numbers and what FLARE adds to a message.",
            header,
            sums,
            5,
        ),
        PaperTable(
            "annex_rounds",
            "Data protection: what left each site in each round. Numbers are scores, losses and counts of images; a message "
            "is not counted in bytes for them.",
            ANNEX,
            answers,
            6,
        ),
    ]


def guarantees(run: ReadRun) -> str:
    """The privacy of a run in a sentence: budgets of ledgers, what gates have reported, or that there is no guarantee."""
    parts = [_budget(one) for one in run.origin.spent]
    reported = {site: entry["epsilon"] for site, entry in run.log.privacy.items() if "epsilon" in entry}
    if not parts and reported:
        parts = [f"{site} reports epsilon {epsilon:.3g}" for site, epsilon in reported.items()]
    rules = _rules(run)
    if rules:
        parts.append(f"rules of the gates: {', '.join(rules)}")
    if not run.log.traffic.up and not parts:
        return "no tensor left a site."
    return f"{'; '.join(parts)}." if parts else f"no treatment by a gate is recorded. {NO_PRIVACY}"


def _rules(run: ReadRun) -> list[str]:
    rules = [f"{name} {rule}" for entry in run.log.privacy.values() for name, rule in entry.get("treated", {}).items()]
    return list(dict.fromkeys(rules))


def _budget(spent: Spent) -> str:
    epsilon = "infinite" if spent.epsilon is None else f"{spent.epsilon:.3g}"
    return f"{spent.site}: epsilon {epsilon}, delta {spent.delta:g}, per {spent.protects}"


def _sums(run: ReadRun) -> Iterator[list[str]]:
    dropped, log = run.log.dropped(), run.log
    for site in log.sites:
        parts = log.bytes.get(site, {})
        moved = traffic({site: parts})
        sent = ", ".join(
            f"{name.removeprefix('up.')} {size} B" for name, size in parts.items() if name.startswith("up.")
        )
        privacy = log.privacy.get(site, {})
        rules = ", ".join(f"{name}: {rule}" for name, rule in privacy.get("treated", {}).items())
        rounds = str(log.contributions.get(site, 0)) if log.contributions else NOT_IN_RECORD
        missed = ", ".join(map(str, dropped.get(site, []))) or "none"
        sizes = [str(moved.up), str(moved.down_global + moved.down_extra)]
        yield [
            run.name,
            run.site_name(site),
            rounds,
            missed,
            sent or "no tensors",
            *sizes,
            rules or NO_RULE,
            _spent(run, site),
        ]


def _spent(run: ReadRun, site: str) -> str:
    booked = [_booked(entry) for entry in run.origin.spent if entry.site == site]
    if booked:
        return "; ".join(booked)
    epsilon = run.log.privacy.get(site, {}).get("epsilon")
    return NOT_IN_RECORD if epsilon is None else f"{epsilon:.4g}"


def _booked(one: Spent) -> str:
    return (
        f"{'infinite' if one.epsilon is None else format(one.epsilon, '.4g')} (delta {one.delta:g}, per {one.protects})"
    )


def _of_event(run: ReadRun, event: Event) -> Iterator[list[str]]:
    """The rows of one answer: each release, and the numbers beside them."""
    if event["event"] != "answer":
        return
    site, number = str(event["site"]), int(event["round"])
    leading = [run.name, run.site_name(site), str(number), str(event["task"])]
    epsilon = _epsilon(run, event, site, number)
    for name, value in event.get("released", {}).items():
        yield [*leading, name, str(value["kind"]), str(value["bytes"]), value.get("treated") or NO_RULE, epsilon]
    # A record of before releases were noted in answers has the bytes of the whole run alone.
    if "released" not in event and any(name.startswith("up.") for name in run.log.bytes.get(site, {})):
        older = not any("released" in entry for entry in run.log.events)
        if older:
            yield [*leading, NOT_IN_RECORD, NOT_IN_RECORD, NOT_IN_RECORD, NOT_IN_RECORD, epsilon]
    metrics: Mapping[str, Any] = event.get("metrics", {})
    if metrics:
        yield [*leading, ", ".join(sorted(metrics)), SCALARS, NOT_IN_RECORD, NO_RULE, epsilon]


def _epsilon(run: ReadRun, event: Event, site: str, number: int) -> str:
    """What the site has reported with its answer, else what its ledger has booked up to the round."""
    reported = event.get("metrics", {}).get(SPENT)
    if reported is not None and math.isfinite(reported):
        return f"{reported:.4g}"
    history = [one for spent in run.origin.spent if spent.site == site for one in spent.history if one[0] <= number]
    if not history:
        return NOT_IN_RECORD
    return "infinite" if history[-1][1] is None else f"{history[-1][1]:.4g}"


NOT_RECORDED = "not recorded"
IMAGE_OPTIONS = ("image_size", "channels", "intensities", "preprocessing", "test_view")
NETWORK_OPTIONS = ("backbone", "head", "norm", "trainable", "dropout", "dropout_at")
IMBALANCE = ("class_weights", "class_counts", "class_weight_limit", "logit_adjustment", "class_balance")
AUGMENTATION = ("weak_augmentation", "weak_view", "strong_levels", "augmentation", "views")


def facts_of(report: Report, drawn: Sequence[str] = ()) -> dict[str, str]:
    """The facts by subject, ``NOT_RECORDED`` where the record has none; ``drawn`` are the names of the figures."""
    runs = [one.run for one in report.runs.values()]
    facts = _facts_of_data(report, runs) | _facts_of_training(report, runs)
    facts |= _facts_of_evaluation(report, runs, drawn) | _facts_of_runs(runs)
    return {name: text.removesuffix(".") for name, text in facts.items()}


def _facts_of_data(report: Report, runs: Sequence[ReadRun]) -> dict[str, str]:
    return {
        "kind": f"Deep learning, {_stated(runs, _setting)}; methods: {', '.join(report.methods)}.",
        "task": f"{report.task.activity.capitalize()} {pluralize(len(report.classes), report.task.noun)}: "
        f"{', '.join(report.classes)}; data set {_stated(runs, lambda run: run.log.problem.get('dataset'))}.",
        "sources": _stated(runs, _source),
        "sites": f"{pluralize(len(report.sites), 'site')}: {', '.join(report.sites)}.",
        "division": _stated(runs, _division),
        "level": _stated(runs, lambda run: _data(run).get("division", {}).get("group_by")),
        "images": _stated(runs[:1], _images),
        "imaging": _stated(runs, lambda run: _chosen(run.log.problem, IMAGE_OPTIONS)),
    }


def _facts_of_training(report: Report, runs: Sequence[ReadRun]) -> dict[str, str]:
    return {
        "network": _stated(runs, lambda run: _chosen(run.log.problem, NETWORK_OPTIONS)),
        "start": _stated(runs, _start),
        "training": " ".join(_training(name, method.runs[0].run) for name, method in report.methods.items()),
        "augmentation": _stated(runs, lambda run: _chosen(run.origin.options, AUGMENTATION)),
        "imbalance": _stated(
            runs, lambda run: _chosen({**run.log.configuration, **run.origin.options}, IMBALANCE, keep_zero=True)
        ),
        "seeds": " ".join(_seeds(name, [one.run for one in method.runs]) for name, method in report.methods.items()),
        "selection": " ".join(f"{run.name}: {_selected(run)}." for run in runs),
    }


def _facts_of_evaluation(report: Report, runs: Sequence[ReadRun], drawn: Sequence[str]) -> dict[str, str]:
    pooled = any(reported.scores.pooled for reported in report.runs.values())
    return {
        "scores": f"{', '.join(SCORE_NAMES.get(name, name) for name in report.task.scores)}; main score: "
        f"{SCORE_NAMES.get(report.metric, report.metric)}.",
        "uncertainty": "Intervals are 95 % intervals, a case being "
        f"{_stated(runs, lambda run: _a(run.tests.unit) if run.tests.known else None)}; of several seeds mean, standard "
        "deviation, and from three seeds Student's interval.",
        "results": " ".join(_result(report, name) for name in report.methods),
        "by_site": "Table scores_by_site." if any(run.tests.sites for run in runs) else NOT_RECORDED,
        "by_class": "Table scores_by_class." if pooled else NOT_RECORDED,
        "thresholds": _thresholds(report),
        "failures": ", ".join(name for name in drawn if name.endswith(("confusion", "risk_coverage"))) or NOT_RECORDED,
        "calibration": ", ".join(name for name in drawn if name.endswith(("reliability", "roc"))) or NOT_RECORDED,
    }


def _facts_of_runs(runs: Sequence[ReadRun]) -> dict[str, str]:
    return {
        "software": _stated(runs, lambda run: ", ".join(f"{name} {text}" for name, text in run.log.versions.items())),
        "hardware": _stated(runs, _machine),
        "time": " ".join(_time(run) for run in runs),
        "privacy": _privacy(runs),
        "command": _stated(runs, lambda run: run.origin.provenance.get("command")),
        "states": " ".join(_state(run) for run in runs),
    }


def methods_paragraphs(facts: Mapping[str, str]) -> list[tuple[str, str]]:
    """The methods section: titles and texts, from :func:`facts_of`."""

    def stated(**subjects: str) -> str:
        return " ".join(f"{word.replace('_', ' ')}: {facts[name]}." for word, name in subjects.items())

    views = stated(Views_of_the_images="augmentation", Imbalance_of_classes="imbalance")
    return [
        ("Task and sites", f"{facts['kind']}. {facts['task']}. {facts['sites']}."),
        ("Images", stated(Source="sources", Division="division", Level_of_the_division="level", Numbers="images")),
        ("Preparation and network", stated(Images="imaging", Network="network", Start="start")),
        ("Training", f"{facts['training']}. {facts['seeds']}. {views} All options are in table settings."),
        ("Selection", f"{facts['selection']}."),
        ("Evaluation", f"{stated(Scores='scores')} {facts['uncertainty']}. {stated(Thresholds='thresholds')}"),
        ("Privacy", f"{facts['privacy']}."),
        ("Software and hardware", f"{stated(Software='software', Hardware='hardware')} {facts['time']}."),
        ("Completeness", f"{facts['states']}."),
    ]


def _privacy(runs: Sequence[ReadRun]) -> str:
    """The guarantees of all runs; runs that have the same are named together."""
    runs_by_guarantee: dict[str, list[str]] = {}
    for run in runs:
        runs_by_guarantee.setdefault(guarantees(run), []).append(run.name)
    return " ".join(f"{', '.join(names)}: {text}" for text, names in runs_by_guarantee.items())


def _time(run: ReadRun) -> str:
    return f"{run.name}: {run.log.seconds:.0f} s, started {run.log.started or NOT_RECORDED}."


def _state(run: ReadRun) -> str:
    return f"{run.name}: {run.log.rounds_done} of {run.log.rounds} rounds, {run.log.status}."


def _stated(runs: Iterable[ReadRun], what: Callable[[ReadRun], Any]) -> str:
    """What the runs say, each different answer once."""
    answers = dict.fromkeys(str(text) if (text := what(run)) not in (None, "") else NOT_RECORDED for run in runs)
    return " / ".join(answers)


def _data(run: ReadRun) -> Mapping[str, Any]:
    return run.origin.provenance.get("data") or {}


def _setting(run: ReadRun) -> str:
    return (
        "federated, simulated on one machine" if run.origin.provenance.get("simulated") else "federated between sites"
    )


def _source(run: ReadRun) -> str | None:
    if "import" in _data(run):
        return str(account(_data(run)["import"]))
    synthetic = run.origin.provenance.get("simulated") and "data" in run.origin.provenance and not _data(run)
    return "synthetic images that the package draws" if synthetic else None


def _division(run: ReadRun) -> str | None:
    division = _data(run).get("division")
    return _listed(division) if division else None


def _images(run: ReadRun) -> str | None:
    known = population_of(run)
    totals = {part: sum(known.total(site, part) for site in known.counts) for part in known.parts}
    shown = [f"{part} {known.text(count, False)}" for part, count in totals.items()]
    return f"{', '.join(shown)} (by site and class in tables images_*)" if shown else None


def _chosen(options: Mapping[str, Any], names: Sequence[str], keep_zero: bool = False) -> str | None:
    known = {name: options[name] for name in names if name in options}
    return _listed({name: value for name, value in known.items() if keep_zero or value is not None}) or None


def _listed(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {'none' if value is None else value}" for name, value in values.items())


def _start(run: ReadRun) -> str | None:
    if not run.log.problem:
        return None
    named = run.log.configuration.get("start_from")
    weights = run.log.problem.get("weights")
    return f"the trained model {named}" if named else f"weights {weights}" if weights else "random weights"


def _training(name: str, run: ReadRun) -> str:
    preset = run.log.configuration.get("preset") or "none"
    chosen = _chosen(run.origin.options, ("algorithm", "learning_rate", "batch_size", "steps", "epochs"))
    return f"{name}: method {run.log.method}, preset {preset}, {run.log.rounds} rounds, {chosen or NOT_RECORDED}."


def _seeds(name: str, runs: Sequence[ReadRun]) -> str:
    seeds = [NOT_RECORDED if run.log.seed is None else str(run.log.seed) for run in runs]
    return f"{name}: {pluralize(len(runs), 'run')}, seed {', '.join(seeds)}."


def _selected(run: ReadRun) -> str:
    selected = run.log.selected
    if not selected.get("metric"):
        return f"selected model {NOT_RECORDED}"
    basis = f" ({selected['basis']})" if selected.get("basis") else ""
    metric = SCORE_NAMES.get(selected["metric"], selected["metric"])
    return f"model of round {selected.get('round', NOT_RECORDED)}, by {metric} on validation images{basis}"


def _result(report: Report, name: str) -> str:
    score = over_seeds([run.scores.headline(report.metric) for run in report.methods[name].runs])
    return f"{name}: {SCORE_NAMES.get(report.metric, report.metric)} {score.text}."


def _thresholds(report: Report) -> str:
    points = {
        run: ", ".join(f"{name} {point.threshold:.3g}" for name, (point, _) in reported.points.items())
        for run, reported in report.runs.items()
        if reported.points
    }
    text = "; ".join(f"{run}: {thresholds}" for run, thresholds in points.items())
    return f"{text} (find nine in ten validation images)" if text else NOT_RECORDED


def _machine(run: ReadRun) -> str | None:
    machine = run.log.machine
    if not machine:
        return None
    cards = ", ".join(machine.get("graphics", ())) or "no NVIDIA card found"
    whose = "" if run.origin.provenance.get("simulated") else " (the server; sites: not recorded)"
    cores = pluralize(machine.get("cores", 0), "core")
    return f"{machine.get('system')}, {machine.get('processor')}, {cores}, {cards}{whose}"


def _a(unit: str) -> str:
    return f"an {unit}" if unit.startswith(("a", "e", "i", "o", "u")) else f"a {unit}"


class ChecklistItem(NamedTuple):
    """An item: number, section, its words, and the subjects of :func:`~grandrounds.reporting.paper.folder.facts_of`."""

    number: str
    section: str
    words: str
    subjects: tuple[str, ...] = ()


def checklist(name: str) -> list[ChecklistItem]:
    """The items of ``claim`` or ``tripod_ai``, from ``checklists.csv`` beside this file."""
    with Path(__file__).with_name("checklists.csv").open(newline="", encoding="utf-8") as stream:
        rows = [row for row in csv.DictReader(stream) if row["checklist"] == name]
    return [ChecklistItem(row["item"], row["section"], row["words"], tuple(row["subjects"].split())) for row in rows]


FOR_AUTHORS = "to be completed by the authors"
CHECKLIST_COLUMNS = ("item", "section", "what it asks for", "state", "from the record")
FILLED, PART, LACKING = "from the record", "in part from the record", "not recorded"


def checklist_rows(items: Sequence[ChecklistItem], facts: Mapping[str, str]) -> list[list[str]]:
    """A row for each item with its state; a subject that the record lacks says so."""
    rows = []
    for item in items:
        texts = list(dict.fromkeys(facts[name] for name in item.subjects))
        known = [text != LACKING for text in texts]
        state = (
            FOR_AUTHORS if not texts else FILLED if all(known) else PART if any(known) else f"{LACKING}, {FOR_AUTHORS}"
        )
        rows.append([item.number, item.section, item.words, state, f"{'. '.join(texts)}." if any(known) else ""])
    return rows


def checklist_markdown(title: str, rows: Sequence[Sequence[str]]) -> str:
    """A checklist as a table of Markdown."""
    lines = [
        f"# {title}",
        "",
        "Items in short words; the published checklist is what counts. What a run's record answers is filled in and must be "
        "read before it is sent; the record knows nothing of patients' recruitment, ethics or the clinic.",
        "",
        f"| {' | '.join(CHECKLIST_COLUMNS)} |",
        f"|{'---|' * len(CHECKLIST_COLUMNS)}",
        *(f"| {' | '.join(map(plain_markdown, row))} |" for row in rows),
    ]
    return "\n".join(lines) + "\n"


SPECIALS = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "%": r"\%", "#": r"\#", "_": r"\_",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}",
    "±": r"$\pm$", "—": "---", "\N{EN DASH}": "--", "“": "``", "”": "''", "\N{RIGHT SINGLE QUOTATION MARK}": "'",
    "\N{NO-BREAK SPACE}": "~", '"': "''",
    "[": "{[}", "]": "{]}",
}  # fmt: skip
"""A bracket at the start of a row would be an argument of the line end before it."""
WIDE = 40
"""Characters from which a column has a fixed width, so that its text is broken into lines."""
PREAMBLE = Path(__file__).parents[1] / "templates" / "preview.tex"


def latex_text(text: str) -> str:
    r"""A text that LaTeX prints as it is, in one line.

    Example:
        >>> latex_text("50 % of a_b & c")
        '50 \\% of a\\_b \\& c'
    """
    line = "".join(sign if sign.isprintable() else " " for sign in text.replace("\N{NO-BREAK SPACE}", " "))
    return "".join(SPECIALS.get(sign, sign) for sign in line)


def latex_table(table: PaperTable) -> str:
    """A table with its caption and label, which goes on over pages where it is long; it needs booktabs, array, longtable."""
    head = " & ".join(latex_text(name) for name in table.header) + r" \\"
    lines = [
        rf"\begin{{longtable}}{{{_columns(table)}}}",
        rf"\caption{{{latex_text(table.caption)}}}\label{{tab:{table.name.replace('_', '-')}}}\\",
        r"\toprule", head, r"\midrule", r"\endfirsthead",
        r"\toprule", head, r"\midrule", r"\endhead",
        r"\bottomrule", r"\endlastfoot",
        *(" & ".join(latex_text(cell) for cell in row) + r" \\" for row in table.rows),
        r"\end{longtable}",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def latex_paragraphs(paragraphs: Iterable[tuple[str, str]]) -> str:
    """Paragraphs with their titles."""
    return "\n".join(rf"\paragraph{{{latex_text(title)}}} {latex_text(text)}" + "\n" for title, text in paragraphs)


def latex_preview(tables: Sequence[PaperTable], figures: Sequence[tuple[str, str]]) -> str:
    """A document with everything, to look at; ``figures`` are paths and captions."""
    parts = [PREAMBLE.read_text(encoding="utf-8"), r"\input{methods.tex}", r"\begin{landscape}\footnotesize"]
    parts += [rf"\input{{tables/{table.name}.tex}}" for table in tables]
    parts.append(r"\end{landscape}")
    for path, caption in figures:
        picture = rf"\includegraphics{{{path}}}"
        parts += [r"\begin{figure}[p]\centering", picture, rf"\caption{{{latex_text(caption)}}}", r"\end{figure}"]
    return "\n".join([*parts, r"\end{document}", ""])


def _columns(table: PaperTable) -> str:
    """Text to the left, numbers to the right; long texts in lines of one width."""
    longest = [max(len(str(row[n])) for row in (table.header, *table.rows)) for n in range(len(table.header))]
    wide = sum(length > WIDE for length in longest)
    # A page of a landscape has about 160 characters of small print in a line.
    taken = sum(length / 160 + 0.017 for length in longest if length <= WIDE)
    share = max(0.95 - taken - 0.017 * wide, 0.2) / max(wide, 1)
    kinds = []
    for number, length in enumerate(longest):
        if length > WIDE:
            kinds.append(rf">{{\raggedright\arraybackslash}}p{{{share:.2f}\linewidth}}")
        else:
            kinds.append("l" if number < table.text_columns else "r")
    return "".join(kinds)


POINTS = 8
"""Size of the text in tables."""


def word_document(title: str, paragraphs: Iterable[tuple[str, str]], tables: Sequence[PaperTable]) -> bytes:
    """A document of titled paragraphs and numbered tables, on landscape pages."""
    import docx
    from docx.enum.section import WD_ORIENT

    document = docx.Document()
    page = document.sections[0]
    page.orientation, page.page_width, page.page_height = WD_ORIENT.LANDSCAPE, page.page_height, page.page_width
    document.add_heading(_printable(title), 1)
    for name, text in paragraphs:
        paragraph = document.add_paragraph()
        paragraph.add_run(f"{_printable(name)}. ").bold = True
        paragraph.add_run(_printable(text))
    for number, table in enumerate(tables, 1):
        document.add_paragraph(_printable(f"Table {number}. {table.caption}"), style="Caption")
        _add_table(document, table)
    stream = io.BytesIO()
    document.save(stream)
    return stream.getvalue()


def _add_table(document: Any, table: PaperTable) -> None:
    from docx.enum.text import WD_ALIGN_PARAGRAPH
    from docx.shared import Pt

    lines = [table.header, *table.rows]
    grid = document.add_table(len(lines), len(table.header), style="Light Shading")
    for row, line in zip(grid.rows, lines, strict=True):
        for column, (cell, text) in enumerate(zip(row.cells, line, strict=True)):
            (paragraph,) = cell.paragraphs
            paragraph.add_run(_printable(text)).font.size = Pt(POINTS)
            if column >= table.text_columns:
                paragraph.alignment = WD_ALIGN_PARAGRAPH.RIGHT
    document.add_paragraph()


def _printable(text: str) -> str:
    """A text without control characters, which XML does not have."""
    return "".join(sign if sign.isprintable() else " " for sign in text)


CHECKLISTS = {"claim": "CLAIM, update of 2024", "tripod_ai": "TRIPOD+AI"}


def require_new_folder(folder: Path) -> None:
    """Refuse a folder in which something is.

    Raises:
        ConfigurationError: then, or if it is a file.
    """
    if folder.is_file():
        raise ConfigurationError(f"{folder} is a file; name a folder that does not exist")
    if folder.is_dir() and any(folder.iterdir()):
        raise ConfigurationError(
            f"{folder} is not empty, and what was edited there would be lost; name another folder, or move this one away"
        )


def write_paper(
    report: Report, folder: Path, word: bool = False, step: Callable[[str], None] = lambda _: None
) -> list[Path]:
    """Write tables, figures, methods, checklists and the annex.

    Args:
        report: of the runs.
        folder: of the files; it must be empty or not exist.
        word: write Word documents too.
        step: is called with what is done next.

    Returns:
        The paths that were written.

    Raises:
        ConfigurationError: if there is something in the folder.
    """
    require_new_folder(folder)
    with temporary_sibling(folder.absolute()) as temporary:
        names = []
        for name, content in _files(report, word, step):
            path = temporary / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            names.append(name)
        require_new_folder(folder)
        put_in_place(temporary, folder.absolute())
    return [folder / name for name in names]


def _files(report: Report, word: bool, step: Callable[[str], None]) -> Iterator[tuple[str, bytes]]:
    step("drawing the figures")
    drawings = paper_drawings(report)
    for drawing in drawings:
        step(f"writing {drawing.name.replace('_', ' ')}")
        for name, content in at_journal_widths(drawing):
            yield f"figures/{name}", content
    yield "figures/captions.md", _captions(drawings).encode()
    step("writing tables and text")
    tables, annex = paper_tables(report), annex_tables([reported.run for reported in report.runs.values()])
    for table in [*tables, *annex]:
        yield f"tables/{table.name}.csv", csv_bytes(table.plain_header or table.header, table.plain_rows or table.rows)
        yield f"tables/{table.name}.tex", latex_table(table).encode()
    facts = facts_of(report, [drawing.name for drawing in drawings])
    methods = methods_paragraphs(facts)
    yield "methods.md", _markdown("Methods", methods).encode()
    yield "methods.tex", latex_paragraphs(methods).encode()
    if word:
        yield "tables.docx", word_document(report.title, methods, tables)
        yield "annex.docx", word_document("Annex for data protection", [("Guarantees", facts["privacy"])], annex)
    for name, title in CHECKLISTS.items():
        rows = checklist_rows(checklist(name), facts)
        yield f"checklists/{name}.md", checklist_markdown(title, rows).encode()
        yield f"checklists/{name}.csv", csv_bytes(CHECKLIST_COLUMNS, rows)
    pictures = [(f"figures/{PAGE_MM}mm/{drawing.name}.pdf", drawing.caption) for drawing in drawings]
    yield "preview.tex", latex_preview([*tables, *annex], pictures).encode()


def _captions(drawings: Sequence[Drawing]) -> str:
    texts = [
        f"**{drawing.name}.** {plain_markdown(drawing.caption)}\n\n{plain_markdown(drawing.alt)}\n"
        for drawing in drawings
    ]
    return "\n".join(["# Captions and alternative texts\n", *texts])


def _markdown(title: str, paragraphs: Sequence[tuple[str, str]]) -> str:
    return "\n".join([f"# {title}\n", *(f"**{name}.** {plain_markdown(text)}\n" for name, text in paragraphs)])


COLUMN_MM, PAGE_MM = 85, 174
INCH_MM = 25.4
TEXT = 0.82
"""Of the print of a report: about 8 and 6.5 points, which journals ask for."""
LEAST_HEIGHT = 0.8
"""A narrow figure keeps so much of its height."""


def paper_drawings(report: Report) -> list[Drawing]:
    """The figures of all methods together, and of the first run of each."""
    firsts = [method.runs[0] for method in report.methods.values()]
    return [*comparison_drawings(report), *(drawing for first in firsts for drawing in run_drawings(report, first))]


def at_journal_widths(drawing: Drawing) -> Iterator[tuple[str, bytes]]:
    """A figure as PDF and SVG for one column and for the whole page: paths and contents."""
    figure = drawing.figure
    natural = tuple(float(size) for size in figure.get_size_inches())
    _reduce_text(figure)
    margin = TEXT
    for width in (COLUMN_MM, PAGE_MM):
        across = width / INCH_MM
        _resize(figure, across, natural[1] * min(max(across / natural[0], LEAST_HEIGHT), 1.0), margin)
        margin = 1.0
        yield f"{width}mm/{drawing.name}.svg", svg_of(drawing)
        yield f"{width}mm/{drawing.name}.pdf", _pdf_of(figure)


def _resize(figure: Figure, width: float, height: float, margin: float) -> None:
    """Give a figure another size; the margins of a single plot keep their size, times ``margin``, as its text does."""
    old_width, old_height = figure.get_size_inches()
    figure.set_size_inches(width, height)
    if figure.get_layout_engine() is not None or len(figure.axes) != 1:
        return
    box = figure.axes[0].get_position()
    left, right = box.x0 * old_width * margin / width, (1 - box.x1) * old_width * margin / width
    low, high = box.y0 * old_height * margin / height, (1 - box.y1) * old_height * margin / height
    figure.axes[0].set_position((left, low, max(1 - left - right, 0.2), max(1 - low - high, 0.2)))


def _reduce_text(figure: Figure) -> None:
    """Make all text smaller, that of ticks which are drawn later, too."""
    from matplotlib.text import Text

    ticks = set()
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            labels = [*axis.get_ticklabels(), *axis.get_ticklabels(minor=True)]
            ticks |= {id(label) for label in labels}
            if labels:
                axis.set_tick_params(labelsize=float(labels[0].get_fontsize()) * TEXT)
    for text in figure.findobj(Text):
        if id(text) not in ticks:
            text.set_fontsize(float(text.get_fontsize()) * TEXT)


def _pdf_of(figure: Figure) -> bytes:
    """A figure as PDF without a date, with its text as text."""
    import matplotlib

    stream = io.BytesIO()
    with matplotlib.rc_context({**SVG_OPTIONS, "pdf.fonttype": 42}):
        figure.savefig(stream, format="pdf", metadata={"CreationDate": None, "Creator": None, "Producer": None})
    return stream.getvalue()
