"""The ten clients and the server of FedPerl's skin-lesion experiments, and its label scenarios.

Source: T. Bdair, N. Navab, S. Albarqouni, "FedPerl: Semi-supervised peer learning for skin lesion classification",
MICCAI 2021, and "Semi-supervised federated peer learning for skin lesion classification", MELBA 2022. The index files
were not published. The counts here are read from the published bar charts (about +-6 images), with the unlabelled pool
corrected by at most two images so that each data set adds up to its known total. A scenario changes no site's images and
no split, so results under two scenarios are comparable site by site.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from grandrounds.data.manifest import Record
from grandrounds.data.options import FewLabelsUse, Scenario
from grandrounds.data.partition.divide import Sites
from grandrounds.data.partition.groups import divide_into_counts, shares_to_counts, whole_groups
from grandrounds.errors import ConfigurationError, DataError
from grandrounds.protocol.names import SERVER


def relabel(
    sites: Sites, scenario: Scenario, labelled_sites: Collection[str] = (), use: FewLabelsUse = "pool"
) -> Sites:
    """Set which training labels may be used in a scenario; the other labels stay known for diagnostics.

    * ``standard``: as divided, every site labels a part of its images.
    * ``server_labels``: no site has a labelled training image; the server's images are as divided.
    * ``few_labels``: ``labelled_sites`` use the labels of all their training images (``pool``, as Liu et al., MICCAI 2021)
      or of those that the division labelled (``labelled``); the other sites have none. The paper leaves this choice open.

    Raises:
        ConfigurationError: if there is no labelled site, no site of that name, or one without a labelled training image.

    Example:
        >>> sites = {"site-1": (Record("a", "nv"),), "site-2": (Record("b", "mel", labelled=False),)}
        >>> few = relabel(sites, "few_labels", ["site-2"])
        >>> few["site-1"][0].labelled, few["site-2"][0].labelled
        (False, True)
    """
    if scenario == "standard":
        return sites
    few = scenario == "few_labels"
    if few:
        _require_sites(sites, labelled_sites)
    changed = {site: _with_labels(own, False) if site != SERVER else own for site, own in sites.items()}
    for site in labelled_sites if few else ():
        changed[site] = _with_labels(sites[site], True) if use == "pool" else sites[site]
    _require_labels(changed, labelled_sites if few else (SERVER,), scenario)
    return changed


def _with_labels(records: tuple[Record, ...], labelled: bool) -> tuple[Record, ...]:
    return tuple(replace(record, labelled=labelled) if record.split == "train" else record for record in records)


def _require_sites(sites: Sites, labelled_sites: Collection[str]) -> None:
    hospitals = [site for site in sites if site != SERVER]
    known = ", ".join(hospitals)
    if not labelled_sites:
        raise ConfigurationError(f"scenario few_labels needs labelled_sites: some of {known}")
    for site in labelled_sites:
        if site not in hospitals:
            raise ConfigurationError(f"labelled_sites: there is no site {site!r}; the sites are {known}")


def _require_labels(sites: Sites, labelled_sites: Collection[str], scenario: str) -> None:
    for site in labelled_sites:
        if not any(record.labelled and record.split == "train" for record in sites.get(site, ())):
            raise ConfigurationError(
                f"scenario {scenario}: {site} has no labelled training image; give it some or choose another scenario"
            )


SERVER_IMAGES = 1000
SERVER_SOURCE = "ISIC2019"
FEDPERL_PARTS = ("labelled", "unlabelled", "val", "test")
Counts = dict[tuple[str, str], int]

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

FEDPERL_SOURCES = tuple(dict.fromkeys(source for source, _, _ in CLIENTS))

LABELLED_SITES = ("site-2", "site-10")
"""The two hospitals that have labels in the scenario with few labelled clients: the paper's clients 1 and 9."""


def fedperl_clients(records: Sequence[Record], generator: np.random.Generator, *, scale: bool = False) -> Sites:
    """Divide four public data sets between the clients of the paper, splits included.

    ``site-1`` to ``site-5`` share ISIC 2019 with the server's validation block, ``site-6`` to ``site-8`` share HAM10000,
    ``site-9`` has PAD-UFES-20 and ``site-10`` has Derm7pt (the paper's clients 0 to 9, in the order of its code). About a
    fifth of ISIC 2019 is not used, as in the paper. The paper permutes images; here patients and lesions stay whole, so
    counts may differ by a few images. A group with images in two data sets counts to that of its first record. With
    ``scale``, counts shrink in proportion where a data set has too few images (:func:`client_counts`).

    Returns:
        The records of ``server`` (split ``val``) and of ``site-1`` to ``site-10``.

    Raises:
        DataError: if a source is missing or has fewer images than its clients need.
    """
    divided: Sites = {}
    for source, own in _by_source(records).items():
        divided |= _divide_source(own, client_counts(source, len(own), scale), generator)
    return divided


def client_counts(source: str, images: int, scale: bool) -> Counts:
    """Number of images of a data set for each of its clients and parts (``labelled``, ``unlabelled``, ``val``, ``test``).

    With ``scale`` and fewer images than needed, the server keeps its 1000 and the published counts shrink in proportion, by
    largest remainders; none becomes less than one.

    Raises:
        DataError: if there are too few images.

    Example:
        >>> client_counts("PAD-UFES-20", 1149, scale=True)[("site-9", "labelled")]  # half of 2298 images, half of 317
        159
    """
    server = {(SERVER, "val"): SERVER_IMAGES} if source == SERVER_SOURCE else {}
    clients = {
        (site, part): size
        for owner, site, sizes in CLIENTS
        if owner == source
        for part, size in zip(FEDPERL_PARTS, sizes, strict=True)
    }
    spare = images - sum(server.values())
    if scale and len(clients) <= spare < sum(clients.values()):
        clients = dict(zip(clients, shares_to_counts(list(clients.values()), spare, minimum=1), strict=True))
    counts = server | clients
    if images < sum(counts.values()):
        sites = ", ".join(dict.fromkeys(site for site, _ in counts))
        raise DataError(
            f"{sites} need {sum(counts.values())} images whose source starts with {source}, found {images}; "
            "add the data set or choose another scheme"
        )
    return counts


def scaled_sources(records: Sequence[Record]) -> dict[str, dict[str, int]]:
    """The data sets with fewer images than their clients need.

    Returns:
        Per data set what is ``needed`` and what was ``found``, the server's images included.
    """
    needed = {source: sum(sum(sizes) for owner, _, sizes in CLIENTS if owner == source) for source in FEDPERL_SOURCES}
    needed[SERVER_SOURCE] += SERVER_IMAGES
    return {
        source: {"needed": needed[source], "found": len(own)}
        for source, own in _by_source(records).items()
        if len(own) < needed[source]
    }


def _by_source(records: Sequence[Record]) -> dict[str, list[Record]]:
    """The records of each data set in their order; a group that spans data sets is with that of its first record."""
    known = [record for record in records if record.source.startswith(FEDPERL_SOURCES)]
    source_at: dict[int, str] = {}
    for members in whole_groups(known):
        home = next(source for source in FEDPERL_SOURCES if known[members[0]].source.startswith(source))
        source_at |= dict.fromkeys(members, home)
    own: dict[str, list[Record]] = {source: [] for source in FEDPERL_SOURCES}
    for index, record in enumerate(known):
        own[source_at[index]].append(record)
    return own


def _divide_source(own: Sequence[Record], counts: Counts, generator: np.random.Generator) -> Sites:
    parts = divide_into_counts(own, {"/".join(key): count for key, count in counts.items()}, generator)
    sites_of: dict[str, list[Record]] = {site: [] for site, _ in counts}
    for (site, part), members in zip(counts, parts.values(), strict=True):
        split = part if part in ("val", "test") else "train"
        sites_of[site].extend(replace(record, split=split, labelled=part != "unlabelled") for record in members)
    return {site: tuple(members) for site, members in sites_of.items()}
