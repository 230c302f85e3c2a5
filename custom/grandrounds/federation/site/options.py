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
from grandrounds.models.inference.forms import form_named
from grandrounds.models.registry import minimum_image_size
from grandrounds.option_annotations import Min
from grandrounds.options import Options

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
    """How a site computes networks where there is no gradient: frozen layers, teachers, peers, scores, public images."""

    inference: Annotated[
        Literal["exact", "fused", "onnx", "bfloat16", "auto"],
        "form of networks without gradients: exact; fused, batch norms folded into convolutions; onnx, by ONNX Runtime; "
        "bfloat16; auto, of those with the bits of exact",
    ] = "exact"

    def require_equal_bits(self, what: str, why: str) -> None:
        """Refuse a form with other bits for what must be computed as it is.

        Raises:
            ConfigurationError: naming the option.
        """
        if not form_named(self.inference).equal_bits:
            raise ConfigurationError(
                f"executor.inference={self.inference} is refused for {what}: {why}; set it to exact"
            )

    def require_measured(self, backbone: str) -> None:
        """Refuse a form that was not measured to decide as this backbone does.

        Raises:
            ConfigurationError: naming the option.
        """
        form = form_named(self.inference)
        if backbone not in form.networks:
            known = ", ".join(form.networks) or "none"
            self.require_equal_bits(
                f"backbone {backbone}", f"benchmarks/inference has it within its bounds for {known}"
            )


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
