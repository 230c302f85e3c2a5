"""The tables are those of the benchmark between four devices."""

from benchmarks.fed_align_cl_ham10000.report import parts

__all__ = ["parts"]
