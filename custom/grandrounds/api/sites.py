"""The sites of a federation on this machine: a partition of real images, or sites that draw synthetic ones."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from grandrounds.checks import as_path
from grandrounds.console.output import notes
from grandrounds.console.progress import reading_on
from grandrounds.csv_files import write_csv
from grandrounds.data.datasets.own_images import UNKNOWN_PATIENTS
from grandrounds.data.datasets.settled import key_remarks
from grandrounds.data.families import OWN_SOURCES
from grandrounds.data.partition.files import DESCRIPTION_FILE, MANIFEST_FILE, read_partition
from grandrounds.data.tables import archive_of, frame_cells, is_table
from grandrounds.deployment.simulate import choose_sites
from grandrounds.errors import ConfigurationError, DataError
from grandrounds.protocol.tasks import task_of
from grandrounds.remedies import missing

if TYPE_CHECKING:
    import pandas as pd

_MADE_BY = "of a DataFrame make sites by Sites.from_dataframe"
SPLIT_COLUMNS: Mapping[str, str] = {"train": "training", "val": "validation", "test": "test"}


@dataclass(frozen=True)
class Sites:
    """The sites that a run trains at.

    ``gr.Sites("images")`` is :meth:`from_source`: a folder, an archive, a table or a partition. With more options there
    are :meth:`from_folders`, :meth:`from_manifest`, :meth:`from_dataframe` and :meth:`from_dataset`; :meth:`synthetic`
    sites need no images, and :func:`partition` divides a published data set.

    Attributes:
        names: of the sites, in natural order.
        folder: the partition; None where sites draw synthetic images.
        held_out: sites of the partition that train nothing and test the selected model, see :meth:`hold_out`.
    """

    names: tuple[str, ...]
    folder: Path | None = None
    held_out: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if isinstance(self.names, str | os.PathLike):
            made = self.from_source(Path(self.names), self.folder)
            vars(self).update(names=made.names, folder=made.folder)
        elif not isinstance(self.names, tuple):
            kind = type(self.names).__name__
            raise ConfigurationError(f"gr.Sites takes a folder, an archive or a table, got {kind}; {_MADE_BY}")
        elif self.folder is not None:
            vars(self)["folder"] = as_path(self.folder, "the folder of a partition", _MADE_BY).absolute()

    @classmethod
    def read(cls, folder: Path | str, count: int | None = None) -> Sites:
        """The sites of a partition, or the first ``count`` of them.

        Raises:
            ConfigurationError: if the folder is no partition, or has fewer sites.
            DataError: if a manifest has changed since the partition was made.
        """
        place = as_path(folder, "the folder of a partition", _MADE_BY)
        return cls(tuple(choose_sites(count, place)[0]), place)

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
            options: those of ``grandrounds import``: ``label_map``, ``layout``, ``labelled``, ``scheme``, ...

        Raises:
            ConfigurationError: if an option does not fit, or it is not clear what the folders are.
            DataError: if an image is in the wrong place, or there are too few.
        """
        chosen = {"sites": sites, "patient_pattern": patient_pattern, **options}
        place = out or _own_place(images)
        _divide("folder", images, place, warn=warn, **chosen)
        return cls.read(place, sites)

    @classmethod
    def from_manifest(
        cls,
        manifest: Path | str | pd.DataFrame,
        images: Path | str | None = None,
        out: Path | str | None = None,
        *,
        sites: int | None = None,
        warn: bool = True,
        **options: Any,
    ) -> Sites:
        """Sites from a table of images: CSV with any separator, .xlsx, Parquet or JSON.

        The columns are ``image`` and ``label`` and, optionally, ``split``, ``patient``, ``site``, ``lesion``, ``source`` and
        ``labelled``; others are kept as subgroups of reports. Splits and sites of the table are kept; otherwise they are
        drawn as for a folder.

        Args:
            manifest: the table; of a DataFrame see :meth:`from_dataframe`.
            images: folder or archive of the images; the folder of the table by default.
            out: folder of the partition; ``runs/TABLE/sites`` by default.
            sites: number of sites, 4 by default; where the column ``site`` names them, the first ones.
            warn: warn if the patients are unknown.
            options: those of ``grandrounds import``: ``columns``, ``sheet``, ``skip_unusable``, ...

        Raises:
            ConfigurationError: if an option does not fit.
            DataError: if the table is damaged or an image cannot be used; file, line and column are named.
        """
        if not isinstance(manifest, str | os.PathLike):
            return cls.from_dataframe(manifest, images, out, sites=sites, warn=warn, **options)
        place = out or _own_place(manifest)
        path = as_path(manifest, "manifest", _MADE_BY)
        root = archive_of(path) or path.parent if images is None else images
        _divide("manifest", root, place, manifest=Path(manifest), sites=sites, warn=warn, **options)
        return cls.read(place, sites)

    @classmethod
    def from_dataframe(
        cls,
        frame: pd.DataFrame | Mapping[str, Sequence[Any]],
        images: Path | str | None,
        out: Path | str | None = None,
        *,
        sites: int | None = None,
        **options: Any,
    ) -> Sites:
        """Sites from a pandas DataFrame, as :meth:`from_manifest` from a file with the same columns.

        Args:
            frame: a row for each image; an index with a name is a column. It may also be a dictionary of columns.
            images: folder or archive of the images.
            out: folder of the partition; ``runs/IMAGES/sites`` by default.
            sites: as of :meth:`from_manifest`.
            options: as of :meth:`from_manifest`.

        Raises:
            ConfigurationError: as :meth:`from_manifest`.
            DataError: as :meth:`from_manifest`.
        """
        import pandas as pd

        if not isinstance(frame, pd.DataFrame) and hasattr(frame, "to_pandas"):
            frame = frame.to_pandas()
        frame = pd.DataFrame(frame) if isinstance(frame, Mapping) else frame
        if not isinstance(frame, pd.DataFrame):
            raise ConfigurationError(f"a table must be a path or a pandas DataFrame, got {type(frame).__name__}")
        if images is None:
            raise ConfigurationError("a DataFrame has no folder: give images, the folder or archive of its images")
        heading, *rows = frame_cells(frame)
        with TemporaryDirectory() as folder:
            table = Path(folder) / "DataFrame.csv"
            write_csv(table, heading, rows)
            try:
                return cls.from_manifest(table, images, out or _own_place(images), sites=sites, **options)
            except DataError as error:
                raise DataError(str(error).replace(str(table), "the DataFrame")) from None

    @classmethod
    def from_dataset(
        cls,
        dataset: Any,
        out: Path | str,
        classes: Sequence[str] | None = None,
        *,
        sites: int | None = None,
        **options: Any,
    ) -> Sites:
        """Sites from a data set of torch, torchvision or MONAI, or any sequence of its items; its images are written as PNG.

        Args:
            dataset: of pairs ``(image, label)``, or of dictionaries with ``image``, ``label`` and further columns, as a
                table has them (``patient``, ``site``, ``split``). An image is what :meth:`grandrounds.Run.predict` takes.
            out: new folder of the images, their table and the partition.
            classes: names of the labels 0, 1, ...; by default the data set's ``classes``, else the numbers.
            sites: as of :meth:`from_manifest`.
            options: as of :meth:`from_manifest`.

        Raises:
            ConfigurationError: if an item is of another kind, or ``out`` has something else.
            DataError: as :meth:`from_manifest`.
        """
        from grandrounds.api.prediction import written_dataset

        folder = as_path(out, "out, the folder of the images,")
        table = written_dataset(dataset, folder, classes if classes is not None else getattr(dataset, "classes", None))
        return cls.from_manifest(table, folder / "images", folder / "sites", sites=sites, **options)

    @classmethod
    def from_source(
        cls, source: Path | str, images: Path | str | None = None, out: Path | str | None = None, **options: Any
    ) -> Sites:
        """Sites from a folder, a zip archive or a table of images, whichever it is.

        Args:
            source: the folder, archive or table.
            images: of a table, as of :meth:`from_manifest`.
            out: folder of the partition.
            options: those of the kind of source; None is the default.

        Raises:
            ConfigurationError: if there is nothing, or an option does not fit the kind of source.
            DataError: as :meth:`from_folders` and :meth:`from_manifest`.
        """
        path = as_path(source, "a source of images", _MADE_BY)
        inside = archive_of(path) is not None
        if not path.exists() and not inside:
            raise ConfigurationError(missing(path, "a folder, a .zip or a table of images"))
        if images is None and (path / DESCRIPTION_FILE).is_file():
            if out is not None:
                raise ConfigurationError(f"{path} is a partition: run it by grandrounds simulate --sites-dir {path}")
            return cls.read(path)
        given = {name: value for name, value in options.items() if value is not None}
        if (inside or path.is_file()) and is_table(path):
            return cls.from_manifest(path, images, out, **given)
        if images is not None:
            raise ConfigurationError(f"{path} is no table, so it needs no root; leave --root (images) out")
        return cls.from_folders(path, out, **given)

    def hold_out(self, *names: str) -> Sites:
        """The other sites, to train at; :meth:`grandrounds.Run.score_held_out` tests the model at these.

        Raises:
            ConfigurationError: if the images are synthetic, or a site is none of these.

        Example:
            >>> Sites(("Hull", "Leeds", "York"), Path("sites")).hold_out("Leeds").names
            ('Hull', 'York')
        """
        for name in names:
            if self.folder is None or name not in self.names:
                there = f"there is {', '.join(self.names)}" if self.folder else "synthetic sites are all alike"
                raise ConfigurationError(f"--hold-out: no site {name!r} to hold out; {there}")
        rest = tuple(name for name in self.names if name not in names)
        if names and not rest:
            raise ConfigurationError("--hold-out: no site is left to train; hold fewer out")
        return replace(self, names=rest, held_out=(*self.held_out, *dict.fromkeys(names)))

    @property
    def remarks(self) -> list[str]:
        """What must be known before the sites are used: unknown patients, sites without validation or test images."""
        content = self.description
        remarks = [UNKNOWN_PATIENTS] if content.get("patients") == "unknown" else []
        remarks += key_remarks(content)
        if "fewer_sites" in content:
            remarks.append(f"there are images enough for {len(self.names)} sites instead of {content['fewer_sites']}")
        for split, word in (("val", "validation"), ("test", "test")):
            without = [site for site in self.names if content and not content["sites"][site]["images"][split]]
            if without:
                remarks.append(f"{', '.join(without)}: no {word} image, so there are no {word} scores")
        return [*remarks, *self._of_origin(content)] if "import" in content else remarks

    def _of_origin(self, content: Mapping[str, Any]) -> list[str]:
        """What the manifests say against a score: classes that a site or a file format tells, or that training lacks."""
        from grandrounds.data.manifest import read_manifest
        from grandrounds.data.shortcuts import format_of, telling_kinds

        assert self.folder is not None
        records = [(site, one) for site in self.names for one in read_manifest(self.folder / site / MANIFEST_FILE)]
        kinds = {
            "site": [site for site, _ in records],
            "format": [format_of(one.image) for _, one in records],
            "source": [one.source for _, one in records],
        }
        remarks = list(telling_kinds([one.label for _, one in records], kinds))
        task, training = task_of(content), [one for _, one in records if one.split == "train"]
        trained = {name for one in training for name in task.names_in(one.label)}
        if training and (lacking := [name for name in content["classes"] if name not in trained]):
            remarks.append(f"no training image of the class {', '.join(lacking)}: a model cannot predict it")
        return remarks

    @property
    def description(self) -> dict[str, Any]:
        """The content of ``partition.json``; empty for synthetic sites.

        Raises:
            DataError: if the partition is damaged.
        """
        return read_partition(self.folder) if self.folder else {}

    @property
    def own_images(self) -> bool:
        """Whether the images are one's own, and neither synthetic nor a published data set."""
        return "import" in self.description

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
    """Divide a published data set between simulated sites; the images stay where they are.

    Args:
        dataset: a name of ``grandrounds partition --options``, for example ``ham10000``.
        root: folder or archive of the data set.
        out: folder of the partition; it must contain nothing else.
        overwrite: replace another partition in ``out``.
        progress: show the progress of long reading on the standard error.
        warn: warn if the patients are unknown.
        options: those of ``grandrounds partition NAME --options``: ``scheme``, ``sites``, ``labelled``, ...

    Raises:
        ConfigurationError: if an option does not fit, or ``out`` contains something else.
        DataError: if the data set is incomplete or too small.
    """
    if dataset in OWN_SOURCES:
        raise ConfigurationError("images of your own are no published data set; make sites by Sites.from_source")
    return _divide(dataset, root, out, overwrite=overwrite, progress=progress, warn=warn, **options)


def _divide(
    dataset: str, root: Path | str, out: Path | str, *, progress: bool = True, warn: bool = True, **options: Any
) -> Sites:
    """Divide a data set or images of one's own; options may be mappings, ``{"image": "path"}``."""
    from grandrounds.data.partition.schemes import make_partition

    place = as_path(root, "root", "give the folder or archive of the images")
    folder = as_path(out, "out, the folder of the partition,")
    pairs = {
        name: [f"{old}={new}" for old, new in given.items()]
        for name, given in options.items()
        if isinstance(given, Mapping)
    }
    with reading_on(notes(), progress) as step:
        make_partition(dataset, place, folder, progress=step, **{**options, **pairs})
    sites = Sites.read(out)
    if warn and sites.description.get("patients") == "unknown":
        warnings.warn(UNKNOWN_PATIENTS, UserWarning, stacklevel=3)
    return sites


def _own_place(images: Path | str) -> Path:
    return Path("runs") / as_path(images, "a folder of images", _MADE_BY).absolute().stem / "sites"
