"""The eight classes of skin lesions in which four public data sets are joined, and what each data set calls them.

Source: T. Bdair, N. Navab, S. Albarqouni, "Semi-supervised federated peer learning for skin lesion classification",
MELBA 2022: the classes of the ISIC 2019 challenge in their order. The names here are HAM10000's, in lower case.
"""

from __future__ import annotations

from collections.abc import Mapping

from grandrounds.data.manifest import require_known_label

LESION_CLASSES = ("mel", "nv", "bcc", "ak", "bkl", "df", "vasc", "scc")

LEFT_OUT = ""
"""Stands for a diagnosis that is none of the eight classes: its images are not used."""

# HAM10000 calls actinic keratoses and Bowen's disease akiec; it has no invasive squamous cell carcinoma.
HAM10000_LABELS: Mapping[str, str] = {
    "akiec": "ak",
    "bcc": "bcc",
    "bkl": "bkl",
    "df": "df",
    "mel": "mel",
    "nv": "nv",
    "vasc": "vasc",
}

ISIC2019_LABELS: Mapping[str, str] = {
    "MEL": "mel",
    "NV": "nv",
    "BCC": "bcc",
    "AK": "ak",
    "BKL": "bkl",
    "DF": "df",
    "VASC": "vasc",
    "SCC": "scc",
    "UNK": LEFT_OUT,
}

PAD_UFES_20_LABELS: Mapping[str, str] = {
    "MEL": "mel",
    "NEV": "nv",
    "BCC": "bcc",
    "ACK": "ak",
    "SEK": "bkl",
    "SCC": "scc",
}

DERM7PT_LABELS: Mapping[str, str] = {
    "basal cell carcinoma": "bcc",
    "blue nevus": "nv",
    "clark nevus": "nv",
    "combined nevus": "nv",
    "congenital nevus": "nv",
    "dermal nevus": "nv",
    "recurrent nevus": "nv",
    "reed or spitz nevus": "nv",
    "melanoma": "mel",
    "melanoma (in situ)": "mel",
    "melanoma (less than 0.76 mm)": "mel",
    "melanoma (0.76 to 1.5 mm)": "mel",
    "melanoma (more than 1.5 mm)": "mel",
    "melanoma metastasis": "mel",
    "dermatofibroma": "df",
    "lentigo": "bkl",
    "seborrheic keratosis": "bkl",
    "vascular lesion": "vasc",
    "melanosis": LEFT_OUT,
    "miscellaneous": LEFT_OUT,
}


def lesion_label(name: str, labels: Mapping[str, str], where: str) -> str:
    """The class of a diagnosis; empty when the diagnosis is none of the eight classes.

    Args:
        name: what the data set says.
        labels: the classes by the data set's names for them.
        where: file, line and column, for the message.

    Raises:
        DataError: if the data set has no such diagnosis.

    Example:
        >>> lesion_label("ACK", PAD_UFES_20_LABELS, "metadata.csv line 2"), lesion_label("UNK", ISIC2019_LABELS, "")
        ('ak', '')
    """
    require_known_label(name, tuple(labels), where)
    return labels[name]
