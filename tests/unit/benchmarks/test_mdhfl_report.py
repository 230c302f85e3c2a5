"""Which differences of mutual learning are tested, and which are only listed."""

from benchmarks.mdhfl_pbc.report import Report
from benchmarks.results import Results


def test_only_pairs_with_all_planned_seeds_are_tested():
    results = Results("mdhfl_heads")
    for seeds in results.settings["none"].values():
        for seed in [seed for seed in seeds if seed > 3]:
            del seeds[seed]
    found = list(Report(results).differences())
    tested, listed = (part.splitlines()[2:] for part in (found[1], found[3]))
    assert {row.split(" | ")[2] for row in tested} == {"10"}
    assert all("; p " in row for row in tested)
    assert {row.split(" | ")[0].strip("| ") for row in listed} == {"no noise"}
    assert not any("; p " in row for row in listed)
