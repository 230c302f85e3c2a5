"""Tables of the methods beside ridge, for this benchmark's page and for the methods' own.

python -m benchmarks.strong_base.report      # the tables in docs/methods
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from benchmarks.experiment import BENCHMARKS, read_configuration
from benchmarks.first_steps.report import SCORES
from benchmarks.report import Part
from benchmarks.results import (
    EXPLAINED,
    Content,
    Methods,
    Results,
    Seeds,
    difference_table,
    pair_by_seed,
    untested_difference,
)
from benchmarks.tables import markdown_table, mean_and_spread, replace_section

NAME = "strong_base"
OWN_HEADS, ENSEMBLE = "own_heads", "ensemble"
PAGES = BENCHMARKS.parent / "docs" / "methods"


def main() -> None:
    for page, table in tables().items():
        path = PAGES / f"{page}.md"
        path.write_text(replace_section(path.read_text(encoding="utf-8"), NAME, table), encoding="utf-8")


def tables() -> dict[str, str]:
    """The table of each method's page: scores, and differences from the first row on the same divisions."""
    found = {}
    for page, content in read_configuration(NAME)["pages"].items():
        results = Results(content["benchmark"])
        runs, titles = methods_of(results, content["setting"])
        methods = [method for method in content["methods"] if method in runs]
        score = partial(_score, name=content["score"])
        rows = []
        for method in methods:
            scores = mean_and_spread([score(run) for run in runs[method].values()])
            pair = pair_by_seed(runs[method], runs[methods[0]], score)
            less = "" if method == methods[0] else untested_difference(pair)
            rows.append([titles[method], len(runs[method]), scores, less, _minutes(runs[method])])
        header = ["method", "seeds", SCORES[content["score"]], "less the first row", "CPU minutes"]
        found[page] = markdown_table(header, rows)
    return found


def parts(results: Results) -> Iterator[Part]:
    """For each setting the means of its methods, and the differences that its protocol names."""
    yield EXPLAINED
    for setting, content in results.configuration["settings"].items():
        found, titles = methods_of(results, setting)
        if not found:
            continue
        yield f"### {content['title']}"
        rows = [[titles[method], len(runs), *_scores(runs), _minutes(runs)] for method, runs in found.items()]
        yield markdown_table(["method", "seeds", *SCORES.values(), "CPU minutes"], rows)
        compared = [pair for pair in content["compared"] if found.keys() >= set(pair)]
        differences = []
        for ours, theirs in compared:
            pair = pair_by_seed(found[ours], found[theirs], partial(_score, name=content["primary"]))
            differences.append([f"{titles[ours]} - {titles[theirs]}", len(pair.ours), pair])
        yield difference_table(["difference", "seeds", SCORES[content["primary"]]], differences)


def methods_of(results: Results, setting: str) -> tuple[Methods, dict[str, str]]:
    """Results and titles of a setting's methods, and of the ensemble, which is computed from the sites' own heads."""
    found = dict(results.settings[setting])
    if OWN_HEADS in found:
        found[ENSEMBLE] = {seed: {**run, "scores": run[ENSEMBLE]} for seed, run in found[OWN_HEADS].items()}
    return found, {**results.titles, ENSEMBLE: "mean of the predictions of these heads (ensemble)"}


def _score(run: Content, name: str) -> float:
    return float(run["scores"][name])


def _scores(runs: Seeds) -> list[str]:
    return [mean_and_spread([run["scores"][score] for run in runs.values()]) for score in SCORES]


def _minutes(runs: Seeds) -> str:
    seconds = [run.get("row_cpu_seconds", run["cpu_seconds"]) for run in runs.values()]
    return mean_and_spread([each / 60 for each in seconds if each is not None], 1)


if __name__ == "__main__":
    main()
