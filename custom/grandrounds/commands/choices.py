"""Words that an option accepts.

They are listed apart from the code that acts on them, so that ``--help`` does not wait for the import of torch.
"""

from __future__ import annotations

from enum import StrEnum


class DatasetChoice(StrEnum):
    """Data sets that ``partition`` divides."""

    HAM10000 = "ham10000"
    LESIONS = "lesions"
    ISIC2020 = "isic2020"
    MANIFEST = "manifest"


class SchemeChoice(StrEnum):
    """Ways to divide a data set between sites."""

    SITES = "sites"
    DIRICHLET = "dirichlet"
    IID = "iid"
    FEDPERL = "fedperl"
    UNSEEN = "unseen"


class VariantChoice(StrEnum):
    """Ways to read the four data sets of skin lesions, two of which overlap."""

    PAPER = "paper"
    CLEAN = "clean"


class ScenarioChoice(StrEnum):
    """Who has labels."""

    STANDARD = "standard"
    SERVER_LABELS = "server_labels"
    FEW_LABELS = "few_labels"


class FewLabelsChoice(StrEnum):
    """Which labels the few sites with labels use."""

    POOL = "pool"
    LABELLED = "labelled"


class EngineChoice(StrEnum):
    """What runs a simulation."""

    IN_PROCESS = "in-process"
    FLARE = "flare"
