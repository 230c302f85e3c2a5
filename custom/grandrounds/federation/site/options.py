"""The options of a site: whose model it trains, and how it computes."""

from __future__ import annotations

import multiprocessing
import os
import sys
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch

from grandrounds.checks import reraised_as
from grandrounds.errors import ConfigurationError
from grandrounds.federation.machine import usable_cores
from grandrounds.models.inference.forward import form_named
from grandrounds.models.registry import minimum_image_size
from grandrounds.options import Min, Options
from grandrounds.protocol.problem import TRAIN_ALL

MAX_DRAWING_PROCESSES = 4


@dataclass(frozen=True)
class SiteOptions(Options):
    """Whose model a site trains. A site's ``grandrounds.json`` may choose another backbone, under ``models``."""

    identifies_run: ClassVar[bool] = False

    model: Annotated[
        Literal["shared", "own"], "shared: train the server's model, send the update; own: the site's model stays there"
    ] = "shared"
    optimizer: Annotated[Literal["fresh", "kept"], "fresh in every round, or kept from round to round"] = "fresh"
    backbones: Annotated[dict[str, str] | None, "backbones by site, with model=own; the others take the problem's"] = (
        None
    )
    test_last: Annotated[bool, "with model=own, also test the model of the last round, as own_last"] = False
    release_model: Annotated[
        bool,
        "with model=own, release it at the end for an ensemble (site_model), where the site's policy has a rule for it",
    ] = False

    def check(self) -> None:
        """Check backbones, and refuse what needs sites to have models of their own."""
        if self.test_last and self.model != "own":
            raise ConfigurationError("test_last tests a site's own model of the last round, which needs model=own")
        if self.release_model and self.model != "own":
            raise ConfigurationError("release_model releases a site's own model, which needs model=own")
        if self.backbones and self.model != "own":
            raise ConfigurationError("backbones gives sites networks of their own, which needs model=own")
        for site, backbone in (self.backbones or {}).items():
            with reraised_as(None, ConfigurationError, where=f"backbones: {site}"):
                minimum_image_size(backbone)


@dataclass(frozen=True)
class InferenceOptions(Options):
    """How a site computes frozen layers."""

    inference: Annotated[
        Literal["exact", "fast", "bfloat16", "auto"],
        "form of frozen layers: exact; fast, by OpenVINO (extra fast) in single precision; bfloat16, by OpenVINO; auto, of "
        "those with the bits of exact",
    ] = "exact"

    def require_measured(self, backbone: str, trainable: str) -> None:
        """Refuse a form that was not measured for this backbone, or has nothing to compute.

        Args:
            backbone: of the network.
            trainable: as in ``problem.trainable``.

        Raises:
            ConfigurationError: naming the option.
        """
        form, refused = form_named(self.inference), f"executor.inference={self.inference} is refused"
        if form.equal_bits:
            return
        if trainable == TRAIN_ALL:
            raise ConfigurationError(
                f"{refused}: no layer is frozen; set problem.trainable to head or from:<block>, or inference to exact"
            )
        if backbone not in form.networks:
            raise ConfigurationError(
                f"{refused} for backbone {backbone}: benchmarks/inference has it within its bounds for "
                f"{', '.join(form.networks)}; set it to exact"
            )

    def require_possible(self, backbone: str, trainable: str, device: torch.device) -> None:
        """Refuse, before images are read, what this machine cannot compute, and what :meth:`require_measured` refuses.

        Raises:
            ConfigurationError: naming the option.
        """
        self.require_measured(backbone, trainable)
        form_named(self.inference).require_possible(device)


@dataclass(frozen=True)
class ComputeOptions(Options):
    """How a site computes. Whether the device exists turns out with the first task.

    Models of a compiled network differ in the last digits, also between two processes.
    """

    identifies_run: ClassVar[bool] = False
    of_machine: ClassVar[bool] = True

    device: Annotated[str, "auto (a GPU if there is one), cpu or cuda[:index]"] = "auto"
    cpu_threads: Annotated[
        int | Literal["auto"], "torch's threads on the CPU; auto: 1 in a simulation, all cores at a real site", Min(1)
    ] = "auto"
    prefetch: Annotated[
        Literal["auto", "on", "off"],
        "draw views of coming steps in processes; auto: where a core is left (a real site, one worker, a GPU), on Linux",
    ] = "auto"
    precision: Annotated[
        Literal["float32", "tf32", "bfloat16", "float16"],
        "of networks: tf32 rounds what a GPU multiplies to 10 bits; others by autocast; float16 also scales gradients",
    ] = "float32"
    compiler: Annotated[Literal["none", "inductor", "aot_eager"], "torch.compile's backend for the network"] = "none"

    def threads(self, real: bool) -> int:
        """Torch's threads on the CPU.

        Args:
            real: whether this is a real site, which has the machine for itself; ``OMP_NUM_THREADS`` limits it.
        """
        if self.cpu_threads != "auto":
            return self.cpu_threads
        return int(os.environ.get("OMP_NUM_THREADS") or usable_cores()) if real else 1

    def drawing_processes(self, real: bool, device: torch.device) -> int:
        """How many processes draw views in advance; 0 if none does.

        Args:
            real: whether this is a real site.
            device: where the network trains.
        """
        cores = usable_cores()
        alone = real or device.type == "cuda" or multiprocessing.parent_process() is None
        if self.prefetch == "off" or (self.prefetch == "auto" and (cores == 1 or not alone)) or sys.platform != "linux":
            return 0
        return max(1, min(MAX_DRAWING_PROCESSES, cores - 1))
