"""Splits of images of one's own, kept or drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from grandrounds.data.manifest import Record
from grandrounds.data.partition.groups import whole_groups
from grandrounds.data.partition.splits import assign_stratified, with_part
from grandrounds.errors import DataError


def assign_own(
    records: Sequence[Record],
    generator: np.random.Generator,
    *,
    site: str,
    validation: float = 0.1,
    test: float = 0.2,
    labelled: float = 1.0,
) -> tuple[Record, ...]:
    """As :func:`assign_stratified` for the records with a label; groups without any label are for training.

    Example:
        >>> four = [Record("a", "x"), Record("b", "x"), Record("c", "x"), Record("d")]
        >>> found = assign_own(four, np.random.default_rng(0), site="a", validation=0.3, test=0.3)
        >>> sorted(record.split for record in found), found[3].split
        (['test', 'train', 'train', 'val'], 'train')
    """
    known = sorted(i for members in whole_groups(records) if any(records[j].label for j in members) for i in members)
    assigned = dict(
        zip(
            known,
            assign_stratified(
                [replace(records[index], split="train") for index in known],
                generator,
                site=site,
                validation=validation,
                test=test,
                labelled=labelled,
            ),
            strict=True,
        )
    )
    return tuple(assigned.get(index, with_part(record, "unlabelled")) for index, record in enumerate(records))


def keep_splits(
    records: Sequence[Record],
    generator: np.random.Generator,
    *,
    site: str,
    validation: float = 0.1,
    test: float = 0.0,
    labelled: float = 1.0,
) -> tuple[Record, ...]:
    """Keep the splits of the records; a site without validation images gets the share ``validation`` of its training images.

    ``labelled`` is the share of the training images with a label that keep it; ``test`` is not used. Patients and lesions
    stay whole.

    Raises:
        DataError: if there is no training image, or too few for validation; ``site`` is named.
    """
    training = [record for record in records if record.split == "train"]
    if not training:
        raise DataError(f"{site} has no training image; the folder or the column split must name some")
    own = {record.split for record in records}
    share = 0.0 if "val" in own else validation
    if share == 0 and labelled == 1:
        return tuple(records)
    drawn = iter(assign_own(training, generator, site=site, validation=share, test=0.0, labelled=labelled))
    return tuple(next(drawn) if record.split == "train" else record for record in records)
