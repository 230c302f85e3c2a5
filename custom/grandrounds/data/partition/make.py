"""From a data set's name to simulated hospitals on disk: read, divide between sites, draw splits, write.

The command line and the benchmarks make their partitions here, so that the same options give the same manifests in both.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any, get_args

from grandrounds.data.datasets.own_options import OwnImageOptions
from grandrounds.data.datasets.published import Progress, ReadDataset
from grandrounds.data.datasets.registry import read_dataset
from grandrounds.data.families import OWN_SOURCES, partition_options
from grandrounds.data.options import PartitionOptions
from grandrounds.data.own_datasets import dataset_options
from grandrounds.data.partition.divide import site_names
from grandrounds.data.partition.fedperl import relabel
from grandrounds.data.partition.files import write_partition
from grandrounds.data.partition.groups import TooFewImages
from grandrounds.data.partition.schemes import Division, Scheme, scheme_of
from grandrounds.data.partition.splits import stratified_train_val
from grandrounds.errors import ConfigurationError, DataError
from grandrounds.protocol.names import SERVER, Preprocess, SyntheticDevice
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
