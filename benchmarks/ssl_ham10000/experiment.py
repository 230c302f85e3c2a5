"""Semi-supervised learning between four dermatoscopes; the division is in ``protocol.md``.

Measures are those of ``ssl_pbc``. The class weights are of the labelled images of all sites.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.experiment import Row
from benchmarks.ssl_pbc.experiment import Custom as Blood
from grandrounds.data.datasets.registry import read_dataset
from grandrounds.data.families import SkinOptions
from grandrounds.data.manifest import Record
from grandrounds.data.partition.divide import Sites, dirichlet, iid
from grandrounds.data.partition.files import write_partition
from grandrounds.data.partition.groups import majority, whole_groups
from grandrounds.data.partition.splits import assign_splits
from grandrounds.data.population import describe_population
from grandrounds.deployment.jobs import Job
from grandrounds.seeding import numpy_generator

DATASET = "ham10000"
SITES = {"vidir_modern": 4, "rosendahl": 3, "vidir_molemax": 2, "vienna_dias": 1}
SHARES = {"validation": 0.02, "test": 0.375}
NEVUS = "nv"


class Custom(Blood):
    """Divides HAM10000 between ten sites."""

    def partition(self, row: Row) -> tuple[Path, dict[str, Any]]:
        """Divide the images by device, at random or by class; some sites, or all, have labels."""
        choices = self.partition_choices(row)
        read = read_dataset(DATASET, self.root, SkinOptions())
        sites = _DIVISIONS[choices["division"]](read.records, row.seed)
        labelled = choices.get("labelled_sites", list(sites))
        divided = {}
        for site, own in sites.items():
            share = choices["labelled"] if site in labelled else 0.0
            divided[site] = assign_splits(
                own, numpy_generator(row.seed, "splits", site), site=site, labelled=share, **SHARES
            )
        folder = self.partition_folder(row)
        description = {"seed": row.seed, **choices}
        return folder, write_partition(divided, folder, DATASET, read.images, read.classes, description)

    def fitted(self, job: Job, sites_dir: Path, partition: Mapping[str, Any]) -> Job:
        """The job with weights of classes by the images, over all sites, whose labels it uses."""
        executor = job.options("executor")
        if "class_weights" in executor:
            sites = describe_population(sites_dir, list(partition["sites"]))["sites"].values()
            used = "training" if executor["labels"] == "all" else "labelled"
            counts = [sum(site[used][name] for site in sites) for name in partition["classes"]]
            executor |= {"class_weights": "pooled", "class_counts": counts}
        return job


def _by_device(records: Sequence[Record], seed: int) -> Sites:
    """Sites of one device each; at most every second image of Molemax is a nevus."""
    by_device: dict[str, list[Record]] = {device: [] for device in SITES}
    for members in whole_groups(records):  # a lesion that two devices took goes with most of its images
        device = majority(records[index].source for index in members)
        by_device[device.removeprefix("HAM10000/")].extend(records[index] for index in members)
    sites: Sites = {}
    for device, count in SITES.items():
        own = by_device[device]
        if device == "vidir_molemax":
            own = _without_most_nevi(own, seed)
        for part in iid(own, count, numpy_generator(seed, device)).values():
            sites[f"site-{len(sites) + 1}"] = part
    return sites


def _mixed(records: Sequence[Record], seed: int) -> Sites:
    """The same images at ten sites at random."""
    sites = _by_device(records, seed)
    mixed = [record for own in sites.values() for record in own]
    return iid(mixed, len(sites), numpy_generator(seed, "mixed"))


def _by_class(records: Sequence[Record], seed: int) -> Sites:
    """All images at ten sites, Dirichlet 0.8 over classes."""
    return dirichlet(records, sum(SITES.values()), 0.8, numpy_generator(seed, "dirichlet"))


_DIVISIONS = {"devices": _by_device, "mixed": _mixed, "dirichlet": _by_class}


def _without_most_nevi(records: Sequence[Record], seed: int) -> list[Record]:
    """All images of other classes, and as many nevi, one of a lesion."""
    others = [record for record in records if record.label != NEVUS]
    nevi = list({record.group: record for record in records if record.label == NEVUS}.values())
    order = numpy_generator(seed, NEVUS).permutation(len(nevi))
    return [*others, *(nevi[index] for index in order[: len(others)])]
