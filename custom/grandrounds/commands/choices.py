"""Words that an option accepts.

They are listed apart from the code that acts on them, so that ``--help`` does not wait for the import of torch.
"""

from __future__ import annotations

from enum import StrEnum


class DatasetChoice(StrEnum):
    """Data sets that ``partition`` divides."""

    HAM10000 = "ham10000"
    MANIFEST = "manifest"


class SchemeChoice(StrEnum):
    """Ways to divide a data set between sites."""

    SITES = "sites"
    DIRICHLET = "dirichlet"
    IID = "iid"
    FEDPERL = "fedperl"


class EngineChoice(StrEnum):
    """What runs a simulation."""

    IN_PROCESS = "in-process"
    FLARE = "flare"
