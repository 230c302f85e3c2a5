"""The tables are those of the benchmark between four devices; beside them, how much a device could cost at most."""

from collections.abc import Iterator
from functools import partial

import numpy as np

from benchmarks.fed_align_cl_ham10000.report import LAST
from benchmarks.fed_align_cl_ham10000.report import parts as settings_parts
from benchmarks.report import Part
from benchmarks.results import EXPLAINED, Content, Results, difference_table, pair_by_seed

SITES = ("site-1", "site-2", "site-3")
WITHOUT, WITH = "poor_no_device", "poor"


def parts(results: Results) -> Iterator[Part]:
    """The settings' tables, and the AUC of Fed without the synthetic device less that with it."""
    yield from settings_parts(results)
    without, device = (results.settings.get(name, {}).get("fed", {}) for name in (WITHOUT, WITH))
    if without and device:
        cells = [pair_by_seed(without, device, partial(_area, sites=[site])) for site in SITES]
        mean = pair_by_seed(without, device, partial(_area, sites=SITES))
        yield f"AUC of Fed without the synthetic device less Fed with it, last round. {EXPLAINED}"
        yield difference_table(["images", "seeds", *SITES, "mean"], [["without - with", len(mean.ours), *cells, mean]])


def _area(run: Content, sites: list[str]) -> float:
    found = run["models"]["federation"]["scores"][LAST]["sites"]
    return float(np.mean([found[site]["roc"] for site in sites]))
