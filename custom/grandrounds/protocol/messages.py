"""What travels between server and sites, and its encoding as FLARE data exchange objects.

Both ways it is a collection with a header. A task has named parts (models, matrices: dictionaries of tensors). A result has
the releases that the method has declared, each with its kind, by which a hospital's policy decides, and metrics; where a
site registers, also a few short texts. The update of a model is a ``WEIGHT_DIFF``, where FLARE's standard filters look for
it; other releases are ``APP_DEFINED``. The receiver of a message copies it once into plain values and checks the copy. A
site leaves out the tensors of a task, because methods only read them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor

from grandrounds.errors import MessageError
from grandrounds.protocol.names import VALIDATION
from grandrounds.protocol.tensors import DTYPES, FULL, UpdatePrecision

State = Mapping[str, Tensor]
JOIN, TRAIN, VALIDATE, TEST, SUM = TASKS = "join", "train", "validate", "test", "sum"
"""``sum`` asks about a secure sum; a task whose answer is to leave masked has a value of this name."""
GLOBAL = "global"
SCORED = "scored"
"""The model to score, in a training task that starts from another one."""
FROZEN = "frozen"
"""The value with the digest of the layers that are not trained."""
UPDATE = "update"
COMMON = "common"
"""The model that the federation has selected, among those that are tested."""
OWN_MODEL = "own"
"""The model of a site's own; it is added up where no model is common."""
CURVES: Mapping[str, str] = {"common": "curves_common", "own": "curves_own", VALIDATION: "curves_validation"}
"""Releases with the curves of a tested model, by the model's name: the only ones of the task ``test``.

Those of ``validation`` are of the common model's predictions for validation images, which fix an operating point.
"""
COUNTS: Mapping[str, str] = {"common": "counts_common", "own": "counts_own", VALIDATION: "counts_validation"}
"""Releases with counts of correct, missed and false predictions by class: of a tested model, and of a scored one."""
SCORE_SUMS: Mapping[str, str] = {COMMON: "scores_common", OWN_MODEL: "scores_own", VALIDATION: "scores_validation"}
"""Releases with a table of scores that is added up unseen: of a tested model, and of a scored one."""
SUMMED = "summed"
"""Value of a task whose scores are to be added up unseen."""
SITE_MODEL = "site_model"
"""The release with a site's own model, at the end of a run."""
IMAGE_MOMENTS = "image_moments"
"""Release with the moments of the training images, in the answer to the task ``test``."""
WITHHELD = frozenset({*CURVES.values(), *COUNTS.values(), *SCORE_SUMS.values(), SITE_MODEL, IMAGE_MOMENTS})
"""Releases that a site without a rule for them keeps, while the scores beside them may leave."""
SUM_PART = "masked"
"""The release with a site's part in a secure sum, and the name of the treatment that makes it; of kind ``masked_sum``."""
METRICS = "metrics"
FACTS = "facts"
TREATED = "treated"
"""Property of a release with the name of its treatment by a gate."""
REASON_HEADER = "grandrounds.reason"
LEDGER_HEAD = "ledger_head"
"""In an answer the head of the site's ledger, and in a task the last one that the server has got from the site."""
DATA_CHANGES = "data_changes"
"""In an answer how often the images of the data set have changed under one manifest; left out where they have not."""
DXO_KEY = "DXO"
"""Of the content in a message of FLARE's."""
PROTOCOL = "3"
"""The version of what server and sites send each other; those of two versions refuse each other by name."""
MAX_SAMPLES = 10**9
MAX_ROUND = 10**9
MAX_METRICS, LARGEST_METRIC = 1024, 1e12
"""Of the numbers in one answer."""
MESSAGE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/ -]{0,127}")
"""Of a part of an answer, an entry, or a metric: names are shown and written to files."""
HEAD = re.compile(r"[0-9a-f]{64}")
TREATMENT = re.compile(r"[a-z_]{1,32}")
RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
MAX_FACTS = 8
MAX_FACT_LENGTH = 128
RUNNING_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


class ReleaseKind(StrEnum):
    """What a release is, in the words of a hospital's policy."""

    MODEL_UPDATE = "model_update"
    CLASS_STATISTICS = "class_statistics"
    EMBEDDINGS = "embeddings"
    DISCRIMINATOR = "discriminator"
    SOFT_LABELS = "soft_labels"
    CURVES = "curves"
    COUNTS = "counts"
    SCORES = "scores"
    IMAGE_MOMENTS = "image_moments"
    SUFFICIENT_STATISTICS = "sufficient_statistics"
    SITE_MODEL = "site_model"
    MASKED_SUM = "masked_sum"


@dataclass(frozen=True)
class Release:
    """Tensors that leave a site.

    Attributes:
        kind: what they are.
        tensors: by name.
        treated: the treatment that the site's gate reports; empty without a gate.
        precision: in which they have travelled, if they are a model's update.
    """

    kind: ReleaseKind
    tensors: State
    treated: str = ""
    precision: UpdatePrecision = FULL

    @property
    def travelled_bytes(self) -> int:
        """Bytes of the tensors on their way."""
        saved = torch.float32.itemsize - DTYPES[self.precision].itemsize
        return sum(t.nbytes - (saved * t.numel() if t.is_floating_point() else 0) for t in self.tensors.values())


@dataclass(frozen=True)
class Payload:
    """What the server sends to one site.

    Attributes:
        round_number: counts from 1.
        values: plain JSON values: the problem, the run and its seed, and what the method adds.
        parts: named dictionaries of tensors, for example ``global`` (a model) and ``peer-1``. They are read when FLARE sends
            them: never change them in place afterwards. Nor at a site, where they may be the memory of FLARE's message.
    """

    round_number: int
    values: Mapping[str, Any]
    parts: Mapping[str, State] = field(default_factory=dict)


@dataclass(frozen=True)
class Result:
    """What a site answers.

    Attributes:
        releases: what leaves the site, by name; ``update`` is the difference to the model that it received.
        metrics: finite scalars.
        samples: number of training samples behind the releases; at least 1 with an update.
        facts: short texts of a site that registers; no other answer has any.
        ledger_head: of the site's ledger; empty without a gate.
        data_changes: how often the images of the data set have changed under one manifest, as the site's gate knows.
    """

    releases: Mapping[str, Release] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    samples: int = 0
    facts: Mapping[str, str] = field(default_factory=dict)
    ledger_head: str = ""
    data_changes: int = 0

    @property
    def update(self) -> State | None:
        """The model update, if there is one."""
        return self.releases[UPDATE].tensors if UPDATE in self.releases else None


def model_update(difference: State) -> dict[str, Release]:
    """The releases of a method that sends a model update and nothing else."""
    return {UPDATE: Release(ReleaseKind.MODEL_UPDATE, difference)}


def require_run_name(name: object, what: str = "run_name") -> str:
    """Check that a run's name, or its identity, can be a folder's name and nothing else.

    Raises:
        MessageError: if it cannot: other parties name folders by it.
    """
    if not isinstance(name, str) or not RUN_NAME.fullmatch(name):
        raise MessageError(f"{what} must be 1 to 64 letters, digits, '_', '-' or '.', got {name!r}")
    return name


def require_head(head: object) -> str:
    """Check the head of a ledger in a message; empty for None, where none is known.

    Raises:
        MessageError: if it is no SHA-256.
    """
    if head is None:
        return ""
    if not isinstance(head, str) or not HEAD.fullmatch(head):
        raise MessageError(f"the head of a ledger must be 64 hexadecimal digits, got {str(head)[:80]!r}")
    return head


@dataclass(frozen=True)
class Registration:
    """A site's answer when it registers for a run.

    Attributes:
        scalars: finite numbers by name.
        facts: short printable texts by name, such as the digest of a public data set; a method declares their names.
    """

    scalars: Mapping[str, float] = field(default_factory=dict)
    facts: Mapping[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for a checkpoint and the record."""
        return asdict(self)


def require_facts(facts: Any) -> None:
    """Check that facts are few, short and printable, so that no data can travel as one.

    Raises:
        MessageError: naming the fact, what was expected and what came.

    Example:
        >>> require_facts({"backbone": "resnet10"})
        >>> require_facts({"backbone": "resnet10" * 20})
        Traceback (most recent call last):
        grandrounds.errors.MessageError: fact 'backbone' must be 1 to 128 printable characters, got 160
    """
    if not isinstance(facts, Mapping) or len(facts) > MAX_FACTS:
        came = len(facts) if isinstance(facts, Mapping) else type(facts).__name__
        raise MessageError(f"facts must be at most {MAX_FACTS} texts by name, got {came}")
    for name, text in facts.items():
        if not isinstance(name, str) or not name.isidentifier() or len(name) > MAX_FACT_LENGTH:
            raise MessageError(f"a fact must have a plain name, got {str(name)[:MAX_FACT_LENGTH]!r}")
        if not isinstance(text, str):
            raise MessageError(f"fact {name!r} must be a text, got {type(text).__name__}")
        if not 1 <= len(text) <= MAX_FACT_LENGTH or not text.isprintable():
            raise MessageError(f"fact {name!r} must be 1 to {MAX_FACT_LENGTH} printable characters, got {len(text)}")


def require_like(state: State, template: State, name: str) -> None:
    """Check that two states have the same entries, shapes and dtypes.

    Raises:
        MessageError: naming the first entry that differs, what was expected and what came.
    """
    missing = sorted(template.keys() - state.keys())
    unknown = sorted(state.keys() - template.keys())
    if missing or unknown:
        what = f"lacks {missing[0]!r}" if missing else f"has the unknown entry {unknown[0]!r}"
        raise MessageError(f"{name} {what} ({len(missing)} missing, {len(unknown)} unknown): another architecture?")
    for key, expected in template.items():
        came = state[key]
        if came.shape != expected.shape or came.dtype != expected.dtype:
            raise MessageError(
                f"{name}[{key!r}] must be {expected.dtype} of shape {tuple(expected.shape)}, "
                f"got {came.dtype} of shape {tuple(came.shape)}"
            )


def tensor_bytes(states: Mapping[str, State]) -> dict[str, int]:
    """Bytes of the tensors in each named state."""
    return {name: sum(t.numel() * t.element_size() for t in state.values()) for name, state in states.items()}


def floating_entries(state: State) -> dict[str, Tensor]:
    """The entries that are trained or averaged: not the integer counters of batch norm, which nothing depends on."""
    return {name: value for name, value in state.items() if value.is_floating_point()}


def is_running_statistic(name: str) -> bool:
    """Whether a ``state_dict`` name belongs to the running statistics of a normalisation layer.

    Example:
        >>> is_running_statistic("stem.1.running_mean"), is_running_statistic("stem.1.weight")
        (True, False)
    """
    return name.rpartition(".")[2] in RUNNING_STATISTICS
