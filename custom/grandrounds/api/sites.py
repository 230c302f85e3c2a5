"""The sites of a federation on this machine: a partition of real images, or sites that draw synthetic ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from grandrounds.console.output import notes
from grandrounds.console.progress import reading_on
from grandrounds.data.partition.files import read_partition
from grandrounds.data.partition.make import make_partition
from grandrounds.deployment.simulate import choose_sites

SPLITS: Mapping[str, str] = {"train": "training", "val": "validation", "test": "test"}


@dataclass(frozen=True)
class Sites:
    """The sites that a run trains at.

    Make one with :meth:`read`, :meth:`synthetic` or :func:`partition`.

    Attributes:
        names: of the sites, in natural order.
        folder: the partition; None where sites draw synthetic images.
    """

    names: tuple[str, ...]
    folder: Path | None = None

    @classmethod
    def read(cls, folder: Path | str, count: int | None = None) -> Sites:
        """The sites of a partition, or the first ``count`` of them.

        Raises:
            ConfigurationError: if the folder is no partition, or has fewer sites.
            DataError: if a manifest has changed since the partition was made.
        """
        names, _ = choose_sites(count, Path(folder))
        return cls(tuple(names), Path(folder))

    @classmethod
    def synthetic(cls, count: int = 4) -> Sites:
        """Sites that draw synthetic lesions of four classes; nothing is downloaded.

        Raises:
            ConfigurationError: if ``count`` is below one.
        """
        return cls(tuple(choose_sites(count, None)[0]))

    @property
    def description(self) -> dict[str, Any]:
        """The content of ``partition.json``; empty for synthetic sites.

        Raises:
            DataError: if the partition is damaged.
        """
        return read_partition(self.folder) if self.folder else {}

    @property
    def problem(self) -> dict[str, Any]:
        """Options of the problem that follow from the data: ``dataset`` and ``classes``; empty for synthetic sites."""
        return choose_sites(None, self.folder)[1]

    def counts(self) -> pd.DataFrame:
        """Number of images by site: ``training``, ``labelled`` (of these), ``validation``, ``test``, and each class.

        Returns:
            One row for each site; no rows for synthetic sites, whose images are drawn when they train.
        """
        content = self.description
        rows = {
            site: {
                **{SPLITS[split]: count for split, count in summary["images"].items()},
                "labelled": summary["labelled"],
                **summary["classes"],
            }
            for site, summary in content.get("sites", {}).items()
            if site in self.names
        }
        columns = ["training", "labelled", "validation", "test", *content.get("classes", [])]
        return pd.DataFrame.from_dict(rows, orient="index", columns=columns).rename_axis("site")


def partition(
    dataset: str, root: Path | str, out: Path | str, *, overwrite: bool = False, progress: bool = True, **options: Any
) -> Sites:
    """Divide a data set between simulated sites; the images stay where they are.

    Args:
        dataset: a name of ``grandrounds partition --help``, for example ``ham10000``, or ``manifest``.
        root: folder or archive of the images.
        out: folder of the partition; it must contain nothing else.
        overwrite: replace another partition in ``out``.
        progress: show the progress of long reading on the standard error.
        options: those of ``grandrounds partition DATASET``, with ``_`` for ``-``: ``scheme``, ``sites``, ``labelled``, ...

    Raises:
        ConfigurationError: if an option does not fit, or ``out`` contains something else.
        DataError: if the data set is incomplete or too small.
    """
    with reading_on(notes(), progress) as step:
        make_partition(dataset, root, out, overwrite=overwrite, progress=step, **options)
    return Sites.read(out)
