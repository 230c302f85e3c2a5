"""What a site's gate and its executor must know of each other, and what the gate knows of the site's data.

Whose images they are and how many patients is read from the site's own manifest: a gate must not believe a method about it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from nvflare.apis.fl_context import FLContext

from grandrounds.data.manifest import Record, read_manifest
from grandrounds.federation.site.data import locate
from grandrounds.privacy.ledger.entries import DatasetIdentity
from grandrounds.privacy.ledger.ledger import dataset_fingerprint
from grandrounds.protocol.spending import Spending

ADMISSION = "grandrounds.privacy.admission"
"""Property of a task's context that the site's gate sets: an ``Admission``, for the executor and the gate on the way out."""
TRAINED = "grandrounds.privacy.trained"
"""Property of a task's context that an executor sets: the ``Spending`` of a training that was itself protected."""


class TrainingGate(Protocol):
    """What the site's gate leaves in a task's context."""

    def admit_training(self, training: Spending) -> None:
        """Check, before a training that protects single images, that what comes out of it could leave.

        Raises:
            Refused: if it could not.
        """


def announce(training: Spending | None, fl_ctx: FLContext) -> None:
    """Tell the site's gate, if there is one, how a training is going to protect single images.

    Args:
        training: what a round of it costs; None if it protects none.
        fl_ctx: of the task.

    Raises:
        Refused: if the policy asks for more noise than the training has, or its cost would exceed the budget.
    """
    if training is None:
        return
    fl_ctx.set_prop(TRAINED, training, private=True, sticky=False)
    admission: TrainingGate | None = fl_ctx.get_prop(ADMISSION)
    if admission is not None:
        admission.admit_training(training)


@dataclass(frozen=True)
class DatasetFacts:
    """A data set of the site.

    Attributes:
        identity: its name and fingerprint.
        patients: number of patients (else lesions, else images) in ``train``, ``labelled``, ``val`` and ``test``.
    """

    identity: DatasetIdentity
    patients: Mapping[str, int]


def dataset_facts(dataset: str, site: str, fl_ctx: FLContext) -> DatasetFacts:
    """Read the manifest of a data set.

    Raises:
        ConfigurationError: if the site does not define it.
        DataError: if the manifest is not as it must be.
    """
    records = read_manifest(locate(dataset, site, fl_ctx).manifest).records
    fingerprint = dataset_fingerprint((record.image for record in records), (record.group for record in records))
    parts = ("train", "val", "test")
    groups = {part: {record.group for record in records if record.split == part} for part in parts}
    groups["labelled"] = {record.group for record in records if _teaches(record)}
    return DatasetFacts(DatasetIdentity(dataset, fingerprint), {part: len(found) for part, found in groups.items()})


def _teaches(record: Record) -> bool:
    return record.split == "train" and record.labelled
