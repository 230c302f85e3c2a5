"""The ten clients and the server of FedPerl's skin-lesion experiments.

Source: T. Bdair, N. Navab, S. Albarqouni, "FedPerl: Semi-supervised peer learning for skin lesion classification",
MICCAI 2021, and "Semi-supervised federated peer learning for skin lesion classification", MELBA 2022. The index files
were not published. The counts here are read from the published bar charts (about +-6 images), with the unlabelled pool
corrected by at most two images so that each data set adds up to its known total.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from grandrounds.data.grouping import whole_groups
from grandrounds.data.manifest import Record
from grandrounds.data.partition import Sites
from grandrounds.data.splits import divide_into_counts
from grandrounds.errors import DataError

SERVER = "server"
SERVER_IMAGES = 1000

# Per source and site: labelled, unlabelled, validation, test.
CLIENTS: tuple[tuple[str, str, tuple[int, int, int, int]], ...] = (
    ("ISIC2019", "site-1", (500, 1500, 500, 1500)),
    ("ISIC2019", "site-2", (500, 1500, 500, 1500)),
    ("ISIC2019", "site-3", (500, 1500, 500, 1500)),
    ("ISIC2019", "site-4", (500, 1500, 500, 1500)),
    ("ISIC2019", "site-5", (393, 1207, 400, 1254)),
    ("HAM10000", "site-6", (500, 1500, 500, 1500)),
    ("HAM10000", "site-7", (500, 1500, 500, 1500)),
    ("HAM10000", "site-8", (278, 738, 251, 748)),
    ("PAD-UFES-20", "site-9", (317, 834, 284, 863)),
    ("Derm7pt", "site-10", (82, 408, 120, 377)),
)


def fedperl_clients(records: Sequence[Record], generator: np.random.Generator) -> Sites:
    """Divide four public data sets between the clients of the paper, splits included.

    ``site-1`` to ``site-5`` share ISIC 2019 with the server's validation block, ``site-6`` to ``site-8`` share
    HAM10000, ``site-9`` has PAD-UFES-20 and ``site-10`` has Derm7pt (the paper's clients 0 to 9, in the order of its
    released code). About a fifth of ISIC 2019 is used nowhere, as in the paper. The paper permutes images; here the
    images of a patient or lesion stay together, so the counts may differ by a few images. A patient or lesion with
    images in two data sets goes as a whole to the clients of the one that has its first record, and counts there.

    Args:
        records: all four data sets; a record's ``source`` starts with ``ISIC2019``, ``HAM10000``, ``PAD-UFES-20`` or
            ``Derm7pt``. ISIC 2019 contains the images of HAM10000: whoever wants disjoint clients removes them first.
        generator: where the randomness comes from.

    Returns:
        The records of ``server`` (split ``val``) and of ``site-1`` to ``site-10``.

    Raises:
        DataError: if a source is missing or has fewer images than its clients need, images of groups that went to
            another source not counted.
    """
    divided: Sites = {}
    for source, own in _by_source(records).items():
        divided |= _divide_source(own, source, generator)
    return divided


def _by_source(records: Sequence[Record]) -> dict[str, list[Record]]:
    """The records of each data set in their order; a group that spans data sets is with that of its first record."""
    sources = tuple(dict.fromkeys(source for source, _, _ in CLIENTS))
    known = [record for record in records if record.source.startswith(sources)]
    source_at: dict[int, str] = {}
    for members in whole_groups(known):
        home = next(source for source in sources if known[members[0]].source.startswith(source))
        source_at |= dict.fromkeys(members, home)
    own: dict[str, list[Record]] = {source: [] for source in sources}
    for index, record in enumerate(known):
        own[source_at[index]].append(record)
    return own


def _divide_source(own: Sequence[Record], source: str, generator: np.random.Generator) -> Sites:
    counts = {(SERVER, "val"): SERVER_IMAGES} if source == "ISIC2019" else {}
    for owner, site, sizes in CLIENTS:
        if owner == source:
            counts |= dict(
                zip([(site, part) for part in ("labelled", "unlabelled", "val", "test")], sizes, strict=True)
            )
    if len(own) < sum(counts.values()):
        sites = ", ".join(dict.fromkeys(site for site, _ in counts))
        raise DataError(
            f"{sites} need {sum(counts.values())} images whose source starts with {source}, found {len(own)}; "
            "add the data set or choose another scheme"
        )
    parts = divide_into_counts(own, {"/".join(key): count for key, count in counts.items()}, generator)
    sites_of: dict[str, list[Record]] = {site: [] for site, _ in counts}
    for (site, part), members in zip(counts, parts.values(), strict=True):
        split = part if part in ("val", "test") else "train"
        sites_of[site].extend(replace(record, split=split, labelled=part != "unlabelled") for record in members)
    return {site: tuple(members) for site, members in sites_of.items()}
