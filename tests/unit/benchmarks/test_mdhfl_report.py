"""Which differences of mutual learning are tested, and which are only listed."""

from benchmarks.mdhfl_pbc.report import Report
from benchmarks.results import Results


def test_only_pairs_with_all_planned_seeds_are_tested():
    found = list(Report(Results("mdhfl_heads")).differences())
    tested, listed = (part.splitlines()[2:] for part in (found[1], found[3]))
    assert {row.split(" | ")[2] for row in tested} == {"10"}
    assert all("; p " in row for row in tested)
    assert {row.split(" | ")[0].strip("| ") for row in listed}.isdisjoint({"symmetric, 0.2", "pair, 0.2"})
    assert not any("; p " in row for row in listed)
