"""The tables are those of the benchmark on blood cells."""

from benchmarks.ssl_pbc.report import parts

__all__ = ["parts"]
