"""The sites of a federation on this machine: a partition of real images, or sites that draw synthetic ones."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grandrounds.console.output import notes
from grandrounds.console.steps import reading_on
from grandrounds.data.datasets.own_images import UNKNOWN_PATIENTS
from grandrounds.data.datasets.settled import key_remarks
from grandrounds.data.partition.files import read_partition
from grandrounds.deployment.simulate import choose_sites

if TYPE_CHECKING:
    import pandas as pd

SPLIT_COLUMNS: Mapping[str, str] = {"train": "training", "val": "validation", "test": "test"}


@dataclass(frozen=True)
class Sites:
    """The sites that a run trains at.

    Make one with :meth:`from_folders`, :meth:`from_manifest`, :meth:`read`, :meth:`synthetic` or :func:`partition`.

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

    @classmethod
    def from_folders(
        cls,
        images: Path | str,
        out: Path | str | None = None,
        *,
        sites: int | None = None,
        patient_pattern: str = "",
        warn: bool = True,
        **options: Any,
    ) -> Sites:
        """Sites from a folder of images: ``FOLDER/CLASS/*``, or ``FOLDER/SITE/CLASS/*`` with a folder for each site.

        Images below folders ``train``, ``val`` or ``test`` keep these splits; otherwise each site has 70 % of its images for
        training, 10 % for validation and 20 % for testing, class by class.

        Args:
            images: the folder, or a zip archive of it.
            out: folder of the partition; ``runs/FOLDER/sites`` by default. The images stay where they are.
            sites: number of sites, 4 by default; where folders name the sites, the first ones.
            patient_pattern: regular expression over an image's name, whose first group is the patient; the images of a
                patient stay in one split. Of DICOM files the patient is read from the header.
            warn: warn if the patients are unknown.
            options: those of ``grandrounds partition folder``: ``label_map``, ``layout``, ``labelled``, ``scheme``, ...

        Raises:
            ConfigurationError: if an option does not fit, or it is not clear what the folders are.
            DataError: if an image is in the wrong place or has several frames, or there are too few.
        """
        chosen = {"sites": sites, "patient_pattern": patient_pattern, **options}
        place = out or _own_place(images)
        partition("folder", images, place, warn=warn, **chosen)
        return cls.read(place, sites)

    @classmethod
    def from_manifest(
        cls,
        manifest: Path | str,
        images: Path | str | None = None,
        out: Path | str | None = None,
        *,
        sites: int | None = None,
        warn: bool = True,
        **options: Any,
    ) -> Sites:
        """Sites from a table of images, CSV or Parquet.

        The columns are ``image`` and ``label`` and, optionally, ``split``, ``patient``, ``site``, ``lesion``, ``source`` and
        ``labelled``; others are kept as subgroups of reports.

        Args:
            manifest: the table.
            images: folder or archive of the images; the folder of the table by default.
            out: folder of the partition; ``runs/TABLE/sites`` by default.
            sites: number of sites, 4 by default; where the column ``site`` names them, the first ones.
            warn: warn if the patients are unknown.
            options: those of ``grandrounds partition manifest``; splits and sites of the table are kept by default.

        Raises:
            ConfigurationError: if an option does not fit.
            DataError: if the table is damaged; file, line and column are named.
        """
        shares = {"labelled": 1.0, "validation": 0.1, "test": 0.2}
        chosen = {"scheme": "auto", "splits": "keep", "sites": sites or 4, **shares, **options}
        root = Path(manifest).parent if images is None else images
        place = out or _own_place(manifest)
        partition("manifest", root, place, manifest=Path(manifest), warn=warn, **chosen)
        return cls.read(place, sites)

    @property
    def remarks(self) -> list[str]:
        """What must be known before the sites are used: unknown patients, sites without validation or test images."""
        content = self.description
        found = [UNKNOWN_PATIENTS] if content.get("patients") == "unknown" else []
        found += key_remarks(content)
        for split, word in (("val", "validation"), ("test", "test")):
            without = [site for site in self.names if content and not content["sites"][site]["images"][split]]
            if without:
                found.append(f"{', '.join(without)}: no {word} image, so there are no {word} scores")
        return found

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
        import pandas as pd

        content = self.description
        rows = {
            site: {
                **{SPLIT_COLUMNS[split]: count for split, count in summary["images"].items()},
                "labelled": summary["labelled"],
                **summary["classes"],
            }
            for site, summary in content.get("sites", {}).items()
            if site in self.names
        }
        columns = ["training", "labelled", "validation", "test", *content.get("classes", [])]
        return pd.DataFrame.from_dict(rows, orient="index", columns=columns).rename_axis("site")


def partition(
    dataset: str,
    root: Path | str,
    out: Path | str,
    *,
    overwrite: bool = False,
    progress: bool = True,
    warn: bool = True,
    **options: Any,
) -> Sites:
    """Divide a data set between simulated sites; the images stay where they are.

    Args:
        dataset: a name of ``grandrounds partition --help``, for example ``ham10000``, or ``manifest``.
        root: folder or archive of the images.
        out: folder of the partition; it must contain nothing else.
        overwrite: replace another partition in ``out``.
        progress: show the progress of long reading on the standard error.
        warn: warn if the patients of images of your own are unknown.
        options: those of ``grandrounds partition DATASET``, with ``_`` for ``-``: ``scheme``, ``sites``, ``labelled``, ...

    Raises:
        ConfigurationError: if an option does not fit, or ``out`` contains something else.
        DataError: if the data set is incomplete or too small.
    """
    from grandrounds.data.partition.make import make_partition

    with reading_on(notes(), progress) as step:
        make_partition(dataset, root, out, overwrite=overwrite, progress=step, **options)
    sites = Sites.read(out)
    if warn and sites.description.get("patients") == "unknown":
        warnings.warn(UNKNOWN_PATIENTS, UserWarning, stacklevel=3)
    return sites


def _own_place(images: Path | str) -> Path:
    return Path("runs") / Path(images).absolute().stem / "sites"
