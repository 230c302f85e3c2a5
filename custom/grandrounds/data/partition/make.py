"""From a data set's name to simulated hospitals on disk: read, divide between sites, draw splits, write.

The command line and the benchmarks make their partitions here, so that the same options give the same manifests in both.
Every step has its own random stream: other splits leave the sites unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any, get_args

from grandrounds.data.datasets.registry import ReadDataset, read_dataset
from grandrounds.data.datasets.rsna_ich import Progress
from grandrounds.data.families import (
    CtOptions,
    FolderOptions,
    LesionOptions,
    MalignancyOptions,
    Preprocess,
    partition_options,
)
from grandrounds.data.manifest import Record
from grandrounds.data.options import MutualOptions, PartitionOptions, SyntheticDevice
from grandrounds.data.own_datasets import ReaderOptions, dataset_options
from grandrounds.data.partition.divide import (
    Sites,
    assign_round_robin,
    by_name,
    by_source,
    dirichlet,
    draw_server,
    external,
    iid,
    site_names,
)
from grandrounds.data.partition.fedperl import LABELLED_SITES, fedperl_clients, relabel, scaled_sources
from grandrounds.data.partition.files import Replicated, write_partition
from grandrounds.data.partition.mutual import describe_mutual, draw_public_share, mutual_public_set, mutual_sites
from grandrounds.data.partition.splits import (
    assign_own,
    assign_splits,
    assign_stratified,
    keep_labels,
    keep_splits,
    stratified_train_val,
)
from grandrounds.errors import ConfigurationError
from grandrounds.protocol.names import SERVER
from grandrounds.seeding import numpy_generator


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
        dataset: a name of :data:`~grandrounds.data.families.DATASETS`, or of a plug-in.
        root: the data set's folder; for ``lesions`` and ``mammograms`` the folder of their folders, for ``manifest`` the
            images' folder or archive.
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
    chosen = partition_options(dataset, options, dataset_options())
    read = read_dataset(dataset, Path(root), chosen, progress)
    if chosen.devices and (read.windows or read.preprocess != "none"):
        raise ConfigurationError("devices retake photographs, neither CT slices nor mammograms; leave devices out")
    if chosen.scheme == "auto":
        chosen = replace(chosen, scheme="given" if read.sites else "iid")
    description = {"dataset": dataset, **_description(chosen), **read.facts}
    more: dict[str, Any] = {
        "overwrite": overwrite,
        "windows": read.windows,
        "preprocess": read.preprocess,
        "devices": _devices(chosen),
        "shared_patients": _by_slice(chosen),
        "task": read.task,
    }
    if chosen.scheme == "mdhfl" and isinstance(chosen, MutualOptions):
        divided, extra, shared = _divide_mutually(read, chosen)
        description |= extra
        more |= shared
    else:
        divided = relabel(_divide(read, chosen), chosen.scenario, _labelled_sites(chosen), chosen.few_labels_use)
    if _scales(chosen):
        description["scaled"] = scaled_sources(read.records)
    return write_partition(divided, out, read.name, read.images, read.classes, description, **more)


def _description(options: PartitionOptions) -> dict[str, Any]:
    """The options that have an effect on this partition, for ``partition.json``."""
    content: dict[str, Any] = {"scheme": options.scheme, "seed": options.seed}
    if options.scheme in ("dirichlet", "mdhfl"):
        content["alpha"] = options.alpha
    if _by_slice(options):
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
        content |= {"labelled_sites": list(_labelled_sites(options)), "few_labels_use": options.few_labels_use}
    return content


def _devices(options: PartitionOptions) -> dict[str, Preprocess]:
    """The synthetic device of each site, if there are any: they take turns."""
    names = get_args(SyntheticDevice)[: options.devices]
    return dict(zip(site_names(options.site_count), cycle(names), strict=False)) if names else {}


def _labelled_sites(options: PartitionOptions) -> Sequence[str]:
    few_of_fedperl = options.scenario == "few_labels" and options.scheme == "fedperl"
    return options.labelled_sites or (LABELLED_SITES if few_of_fedperl else ())


def _by_slice(options: PartitionOptions) -> bool:
    return isinstance(options, CtOptions) and options.client_partition == "slice"


def _scales(options: PartitionOptions) -> bool:
    """Whether FedPerl's counts may shrink: where copies were removed from the data set."""
    return options.scheme == "fedperl" and isinstance(options, LesionOptions) and options.variant == "clean"


def _divide_mutually(read: ReadDataset, options: MutualOptions) -> tuple[Sites, dict[str, Any], dict[str, Any]]:
    """Sites for mutual learning, their description, and the files that all of them get."""
    records = read.records
    share: tuple[Record, ...] = ()
    if options.public == "share":
        share, records = draw_public_share(records, options)
    made = mutual_sites(records, read.classes, options)
    replicated = Replicated(made.test, *mutual_public_set(options, share, read.images))
    return made.sites, describe_mutual(options, made, read.classes), {"replicated": replicated, "drawn": made.drawn}


def _divide(read: ReadDataset, options: PartitionOptions) -> Sites:
    """All parties' records, splits included."""
    records = read.records
    generator = numpy_generator(options.seed, "partition", options.scheme)
    if options.scheme == "external":
        return external(records)
    if options.scheme == "fedperl":
        divided = fedperl_clients(records, generator, scale=_scales(options))
    else:
        divided = _divide_by_shares(read, options)
    if options.server_share:
        own = numpy_generator(options.seed, "partition", "splits", SERVER)
        divided[SERVER] = stratified_train_val(divided[SERVER], options.server_share, own)
    return divided


def _divide_by_shares(read: ReadDataset, options: PartitionOptions) -> Sites:
    """The server's records, if it gets any, and those of sites whose splits are drawn by shares."""
    records = read.records
    named = dict(zip((record.image for record in records), read.sites, strict=False))
    divided: Sites = {}
    if options.server_images:
        generator = numpy_generator(options.seed, "partition", SERVER)
        divided[SERVER], records = draw_server(records, options.server_images, generator)
    if _by_slice(options):
        generator = numpy_generator(options.seed, "partition", "splits")
        split = assign_splits(records, generator, site="the data set", **options.shares)
        own = numpy_generator(options.seed, "partition", "slice")
        return divided | _with_few_labels(assign_round_robin(split, options.site_count, own), options)
    assign = _assignment(read, options)
    sites: Sites = {}
    for site, members in _sites(records, [named[one.image] for one in records] if named else [], options).items():
        generator = numpy_generator(options.seed, "partition", "splits", site)
        sites[site] = assign(members, generator, site=site, **options.shares)
    return divided | _with_few_labels(sites, options)


def _with_few_labels(sites: Sites, options: PartitionOptions) -> Sites:
    """The sites with ``labelled_images`` labels each, if that is chosen."""
    number = options.labelled_images
    if number is None:
        return sites
    return {
        site: keep_labels(records, number, numpy_generator(options.seed, "partition", "labels", site), site)
        for site, records in sites.items()
    }


def _assignment(read: ReadDataset, options: PartitionOptions) -> Callable[..., tuple[Record, ...]]:
    """How a site's images get their splits."""
    if read.splits:
        return keep_splits
    if isinstance(options, FolderOptions | ReaderOptions):
        return assign_own
    return assign_stratified if isinstance(options, MalignancyOptions) else assign_splits


def _sites(records: Sequence[Record], named: Sequence[str], options: PartitionOptions) -> Sites:
    if options.scheme == "given":
        return by_name(records, named)
    generator = numpy_generator(options.seed, "partition", options.scheme)
    if options.scheme == "dirichlet":
        return dirichlet(records, options.site_count, options.alpha, generator)
    if options.scheme == "iid":
        return iid(records, options.site_count, generator)
    if not all(record.source for record in records):
        raise ConfigurationError("scheme sites needs the source of every image; fill in the column source or take iid")
    return by_source(records, options.site_count, generator)
