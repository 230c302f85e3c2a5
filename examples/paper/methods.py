"""The facts that a record has, by subject, and the methods section that is made of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from examples.paper.annex import guarantees
from examples.paper.tables import NOT_RECORDED, over_seeds
from grandrounds.data.importing import account
from grandrounds.reporting.model import Report
from grandrounds.reporting.population import population_of
from grandrounds.reporting.run import ReadRun
from grandrounds.reporting.tables import SCORE_NAMES, pluralize

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
