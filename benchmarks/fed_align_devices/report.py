"""The tables of the benchmark between four devices, an analysis of variance, and how much a device could cost at most."""

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from benchmarks.fed_align_cl_ham10000.report import LAST
from benchmarks.fed_align_cl_ham10000.report import parts as settings_parts
from benchmarks.report import Part
from benchmarks.results import EXPLAINED, RATIO, Content, Pair, Results, difference_table, pair_by_seed, shared_seeds

SITES = ("site-1", "site-2", "site-3")
SETTINGS = ("poor", "equal")
FACTORIAL = ("fed", "fed_cl", "fed_align", "fed_align_cl")
CONTROLS = {"poor_no_device": "poor", "equal_no_device": "equal"}


def parts(results: Results) -> Iterator[Part]:
    """The settings' tables, the effects of both parts, and the AUC of Fed without the synthetic device less that with it."""
    yield from settings_parts(results)
    found = [[name, len(effects[0].ours), *effects] for name in SETTINGS if (effects := _effects(results, name))]
    if found:
        yield (
            "Analysis of variance of the mean AUC with two factors within seeds: Fed, Fed-CL, Fed-Align and Fed-Align-CL, "
            "last round. Each factor has two levels, so that p of its F test is that of a paired t test. An effect is the "
            "mean difference between its levels; the interaction is what the curriculum adds with alignment less what it "
            f"adds without. {EXPLAINED}"
        )
        yield difference_table(["setting", "seeds", "alignment", "curriculum", "interaction"], found)
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


def _effects(results: Results, setting: str) -> list[Pair]:
    """Alignment, curriculum and their interaction, by seed; nothing without seeds of all four arms."""
    arms = [results.settings.get(setting, {}).get(name, {}) for name in FACTORIAL]
    seeds = shared_seeds(*arms)
    if not seeds:
        return []
    fed, curriculum, alignment, both = (np.array([_area(arm[seed], SITES) for seed in seeds]) for arm in arms)
    ratio = arms[0][seeds[0]].get(RATIO)
    return [
        Pair(list((alignment + both) / 2), list((fed + curriculum) / 2), ratio),
        Pair(list((curriculum + both) / 2), list((fed + alignment) / 2), ratio),
        Pair(list(both - alignment), list(curriculum - fed), ratio),
    ]


def _area(run: Content, sites: Sequence[str]) -> float:
    found = run["models"]["federation"]["scores"][LAST]["sites"]
    return float(np.mean([found[site]["roc"] for site in sites]))
