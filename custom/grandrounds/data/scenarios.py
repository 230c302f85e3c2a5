"""Which labels exist where: at every hospital, at the server alone, or at a few hospitals.

Source: T. Bdair, N. Navab, S. Albarqouni, "Semi-supervised federated peer learning for skin lesion classification",
MELBA 2022. A scenario changes no site's images and no split, so results under two scenarios are comparable site by site.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Literal, get_args

from grandrounds.data.manifest import Record
from grandrounds.data.partition import SERVER, Sites
from grandrounds.errors import ConfigurationError

Scenario = Literal["standard", "server_labels", "few_labels"]
FewLabelsUse = Literal["pool", "labelled"]


def relabel(
    sites: Sites, scenario: Scenario, labelled_sites: Collection[str] = (), use: FewLabelsUse = "pool"
) -> Sites:
    """Say which training labels may be used under a scenario; a label that may not stays known for diagnostics.

    * ``standard``: as divided, every site labels a part of its images.
    * ``server_labels``: no site has a labelled training image; the server's images are as divided.
    * ``few_labels``: the labelled sites may use the labels of all their training images (``pool``, as Liu et al., "Federated
      semi-supervised medical image classification via inter-client relation matching", MICCAI 2021, do) or of those
      that were labelled by the division (``labelled``); the other sites have none. The paper leaves this choice open.

    Args:
        sites: the records of each site, splits included; ``server`` among them is no site.
        scenario: see above.
        labelled_sites: for ``few_labels``: who has labels.
        use: for ``few_labels``: which labels these sites use.

    Returns:
        The same records with ``labelled`` set.

    Raises:
        ConfigurationError: if there is no labelled site, there is no site of that name, or it would have no labelled
            training image; or under ``server_labels`` the server has none.
        ValueError: if the scenario is another word.

    Example:
        >>> sites = {"site-1": (Record("a", "nv"),), "site-2": (Record("b", "mel", labelled=False),)}
        >>> few = relabel(sites, "few_labels", ["site-2"])
        >>> few["site-1"][0].labelled, few["site-2"][0].labelled
        (False, True)
    """
    if scenario not in get_args(Scenario):
        raise ValueError(f"scenario must be one of {', '.join(get_args(Scenario))}, got {scenario!r}")
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
