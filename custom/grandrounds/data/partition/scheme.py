"""What a partition scheme is: from a data set and options to the records of each site, splits included.

Every step has its own random stream: other splits leave the sites unchanged.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from grandrounds.data.datasets.own_options import OwnImageOptions
from grandrounds.data.datasets.published import ReadDataset
from grandrounds.data.manifest import Record
from grandrounds.data.options import MalignancyOptions, PartitionOptions
from grandrounds.data.own_schemes import SiteRule
from grandrounds.data.partition.divide import Sites, draw_server
from grandrounds.data.partition.files import Replicated
from grandrounds.data.partition.label_noise import DrawnLabel
from grandrounds.data.partition.own_splits import assign_own, keep_splits
from grandrounds.data.partition.splits import assign_splits, assign_stratified, keep_labels
from grandrounds.errors import DataError
from grandrounds.protocol.names import SERVER
from grandrounds.seeding import numpy_generator


@dataclass(frozen=True)
class Division:
    """What a scheme makes of a data set.

    Attributes:
        sites: the records of each site, and of the server if it has some, splits included.
        description: entries of ``partition.json`` beside the options.
        replicated: what every site gets.
        drawn: the labels that were drawn for each site's images.
    """

    sites: Sites
    description: Mapping[str, Any] = field(default_factory=dict)
    replicated: Replicated | None = None
    drawn: Mapping[str, Sequence[DrawnLabel]] | None = None


class Scheme(ABC):
    """A way to divide a data set between sites.

    Attributes:
        described: options of this scheme alone that ``partition.json`` states.
        labelled_sites: those with labels in the scenario with few of them, where no option names any.
    """

    described: ClassVar[tuple[str, ...]] = ()
    labelled_sites: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def divide(self, read: ReadDataset, options: PartitionOptions) -> Division:
        """Divide a data set.

        Raises:
            ConfigurationError: if the data set lacks what the scheme needs.
            DataError: if it is too small.
        """


class SiteScheme(Scheme):
    """A scheme that says which site gets which image; splits and labels are drawn by shares, site by site."""

    def divide(self, read: ReadDataset, options: PartitionOptions) -> Division:
        """Draw the server's images if it gets any, divide the others between sites, and draw their splits."""
        named = dict(zip((record.image for record in read.records), read.sites, strict=False))
        server, records = _server(read.records, options)
        sites = self.sites(records, [named[one.image] for one in records] if named else [], options)
        return Division(server | keep_some_labels(self.split(read, sites, options), options))

    @abstractmethod
    def sites(self, records: Sequence[Record], named: Sequence[str], options: PartitionOptions) -> Sites:
        """The records of each site; ``named`` are the sites that the data set names, one for each record, if it does."""

    def split(self, read: ReadDataset, sites: Sites, options: PartitionOptions) -> Sites:
        """Give the images of each site their splits."""
        assign = _assignment(read, options)
        return {
            site: assign(
                members, numpy_generator(options.seed, "partition", "splits", site), site=site, **options.shares
            )
            for site, members in sites.items()
        }


class RuleScheme(SiteScheme):
    """The scheme of a plug-in."""

    def __init__(self, rule: SiteRule) -> None:
        self._rule = rule

    def sites(self, records: Sequence[Record], named: Sequence[str], options: PartitionOptions) -> Sites:
        """The records of each site in the order of the data set, by the plug-in's rule."""
        place = {record: index for index, record in enumerate(records)}
        found = self._rule.sites(records, options, scheme_generator(options))
        if empty := [site for site, members in found.items() if not members]:
            raise DataError(f"scheme {options.scheme} gives no image to {', '.join(empty)}; ask for fewer sites")
        return {site: tuple(sorted(members, key=place.__getitem__)) for site, members in found.items()}


def scheme_generator(options: PartitionOptions) -> np.random.Generator:
    """The random stream of a scheme, which has its name."""
    return numpy_generator(options.seed, "partition", options.scheme)


def keep_some_labels(sites: Sites, options: PartitionOptions) -> Sites:
    """The sites with ``labelled_images`` labels each, if that is chosen."""
    number = options.labelled_images
    if number is None:
        return sites
    return {
        site: keep_labels(records, number, numpy_generator(options.seed, "partition", "labels", site), site)
        for site, records in sites.items()
    }


def _server(records: tuple[Record, ...], options: PartitionOptions) -> tuple[Sites, tuple[Record, ...]]:
    """The server's records, if it gets any, and the others."""
    if not options.server_images:
        return {}, records
    own, rest = draw_server(records, options.server_images, numpy_generator(options.seed, "partition", SERVER))
    return {SERVER: own}, rest


def _assignment(read: ReadDataset, options: PartitionOptions) -> Callable[..., tuple[Record, ...]]:
    """How a site's images get their splits."""
    if read.splits:
        return keep_splits
    if isinstance(options, OwnImageOptions):
        return assign_own
    return assign_stratified if isinstance(options, MalignancyOptions) else assign_splits
