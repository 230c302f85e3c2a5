"""Tables of trained networks beside the head that they start from, and validation scores by round."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.first_steps.report import SCORES
from benchmarks.report import Part
from benchmarks.results import EXPLAINED, Results, Seeds, difference_table, pair_by_seed
from benchmarks.tables import markdown_table, mean_and_spread

HEAD = "ridge head"


def parts(results: Results) -> Iterator[Part]:
    """For each setting its rows, mean differences from the head and from the first method, and the curve of each row."""
    yield EXPLAINED
    for setting, methods in results.settings.items():
        if not methods:
            continue
        content = results.configuration["settings"][setting]
        yield f"### {content['title']}"
        rows, differences = [], []
        first, beside = next(iter(methods.items()))
        for method, runs in methods.items():
            heads: Seeds = {
                seed: {**run, **run["ridge"], "steps": 0, "row_cpu_seconds": run["ridge"]["cpu_seconds"]}
                for seed, run in runs.items()
            }
            shown = ((HEAD, heads), (results.titles[method], runs))
            for title, each in shown if method == first else shown[1:]:
                rows += [[title, seed, *_scores({seed: each[seed]}), *_effort(each, seed)] for seed in sorted(each)]
                rows.append([title, "mean", *_scores(each), "", ""])
            others = {HEAD: heads, **({results.titles[first]: beside} if method != first else {})}
            for title, other in others.items():
                pairs = [
                    pair_by_seed(runs, other, lambda run, name=name: float(run["scores"][name])) for name in SCORES
                ]
                differences.append([f"{results.titles[method]} - {title}", len(runs), *pairs])
        yield markdown_table(["method", "division seed", *SCORES.values(), "steps", "CPU seconds"], rows)
        yield difference_table(["difference", "seeds", *SCORES.values()], differences)
        yield "Log-likelihood of the validation images after rounds (0: the head); the best is selected."
        rounds = sorted({int(number) for runs in methods.values() for run in runs.values() for number in run["curve"]})
        curves = [
            [results.titles[method], seed, *(_at(run, number) for number in rounds)]
            for method, runs in methods.items()
            for seed, run in sorted(runs.items())
        ]
        yield markdown_table(["method", "division seed", *map(str, rounds)], curves)


def _scores(runs: Seeds) -> list[str]:
    values = [[run["scores"][score] for run in runs.values()] for score in SCORES]
    return [mean_and_spread(each) if len(each) > 1 else f"{each[0]:.3f}" for each in values]


def _effort(runs: Seeds, seed: int) -> list[str]:
    spent = runs[seed]["row_cpu_seconds"]
    return [str(runs[seed]["steps"]), "" if spent is None else f"{spent:.0f}"]


def _at(run: dict[str, dict[str, dict[str, float]]], number: int) -> str:
    scored = run["curve"].get(str(number), {})
    return "".join(f"{value:.3f}" for value in scored.values())
