"""Write the table of this benchmark from its results into ``docs/privacy.md``, between the markers.

    python benchmarks/privacy_utility/report.py

It works with whatever results are there; each row says of how many seeds it is. ``--results`` and ``--page`` are for trying
it elsewhere.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

from grandrounds.evaluation.tables import markdown_table, mean_and_spread, replace_section
from grandrounds.models.registry import build_model
from grandrounds.protocol.problem import ModelSpec

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "privacy.md"
CONFIGURATION = json.loads((HERE / "configuration.json").read_text())
BEGIN, END = "<!-- privacy_utility: begin -->", "<!-- privacy_utility: end -->"
SCORES = {"auc_macro": "AUC", "balanced_accuracy": "balanced accuracy", "accuracy": "accuracy"}


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=HERE / "results", help="folder of the runs' JSON files")
    parser.add_argument("--page", type=Path, default=PAGE, help="document with the markers")
    arguments = parser.parse_args()
    rows = table_rows(arguments.results)
    header = ["method", "who is hidden", "epsilon", "noise multiplier", "noise over update", "seeds", *SCORES.values()]
    text = markdown_table(header, rows) if rows else "There are no results yet."
    arguments.page.write_text(replace_section(arguments.page.read_text(), BEGIN, END, text))


def table_rows(folder: Path) -> list[list[object]]:
    """A row for each method and protection, methods together, without protection first."""
    rows = []
    for method in CONFIGURATION["methods"]:
        for setting, pairs in CONFIGURATION["rows"].items():
            for name, protection in pairs:
                runs = _runs(folder, f"{setting}_{name}_{protection}") if name == method else []
                if runs:
                    rows.append(_row(method, protection, runs))
    return rows


def _runs(folder: Path, row: str) -> list[dict[str, Any]]:
    paths = [folder / f"{row}_{seed}.json" for seed in CONFIGURATION["seeds"]]
    return [json.loads(path.read_text()) for path in paths if path.is_file()]


def _row(method: str, protection: str, runs: list[dict[str, Any]]) -> list[object]:
    scores = [mean_and_spread([run["scores"][score] for run in runs]) for score in SCORES]
    titles = CONFIGURATION["methods"][method]["title"], CONFIGURATION["protections"][protection]["title"]
    if protection == "none":
        return [*titles, "infinite", None, None, len(runs), *scores]
    spent = max(run["budget"]["epsilon"] for run in runs)
    multiplier = max(run["noise_multiplier"] for run in runs)
    ratio = f"{noise_over_update(multiplier, runs[0]['sites']):.0f}" if protection == "site" else None
    return [*titles, f"{spent:.2f}", f"{multiplier:.2f}", ratio, len(runs), *scores]


def noise_over_update(multiplier: float, sites: int) -> float:
    """Length of the noise in the mean of all sites' updates, over the longest that the mean update can be.

    With the bound C on each update, the noise of one site has the standard deviation 2 C z in each entry of the model.
    """
    entries = sum(value.numel() for value in build_model(ModelSpec("compact", 7, norm="group"), 0).parameters())
    return 2 * multiplier * math.sqrt(entries / sites)


if __name__ == "__main__":
    main()
