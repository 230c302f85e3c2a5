"""Semi-supervised learning on a part of CIFAR-10; the division is in ``protocol.md``. Measures are those of ``ssl_pbc``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.experiment import Row
from benchmarks.plug_in import published_data
from benchmarks.ssl_pbc.experiment import Custom as Blood
from grandrounds.data.partition.divide import iid
from grandrounds.data.partition.files import write_partition
from grandrounds.data.partition.splits import assign_splits
from grandrounds.seeding import numpy_generator

SITES = 10
VALIDATION, TEST = 0.02, 0.3


class Custom(Blood):
    """Divides some of CIFAR-10's images between ten sites."""

    def partition(self, row: Row) -> tuple[Path, dict[str, Any]]:
        """Draw the images and divide them at random; some sites, or all, have labels."""
        choices = self.partition_choices(row)
        cifar10 = published_data().cifar10
        records, archive = cifar10.read_cifar10(self.root)
        drawn = numpy_generator(row.seed, "images").choice(len(records), choices["images"], replace=False)
        sites = iid([records[index] for index in sorted(drawn)], SITES, numpy_generator(row.seed, "sites"))
        divided = {}
        for site, own in sites.items():
            count = choices["labelled_images"]
            share = 1.0 if count is None else count / (len(own) * (1 - VALIDATION - TEST))
            if site not in choices.get("labelled_sites", list(sites)):
                share = 0.0
            generator = numpy_generator(row.seed, "splits", site)
            divided[site] = assign_splits(own, generator, site=site, validation=VALIDATION, test=TEST, labelled=share)
        folder = self.partition_folder(row)
        return folder, write_partition(
            divided, folder, "cifar10", archive, cifar10.CIFAR10_CLASSES, {"seed": row.seed, **choices}
        )
