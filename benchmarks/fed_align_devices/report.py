"""The tables are those of the benchmark between four devices; beside them, how much a device could cost at most."""

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from benchmarks.fed_align_cl_ham10000.report import LAST
from benchmarks.fed_align_cl_ham10000.report import parts as settings_parts
from benchmarks.report import Part
from benchmarks.results import EXPLAINED, Content, Results, difference_table, pair_by_seed

SITES = ("site-1", "site-2", "site-3")
CONTROLS = {"poor_no_device": "poor", "equal_no_device": "equal"}


def parts(results: Results) -> Iterator[Part]:
    """The settings' tables, and the AUC of Fed without the synthetic device less that with it."""
    yield from settings_parts(results)
    rows = []
    for without, setting in CONTROLS.items():
        ours, theirs = (results.settings.get(name, {}).get("fed", {}) for name in (without, setting))
        if ours and theirs:
            cells = [
                pair_by_seed(ours, theirs, partial(_area, sites=sites)) for sites in (*zip(SITES, strict=True), SITES)
            ]
            rows.append([setting, len(cells[-1].ours), *cells])
    if rows:
        yield f"AUC of Fed without the synthetic device less Fed with it, last round. {EXPLAINED}"
        yield difference_table(["setting", "seeds", *SITES, "mean"], rows)


def _area(run: Content, sites: Sequence[str]) -> float:
    found = run["models"]["federation"]["scores"][LAST]["sites"]
    return float(np.mean([found[site]["roc"] for site in sites]))
