"""Which images belong to a study, by what their headers and folders say of them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from grandrounds.data.image_files import ImageFiles, Seen

REASONS: Mapping[str, str] = MappingProxyType(
    {
        "LOCALIZER": "localizers",
        "SCOUT": "localizers",
        "TOPOGRAM": "localizers",
        "SCREEN SAVE": "screen captures",
        "DOSE REPORT": "dose reports",
        "DOSE_INFO": "dose reports",
    }
)
"""Why an image is none of the study, by a value of ImageType."""
OTHER_MODALITIES = frozenset({"SEG", "SR", "PR", "KO", "DOC", "RTSTRUCT", "RTDOSE", "RTPLAN", "REG", "ECG"})
VIEWER, SECOND = "pictures of a viewer", "second copies in another folder"
_PROGRAMS = (".exe", ".dll", ".jar", "autorun.inf", "dicomdir")


def foreign(images: Mapping[str, Seen], others: Sequence[str]) -> dict[str, str]:
    """The images that are none of the study, with the reason; nothing where all would be.

    Args:
        images: as their headers say.
        others: names of the files beside them: on a disc with programs, pictures in folders without a DICOM file are theirs.
    """
    found = {name: reason for name, seen in images.items() if (reason := _reason(seen))}
    slices = {PurePosixPath(name).parent for name, seen in images.items() if seen.format == "DICOM"}
    if slices and any(name.casefold().endswith(_PROGRAMS) for name in others):
        found |= {name: VIEWER for name in images if PurePosixPath(name).parent not in slices}
    return found if len(found) < len(images) else {}


def _reason(seen: Seen) -> str:
    if seen.modality in OTHER_MODALITIES:
        return f"of the modality {seen.modality}"
    return next((REASONS[value] for value in seen.kind.split("/") if value in REASONS), "")


def remarks(images: Mapping[str, Seen]) -> list[str]:
    """What DICOM files say that may be none of the study, a phrase each: several modalities, captures among originals."""
    slices = [seen for seen in images.values() if seen.format == "DICOM"]
    modalities = Counter(seen.modality or "none" for seen in slices)
    captured = sum("SECONDARY" in seen.kind.split("/") for seen in slices)
    found = []
    if len(modalities) > 1:
        listed = ", ".join(f"{count} {name}" for name, count in modalities.most_common())
        found.append(f"several modalities ({listed}): look whether all belong to the study")
    if 0 < captured < len(slices):
        found.append(
            f"{captured} of {len(slices)} DICOM files are secondary (ImageType): look whether they belong to the study"
        )
    return found


def second_copies(place: ImageFiles, images: Mapping[str, Seen]) -> dict[str, str]:
    """Files that are there again below further folders, as in an archive that contains itself; bytes are compared."""
    by_end = defaultdict(list)
    for name in images:
        by_end[PurePosixPath(name).parts[-2:]].append(name)
    found = {}
    for names in by_end.values():
        first, *more = sorted(names, key=lambda name: (name.count("/"), name))
        for name in more:
            if name.endswith(f"/{first}") and _content(place, name) == _content(place, first):
                found[name] = SECOND
    return found


def _content(place: ImageFiles, name: str) -> bytes:
    with place.open(name) as stream:
        return stream.read()


def empty_folders(place: ImageFiles, images: Mapping[str, Seen], damaged: Sequence[str]) -> list[str]:
    """Folders beside those of images that hold nothing, or damaged images alone."""
    used = {folder for name in images for folder in PurePosixPath(name).parents}
    bare = {PurePosixPath(name).parent for name in damaged} | {PurePosixPath(name) for name in place.empty_folders()}
    return sorted(str(folder) for folder in bare - used if folder.parent in used)
