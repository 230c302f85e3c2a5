"""The package's partition schemes, by name; those of plug-ins are registered by ``gr.register_scheme``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from grandrounds.data.datasets.published import ReadDataset
from grandrounds.data.manifest import Record
from grandrounds.data.options import MutualOptions, PartitionOptions
from grandrounds.data.own_schemes import own_schemes
from grandrounds.data.partition.divide import EXTERNAL, Sites, assign_round_robin, by_source, dirichlet, iid
from grandrounds.data.partition.fedperl import LABELLED_SITES, fedperl_clients, scaled_sources
from grandrounds.data.partition.files import Replicated
from grandrounds.data.partition.mutual import describe_mutual, draw_public_share, mutual_public_set, mutual_sites
from grandrounds.data.partition.scheme import Division, RuleScheme, Scheme, SiteScheme, scheme_generator
from grandrounds.data.partition.splits import assign_splits
from grandrounds.errors import ConfigurationError, DataError
from grandrounds.ordering import natural_sorted
from grandrounds.seeding import numpy_generator


class Iid(SiteScheme):
    """At random, into sites of equal size; slices of CT image by image if that is chosen."""

    def sites(self, records: Sequence[Record], named: Sequence[str], options: PartitionOptions) -> Sites:
        """See :func:`~grandrounds.data.partition.divide.iid`."""
        if not options.shares_patients:
            return iid(records, options.site_count, scheme_generator(options))
        generator = numpy_generator(options.seed, "partition", "splits")
        split = assign_splits(records, generator, site="the data set", **options.shares)
        return assign_round_robin(split, options.site_count, numpy_generator(options.seed, "partition", "slice"))

    def split(self, read: ReadDataset, sites: Sites, options: PartitionOptions) -> Sites:
        """As for every scheme; slices have their splits before they are divided."""
        return sites if options.shares_patients else super().split(read, sites, options)


class BySource(SiteScheme):
    """Every source (device, hospital) has sites of its own."""

    def sites(self, records: Sequence[Record], named: Sequence[str], options: PartitionOptions) -> Sites:
        """See :func:`~grandrounds.data.partition.divide.by_source`."""
        if not all(record.source for record in records):
            raise ConfigurationError(
                "scheme sites needs the source of every image; fill in the column source or take iid"
            )
        return by_source(records, options.site_count, scheme_generator(options))


class Dirichlet(SiteScheme):
    """Sites differ in their classes."""

    described = ("alpha",)

    def sites(self, records: Sequence[Record], named: Sequence[str], options: PartitionOptions) -> Sites:
        """See :func:`~grandrounds.data.partition.divide.dirichlet`."""
        return dirichlet(records, options.site_count, options.alpha, scheme_generator(options))


class Given(SiteScheme):
    """The data set names the site of every image; sites in natural order."""

    def sites(self, records: Sequence[Record], named: Sequence[str], options: PartitionOptions) -> Sites:
        """Give every record to the site that is named for it."""
        if not named:
            raise DataError("scheme given needs the site of every image: a folder for each site, or a column site")
        return {
            name: tuple(record for record, own in zip(records, named, strict=True) if own == name)
            for name in natural_sorted(set(named))
        }


class External(Scheme):
    """One site for external validation: a hospital that takes no part in training."""

    def divide(self, read: ReadDataset, options: PartitionOptions) -> Division:
        """Give it all records, for testing."""
        return Division({EXTERNAL: tuple(replace(record, split="test") for record in read.records)})


class FedPerl(Scheme):
    """The ten clients and the server of the FedPerl paper."""

    labelled_sites = LABELLED_SITES

    def divide(self, read: ReadDataset, options: PartitionOptions) -> Division:
        """See :func:`~grandrounds.data.partition.fedperl.fedperl_clients`; counts shrink where copies were removed."""
        scale = options.scales_counts
        sites = fedperl_clients(read.records, scheme_generator(options), scale=scale)
        return Division(sites, {"scaled": scaled_sources(read.records)} if scale else {})


class Mutual(Scheme):
    """MDH-FL's sites of equal size, with one test set and one public set for all."""

    described = ("alpha",)

    def divide(self, read: ReadDataset, options: PartitionOptions) -> Division:
        """See :func:`~grandrounds.data.partition.mutual.mutual_sites`."""
        if not isinstance(options, MutualOptions):
            raise ConfigurationError("scheme mdhfl needs a data set with a public set")
        records = read.records
        share: tuple[Record, ...] = ()
        if options.public == "share":
            share, records = draw_public_share(records, options)
        made = mutual_sites(records, read.classes, options)
        replicated = Replicated(made.test, *mutual_public_set(options, share, read.images))
        return Division(made.sites, describe_mutual(options, made, read.classes), replicated, made.drawn)


SCHEMES: Mapping[str, Scheme] = MappingProxyType(
    {
        "given": Given(),
        "sites": BySource(),
        "dirichlet": Dirichlet(),
        "iid": Iid(),
        "fedperl": FedPerl(),
        "mdhfl": Mutual(),
        "external": External(),
    }
)
"""The package's schemes; ``auto`` is ``given`` or ``iid``."""


def scheme_of(options: PartitionOptions) -> Scheme:
    """The scheme that the options name, which they have checked."""
    return SCHEMES.get(options.scheme) or RuleScheme(own_schemes()[options.scheme]())
