"""Multi-label annotations: the findings of an image, as the column ``label`` of a manifest has them.

A cell lists the findings that an image shows, ``effusion|mass``. An image with ``none`` shows no finding; one with an empty
cell is not labelled. With ``effusion|?mass`` it shows an effusion, and may or may not show a mass.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from grandrounds.errors import DataError
from grandrounds.protocol.problem import NO_FINDING, SEPARATOR, UNKNOWN_MARK

ABSENT, PRESENT, UNKNOWN = 0, 1, -1


def joined_findings(present: Sequence[str]) -> str:
    """The label of an image whose findings are all known.

    Example:
        >>> joined_findings(["effusion", "mass"]), joined_findings([])
        ('effusion|mass', 'none')
    """
    return SEPARATOR.join(present) or NO_FINDING


def findings_in(label: str) -> tuple[str, ...]:
    """The findings that a label names as present.

    Example:
        >>> findings_in("effusion|?mass"), findings_in("none"), findings_in("")
        (('effusion',), (), ())
    """
    names = (name.strip() for name in label.split(SEPARATOR))
    return tuple(name for name in names if name and name != NO_FINDING and not name.startswith(UNKNOWN_MARK))


def named_findings(label: str) -> tuple[str, ...]:
    """All findings that a label names, present or unknown, without the mark.

    Example:
        >>> named_findings("effusion|?mass")
        ('effusion', 'mass')
    """
    return findings_in(label.replace(UNKNOWN_MARK, ""))


def read_findings(label: str, findings: Sequence[str], where: str) -> NDArray[np.int64]:
    """A label as numbers: 1 present, 0 absent, -1 unknown.

    Args:
        label: of an image; empty where nothing is known.
        findings: the vocabulary.
        where: file, line and column, for errors.

    Returns:
        Shape ``(findings,)``.

    Raises:
        DataError: if a finding is named twice or is not in the vocabulary, or ``none`` is beside another.

    Example:
        >>> read_findings("effusion|?mass", ["effusion", "mass", "nodule"], "here").tolist()
        [1, -1, 0]
    """
    if not label:
        return np.full(len(findings), UNKNOWN, np.int64)
    row = np.full(len(findings), ABSENT, np.int64)
    parts = [part.strip() for part in label.split(SEPARATOR)]
    if len(set(named_findings(label))) < len([part for part in parts if part != NO_FINDING]) or (
        NO_FINDING in parts and findings_in(label)
    ):
        raise DataError(
            f"{where}: {label!r} is no list of findings; expected different names, separated by {SEPARATOR!r}, or "
            f"{NO_FINDING!r} alone"
        )
    for part in parts:
        name = part.removeprefix(UNKNOWN_MARK)
        if name in findings:
            row[findings.index(name)] = UNKNOWN if part.startswith(UNKNOWN_MARK) else PRESENT
        elif part != NO_FINDING:
            raise DataError(f"{where}: {name!r} is not one of the findings {', '.join(findings)}")
    return row
