"""Words that an option accepts.

They are listed apart from the code that acts on them, so that ``--help`` does not wait for the import of torch.
"""

from __future__ import annotations

from enum import StrEnum


class DatasetChoice(StrEnum):
    """Data sets that ``partition`` divides."""

    HAM10000 = "ham10000"
    ISIC2018 = "isic2018"
    LESIONS = "lesions"
    ISIC2020 = "isic2020"
    RSNA_ICH = "rsna_ich"
    MATEK19 = "matek19"
    MLL23 = "mll23"
    PBC = "pbc"
    BLOODMNIST = "bloodmnist"
    CIFAR10 = "cifar10"
    HAM10000_MALIGNANCY = "ham10000_malignancy"
    INBREAST = "inbreast"
    CBIS_DDSM = "cbis_ddsm"
    CMMD = "cmmd"
    MINI_MIAS = "mini_mias"
    MAMMOGRAMS = "mammograms"
    MANIFEST = "manifest"


class SchemeChoice(StrEnum):
    """Ways to divide a data set between sites."""

    SITES = "sites"
    DIRICHLET = "dirichlet"
    IID = "iid"
    FEDPERL = "fedperl"
    MDHFL = "mdhfl"
    UNSEEN = "unseen"


class VariantChoice(StrEnum):
    """Ways to read the four data sets of skin lesions, two of which overlap."""

    PAPER = "paper"
    CLEAN = "clean"


class GroupByChoice(StrEnum):
    """What stays together when skin-lesion images are divided."""

    LESION = "lesion"
    IMAGE = "image"


class MultiChoice(StrEnum):
    """What becomes of a slice with several subtypes of haemorrhage."""

    DROP = "drop"
    FIRST = "first"


class ClientPartitionChoice(StrEnum):
    """What is given to a site as a whole."""

    PATIENT = "patient"
    SLICE = "slice"


class ScenarioChoice(StrEnum):
    """Who has labels."""

    STANDARD = "standard"
    SERVER_LABELS = "server_labels"
    FEW_LABELS = "few_labels"


class FewLabelsChoice(StrEnum):
    """Which labels the few sites with labels use."""

    POOL = "pool"
    LABELLED = "labelled"


class NormalsChoice(StrEnum):
    """What becomes of mammograms without a finding."""

    BENIGN = "benign"
    CLASS = "class"
    DROP = "drop"


class BiradsThreeChoice(StrEnum):
    """What an assessment of 3 counts as."""

    MALIGNANT = "malignant"
    BENIGN = "benign"
    DROP = "drop"


class PreprocessChoice(StrEnum):
    """What is done to an image before resizing."""

    NONE = "none"
    MAMMOGRAM = "mammogram"


class NoiseChoice(StrEnum):
    """How labels go wrong."""

    NONE = "none"
    SYMMETRIC = "symmetric"
    PAIR = "pair"


class PublicChoice(StrEnum):
    """Where the public set comes from."""

    SHARE = "share"
    FOLDER = "folder"
    MATEK19 = "matek19"
    MLL23 = "mll23"
    PBC = "pbc"
    BLOODMNIST = "bloodmnist"


class EngineChoice(StrEnum):
    """What runs a simulation."""

    IN_PROCESS = "in-process"
    FLARE = "flare"
