"""The sums of a run in closed form as a file, from which a place re-solves the head with its own labels added.

It is a declared part of an export. Sums say much of the training images, see ``docs/security.md``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from grandrounds.errors import ConfigurationError, DataError
from grandrounds.federation.server.record import SUMMARY
from grandrounds.json_files import read_json_object
from grandrounds.methods.ridge.bounds import used_shares
from grandrounds.methods.ridge.leave import kept_sums
from grandrounds.methods.ridge.phases import CLASS_COUNTS, CLASS_PATIENTS
from grandrounds.models.closed_form.sums import Sums, class_weights
from grandrounds.privacy.gate.treatments import DEFAULT_SUM_PATIENTS
from grandrounds.protocol.problem import Problem
from grandrounds.reporting.external.trained import TrainedModel

SUMS_FILE = "sums.safetensors"
_OF_FEATURES = ("image_size", "channels", "preprocessing", "backbone", "head", "intensities")
"""Options of a problem from which features follow, beside the frozen layers."""


@dataclass(frozen=True, eq=False)
class PortableSums:
    """Sums of all sites, with what is needed to add images to them.

    Attributes:
        sums: of training images.
        penalty: nu, of the run.
        views: over which the features of an image are averaged.
        largest_norm: to which they are clipped.
        class_weights: of images in the sums, in the order of the classes; of a class without images the largest.
        problem: what a model must share: digest of the ``frozen`` layers, and options of the problem.
    """

    sums: Sums
    penalty: float
    views: tuple[str, ...]
    largest_norm: float
    class_weights: tuple[float, ...]
    problem: Mapping[str, Any]

    @classmethod
    def of_run(cls, run: Path) -> PortableSums:
        """The sums of a finished run.

        Args:
            run: the workspace of a simulation, or the run's folder at the server.

        Raises:
            ConfigurationError: if the server has kept no sums, nothing tells that each class is of enough patients, or the
                record does not state how the images became features.
        """
        summary, method, kept = kept_sums(run)
        options = summary["configuration"]
        solved = next(one["ridge"] for one in summary["rounds"] if "penalty" in one.get("ridge", {}))
        _require_stated(run, options["problem"], [] if solved.get("views") else ["executor.views"])
        problem = Problem.from_dict(options["problem"])
        patients, counts = method.get(CLASS_PATIENTS), method[CLASS_COUNTS]
        if not patients:
            raise ConfigurationError(f"--with-sums: {run} has not noted the patients of each class; run the job again")
        behind = zip(problem.classes, sum(patients.values()), strict=True)
        few = [name for name, count in behind if 0 < count < DEFAULT_SUM_PATIENTS]
        if few:
            raise ConfigurationError(
                f"--with-sums: {run} has fewer than {DEFAULT_SUM_PATIENTS} training patients of {', '.join(few)}, whose "
                "images could be read from the sums; leave it out of problem.classes"
            )
        sums = list(kept.values())
        total = sum(sums[1:], start=sums[0])
        shares = used_shares({site: float(one.sum()) for site, one in counts.items()}, options["weight_multiple"])
        used = torch.stack([counts[site].double() * share for site, share in shares.items()]).sum(dim=0)
        weights = class_weights(used, options["class_balance"])
        of_classes = tuple(weights.where(weights > 0, weights.max()).tolist())
        shared = _shared(problem, options["frozen"])
        return cls(total, solved["penalty"], tuple(solved["views"]), options["largest_norm"], of_classes, shared)

    @property
    def to_solve(self) -> tuple[Sums, float, tuple[float, ...]]:
        """The sums, the penalty and the class weights."""
        return self.sums, self.penalty, self.class_weights

    def to_bytes(self) -> bytes:
        """As the content of a file: safetensors, with all but the sums in its header."""
        from safetensors.torch import save

        header = {name: value for name, value in vars(self).items() if name != "sums"}
        return bytes(save(self.sums.packed(), {"sums": json.dumps(header)}))

    @classmethod
    def read(cls, path: Path, trained: TrainedModel) -> PortableSums:
        """Read a file of :meth:`to_bytes`, for a model.

        Raises:
            DataError: if it is no such file.
            ConfigurationError: if it is of another network, other images or other classes, or the model's record does not
                state its own; naming the option.
        """
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(path, framework="pt") as stream:
                header: dict[str, Any] = json.loads(stream.metadata()["sums"])
                sums = Sums.unpacked({name: stream.get_tensor(name).double() for name in stream.keys()})  # noqa: SIM118
            lists = {name: tuple(header[name]) for name in ("views", "class_weights")}
            portable = cls(sums, **{**header, **lists, "problem": dict(header["problem"])})
            if sums.targets.shape[1] != len(portable.class_weights):
                raise ValueError(
                    f"targets of shape {tuple(sums.targets.shape)} for {len(portable.class_weights)} classes"
                )
        except (OSError, SafetensorError, ValueError, LookupError, TypeError, RuntimeError) as error:
            raise DataError(
                f"{path} has no sums ({error}); grandrounds export --with-sums writes {SUMS_FILE}"
            ) from error
        options = read_json_object(trained.record / SUMMARY)["configuration"]
        _require_stated(trained.record, options["problem"])
        for name, value in _shared(trained.problem, options.get("frozen")).items():
            if portable.problem.get(name) != value:
                raise ConfigurationError(
                    f"{path}: the sums are of another {name} ({portable.problem.get(name)}) than {trained.record} ({value})"
                )
        return portable


def _require_stated(run: Path, problem: Mapping[str, Any], missing: Sequence[str] = ()) -> None:
    """Refuse a record that leaves to today's defaults how images became features."""
    if missing := [*missing, *(f"problem.{name}" for name in _OF_FEATURES if name not in problem)]:
        raise ConfigurationError(
            f"{run}: the record does not state {', '.join(missing)}, so features of other images cannot be added to the "
            "sums; run the job again, with the sites' part of it at the server"
        )


def _shared(problem: Problem, frozen: str | None) -> dict[str, Any]:
    options = {name: getattr(problem, name) for name in _OF_FEATURES}
    return {"frozen": frozen, "classes": list(problem.classes), **options}
