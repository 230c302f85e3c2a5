"""Partition schemes, by name: from a data set and options to the records of each site, splits included.

Every step has its own random stream: other splits leave the sites unchanged. Schemes of plug-ins are registered by
``gr.register_scheme``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import cycle
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, get_args

import numpy as np

from grandrounds.data.datasets.own_options import OwnImageOptions
from grandrounds.data.datasets.published import Progress, ReadDataset
from grandrounds.data.datasets.registry import read_dataset
from grandrounds.data.families import OWN_SOURCES, dataset_options, partition_options
from grandrounds.data.manifest import Record
from grandrounds.data.options import MalignancyOptions, MutualOptions, PartitionOptions
from grandrounds.data.own_schemes import SiteRule, own_schemes
from grandrounds.data.partition.divide import (
    EXTERNAL,
    Sites,
    assign_round_robin,
    by_source,
    dirichlet,
    draw_server,
    iid,
    site_names,
)
from grandrounds.data.partition.fedperl import LABELLED_SITES, fedperl_clients, relabel, scaled_sources
from grandrounds.data.partition.files import Replicated, write_partition
from grandrounds.data.partition.groups import TooFewImages
from grandrounds.data.partition.label_noise import DrawnLabel
from grandrounds.data.partition.mutual import describe_mutual, draw_public_share, mutual_public_set, mutual_sites
from grandrounds.data.partition.splits import (
    assign_own,
    assign_splits,
    assign_stratified,
    keep_labels,
    keep_splits,
    stratified_train_val,
)
from grandrounds.errors import ConfigurationError, DataError
from grandrounds.ordering import natural_sorted
from grandrounds.protocol.names import SERVER, Preprocess, SyntheticDevice
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
        sites = self.sites(records, [named[record.image] for record in records] if named else [], options)
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
        divided = self._rule.sites(records, options, scheme_generator(options))
        if empty := [site for site, members in divided.items() if not members]:
            raise DataError(f"scheme {options.scheme} gives no image to {', '.join(empty)}; ask for fewer sites")
        return {site: tuple(sorted(members, key=place.__getitem__)) for site, members in divided.items()}


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


def make_partition(
    dataset: str,
    root: Path | str,
    out: Path | str,
    *,
    overwrite: bool = False,
    progress: Progress | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Divide a data set between simulated hospitals and write their manifests and site configurations.

    Sites have their own validation and test images, or under ``mdhfl`` one common test set. Where sites have equally many,
    the mean over sites of a mean over images, such as accuracy, equals that of all images together; this is not so for a
    rank statistic or a score per class, such as AUC.

    FedIRM's ten clients, two of them with labels, are ``iid`` with ``labelled_sites`` ``site-1`` and ``site-2`` under
    ``few_labels``, ``validation`` 0.1 and ``test`` 0.2. For fewer sites of the same size, simulate the first ones.

    Args:
        dataset: a name of :data:`~grandrounds.data.families.DATASETS` or of a plug-in; ``folder`` or ``manifest`` for images
            of one's own.
        root: the data set's folder; for ``manifest`` the images' folder or archive.
        out: the partition's folder.
        overwrite: replace another partition in ``out``.
        progress: called during long reading with the number of headers read and of all headers.
        options: the data set's options, see :mod:`~grandrounds.data.families`.

    Returns:
        The content of ``partition.json``, see :func:`~grandrounds.data.partition.files.write_partition`.

    Raises:
        ConfigurationError: if an option does not fit, or ``out`` contains something else.
        DataError: if the data set is incomplete, inconsistent or too small.
    """
    chosen = partition_options(dataset, options, {**dataset_options(), **OWN_SOURCES})
    read = read_dataset(dataset, Path(root), chosen, progress)
    if chosen.devices and (read.reading.windows or read.reading.preprocess != "none"):
        raise ConfigurationError("devices retake photographs, neither CT slices nor mammograms; leave devices out")
    if chosen.scheme == "auto":
        chosen = replace(chosen, scheme="given" if read.sites else "iid")
    if chosen.scheme == "given" and (chosen.sites or 0) > (named := len({*read.sites})):
        raise ConfigurationError(
            f"--sites is {chosen.sites}, but {root} has {named}; leave --sites out, or add --sites {named}"
        )
    scheme = scheme_of(chosen)
    division, fewer = _filled(scheme, read, chosen)
    divided = division.sites
    if chosen.server_share:
        own = numpy_generator(chosen.seed, "partition", "splits", SERVER)
        divided = {**divided, SERVER: stratified_train_val(divided[SERVER], chosen.server_share, own)}
    labelled = chosen.labelled_sites or (scheme.labelled_sites if chosen.scenario == "few_labels" else ())
    description = {"dataset": dataset, **_description(chosen, scheme, labelled), **read.facts, **division.description}
    description |= fewer
    return write_partition(
        relabel(divided, chosen.scenario, labelled, chosen.few_labels_use),
        out,
        read.name,
        read.images,
        read.classes,
        description,
        overwrite=overwrite,
        reading=read.reading,
        devices=_devices(chosen),
        shared_patients=chosen.shares_patients,
        replicated=division.replicated,
        drawn=division.drawn,
        task=read.task,
    )


def _filled(scheme: Scheme, read: ReadDataset, options: PartitionOptions) -> tuple[Division, dict[str, int]]:
    """Divide a data set; own images without a number of sites are divided between all sites that they fill.

    Returns:
        The division, and ``fewer_sites``, the usual number, if there are fewer.
    """
    try:
        return scheme.divide(read, options), {}
    except TooFewImages as error:
        if not isinstance(options, OwnImageOptions) or not options.has_shares:
            raise
        reason = error
    if options.scheme == "given":
        first, second, *_ = (*sorted(set(read.facts.get("site_names", {}).values()) or set(read.sites)), "OTHER")
        raise TooFewImages(f"{reason}, or join it with another site: --merge 'site:{first}={second}'") from None
    for sites in range(options.site_count - 1, 0, -1):
        with suppress(TooFewImages):
            division = scheme.divide(read, replace(options, sites=sites))
            if options.sites is None:
                return division, {"fewer_sites": options.site_count}
            raise DataError(f"{reason}, or ask for fewer sites: --sites {sites}")
    raise reason


def _description(options: PartitionOptions, scheme: Scheme, labelled_sites: Sequence[str]) -> dict[str, Any]:
    """The options that have an effect on this partition, for ``partition.json``."""
    content: dict[str, Any] = {"scheme": options.scheme, "seed": options.seed}
    content |= {name: getattr(options, name) for name in scheme.described}
    if options.shares_patients:
        content["client_partition"] = "slice"
    if options.has_shares:
        content |= options.shares
    if options.labelled_images is not None:
        del content["labelled"]
        content["labelled_images"] = options.labelled_images
    if options.devices:
        content["devices"] = options.devices
    if options.server_images:
        content["server_images"] = options.server_images
    if options.server_share:
        content["server_training"] = options.server_share
    if options.scenario != "standard":
        content["scenario"] = options.scenario
    if options.scenario == "few_labels":
        content |= {"labelled_sites": list(labelled_sites), "few_labels_use": options.few_labels_use}
    return content


def _devices(options: PartitionOptions) -> dict[str, Preprocess]:
    """The synthetic device of each site, if there are any: they take turns."""
    names = get_args(SyntheticDevice)[: options.devices]
    return dict(zip(site_names(options.site_count), cycle(names), strict=False)) if names else {}
