"""The sums of a run in closed form as a file, from which a place re-solves the head with its own labels added.

It is a declared part of an export. Sums say much of the training images, see ``docs/security.md``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grandrounds.errors import ConfigurationError, DataError
from grandrounds.federation.server.record import SUMMARY
from grandrounds.json_files import read_json_object
from grandrounds.methods.ridge.leave import kept_sums
from grandrounds.methods.ridge.phases import CLASS_COUNTS
from grandrounds.models.closed_form.sums import FEATURE_VIEWS, Sums
from grandrounds.privacy.gate.treatment import DEFAULT_SUM_PATIENTS
from grandrounds.reporting.external.trained import TrainedModel

SUMS_FILE = "sums.safetensors"


@dataclass(frozen=True, eq=False)
class PortableSums:
    """Sums of all sites, with what is needed to add images to them.

    Attributes:
        sums: of training images.
        penalty: nu, of the run.
        views: over which the features of an image are averaged.
        largest_norm: to which they are clipped.
        frozen: digest of the layers that give them.
        classes: in the order of the targets.
    """

    sums: Sums
    penalty: float
    views: tuple[str, ...]
    largest_norm: float
    frozen: str
    classes: tuple[str, ...]

    @classmethod
    def of_run(cls, run: Path, views: Sequence[str] | None = None) -> PortableSums:
        """The sums of a finished run.

        Args:
            run: the workspace of a simulation, or the run's folder at the server.
            views: of the run's executors; None for the default.

        Raises:
            ConfigurationError: if the server has kept no sums, or a class is of too few images.
        """
        summary, method, kept = kept_sums(run)
        options = summary["configuration"]
        classes = tuple(options["problem"]["classes"])
        counts = sum(method[CLASS_COUNTS].values())
        few = [name for name, count in zip(classes, counts, strict=True) if 0 < count < DEFAULT_SUM_PATIENTS]
        if few:
            raise ConfigurationError(
                f"--with-sums: {run} has fewer than {DEFAULT_SUM_PATIENTS} training images of {', '.join(few)}, which could "
                "be read from the sums; leave it out of problem.classes"
            )
        sums = list(kept.values())
        penalty = next(one["ridge"]["penalty"] for one in summary["rounds"] if "penalty" in one.get("ridge", {}))
        total = sum(sums[1:], start=sums[0])
        return cls(total, penalty, tuple(views or FEATURE_VIEWS), options["largest_norm"], options["frozen"], classes)

    def to_bytes(self) -> bytes:
        """As the content of a file: safetensors, with all but the sums in its header."""
        from safetensors.torch import save

        told = {name: value for name, value in vars(self).items() if name != "sums"}
        return bytes(save(self.sums.packed(), {"sums": json.dumps(told)}))

    @classmethod
    def read(cls, path: Path, trained: TrainedModel) -> PortableSums:
        """Read a file of :meth:`to_bytes`, for a model.

        Raises:
            DataError: if it is no such file.
            ConfigurationError: if it is of another network, or other classes.
        """
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(path, framework="pt") as stream:
                told: dict[str, Any] = json.loads(stream.metadata()["sums"])
                sums = Sums.unpacked({name: stream.get_tensor(name) for name in stream.keys()})  # noqa: SIM118
        except (OSError, SafetensorError, ValueError, LookupError, TypeError) as error:
            raise DataError(
                f"{path} has no sums ({error}); grandrounds export --with-sums writes {SUMS_FILE}"
            ) from error
        found = cls(sums, **{**told, "views": tuple(told["views"]), "classes": tuple(told["classes"])})
        frozen = read_json_object(trained.record / SUMMARY)["configuration"].get("frozen")
        if (found.frozen, found.classes) != (frozen, tuple(trained.problem.classes)):
            raise ConfigurationError(f"{path}: the sums are of another network or other classes than {trained.record}")
        return found
