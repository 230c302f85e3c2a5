"""The options of a run: rounds, sites, scores, checkpoints, and how updates are averaged."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from grandrounds.errors import ConfigurationError
from grandrounds.evaluation.metrics import selectable_metrics
from grandrounds.federation.executor_options import plain_values
from grandrounds.federation.server.sites import require_names
from grandrounds.federation.site.options import ComputeOptions, SiteOptions
from grandrounds.option_keys import option_types
from grandrounds.options import BASIC, Min, Options
from grandrounds.protocol.messages import RUN_NAME, require_run_name
from grandrounds.protocol.problem import WEIGHTS_NAME
from grandrounds.protocol.tasks import task_of
from grandrounds.protocol.tensors import FULL, UpdatePrecision

AUTO = "auto"


@dataclass(frozen=True)
class RunOptions(Options):
    """A run of rounds. A job that is submitted again under the same ``run_name`` resumes the run."""

    identifies_run: ClassVar[bool] = False

    problem: Annotated[dict[str, Any], "what is learnt: data set, classes, images and network"]
    rounds: Annotated[int, "number of rounds in all; a resumed run does the missing ones", Min(1), BASIC]
    run_name: Annotated[str, "names the run's state on all parties"] = "run"
    sites_per_round: Annotated[int | None, "sites that train in a round; null for all"] = None
    min_sites: Annotated[
        int, "sites that must be there at the start and give an update in every round", Min(1), BASIC
    ] = 1
    seed: Annotated[int, "seed of the whole run, sites included", BASIC] = 0
    round_timeout: Annotated[float, "seconds that a round may take, waiting for a free machine included"] = 3600.0
    grace: Annotated[
        float | None,
        "seconds without a sign of life after which a site is not waited for, once min_sites have answered; null: until "
        "round_timeout. In kits alone",
    ] = 90.0
    start_timeout: Annotated[float, "seconds to wait at the start for min_sites and the mandatory sites"] = 300.0
    mandatory_sites: Annotated[tuple[str, ...] | None, "sites that must be there at the start"] = None
    validate_every: Annotated[int, "rounds between validation scores; 0: never score, keep the last model", Min(0)] = 1
    selection_metric: Annotated[
        str, "validation metric that selects the model; auto: balanced_accuracy, or auc_macro for findings"
    ] = "auto"
    resume: Annotated[Literal["auto", "never", "require"], "never: start again; require: fail without a checkpoint"] = (
        "auto"
    )
    resume_from: Annotated[
        int | None, "go on after this round, of which a checkpoint is kept; null: the newest", Min(1)
    ] = None
    checkpoint_every: Annotated[int, "rounds between checkpoints; the last round has one, too", Min(1)] = 1
    preset: Annotated[str, "where the job's options come from, for the record; nothing depends on it"] = ""

    def check(self) -> None:
        """Check names, and options that depend on each other."""
        require_run_name(self.run_name)
        require_names(self.mandatory_sites or (), "mandatory_sites")
        if self.resume_from is not None and self.resume == "never":
            raise ConfigurationError("resume_from names a checkpoint, resume=never discards all; leave one of them out")
        if self.sites_per_round is not None and self.sites_per_round < self.min_sites:
            raise ConfigurationError(f"sites_per_round is {self.sites_per_round}, below min_sites = {self.min_sites}")
        task = task_of(self.problem)
        if self.metric not in task.selectable and self.metric not in (known := selectable_metrics(task)):
            raise ConfigurationError(
                f"selection_metric of {task.nouns} must be one of {', '.join(known)}, got {self.selection_metric!r}"
            )

    @property
    def metric(self) -> str:
        """The validation metric that selects the model."""
        if self.selection_metric != AUTO:
            return self.selection_metric
        return task_of(self.problem).default_metric


@dataclass(frozen=True)
class UpdateOptions(Options):
    """How sites' updates travel; ``float16`` and ``bfloat16`` halve their bytes."""

    update_precision: Annotated[UpdatePrecision, "precision in which sites send updates"] = FULL


@dataclass(frozen=True)
class AveragingOptions(Options):
    """How updates are averaged and the model is selected.

    The plain mean over the participants is FedPerl's (Algorithm 1, line 19); weights by samples are FedAvg's.
    """

    weighting: Annotated[
        Literal["uniform", "samples"], "uniform: plain mean over participants; samples: by training samples"
    ] = "uniform"
    selection_images: Annotated[
        Literal["sites", "server"], "whose validation images select the model: the sites', or the server's"
    ] = "sites"


_START = re.compile(r"([^@]*)(?:@([0-9a-f]{64}))?")


class Start(NamedTuple):
    """What ``controller.start_from`` names: a run or a file of weights, and the SHA-256 of its file; empty for any."""

    name: str
    digest: str

    @classmethod
    def parse(cls, text: str) -> Start:
        """Read ``NAME`` or ``NAME@SHA256``.

        Raises:
            ConfigurationError: if it is something else.
        """
        form = _START.fullmatch(text)
        if form is None or not (RUN_NAME.fullmatch(form[1]) or WEIGHTS_NAME.fullmatch(form[1])):
            raise ConfigurationError(
                "start_from must be the name of a finished run or of weights at the server, with or without @ and the 64 "
                f"digits of the file's SHA-256, got {text!r}"
            )
        return cls(form[1], form[2] or "")


@dataclass(frozen=True)
class StartOptions(Options):
    """Which trained model a run starts from."""

    start_from: Annotated[
        str | None,
        "a trained model at the server: a finished run of yours or weights of its folder, by name, with @ and the file's "
        "SHA-256 if it must be this very file; it can be selected, as that of round 0. ridge is the head in closed form, "
        "which a simulation computes; null: a new head on problem.weights",
    ] = None

    def check(self) -> None:
        """Refuse what cannot be a name."""
        if self.start_from is not None:
            Start.parse(self.start_from)


@dataclass(frozen=True)
class StoppingOptions(Options):
    """When a run ends before its last round."""

    identifies_run: ClassVar[bool] = False

    patience: Annotated[
        int | None,
        "rounds without a better validation score after which the run ends; null: never before the last",
        Min(1),
    ] = None


@dataclass(frozen=True)
class ServerComputeOptions(Options):
    """How the server computes where it trains or scores itself."""

    identifies_run: ClassVar[bool] = False

    server_device: Annotated[str, "the server's device: auto, cpu or cuda[:index]"] = "auto"
    server_threads: Annotated[int | None, "the server's torch threads; null for torch's default", Min(1)] = None


def stated_options(executors: Mapping[str, Mapping[str, Any]] | None) -> dict[str, Any]:
    """What a job states of its sites: the options of all its executors, as JSON has them; empty if they are unknown."""
    return {name: value for stated in (executors or {}).values() for name, value in plain_values(stated).items()}


def identifying_options(executors: Mapping[str, Mapping[str, Any]] | None) -> dict[str, Any]:
    """What must be equal for a checkpoint to fit: :func:`stated_options` without whose model it is and how it is computed.

    Example:
        >>> identifying_options({"a.B": {"steps": 8, "device": "cpu", "test_last": True}})
        {'steps': 8}
    """
    free = {name for group in (SiteOptions, ComputeOptions) for name in option_types(group)}
    return {name: value for name, value in stated_options(executors).items() if name not in free}
