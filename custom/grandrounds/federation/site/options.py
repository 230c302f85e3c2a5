"""The options of a site: whose model it trains, and how it computes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from grandrounds.errors import ConfigurationError
from grandrounds.models.registry import minimum_image_size
from grandrounds.options import Min, Options


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

    def check(self) -> None:
        """Check backbones, and refuse what needs sites to have models of their own."""
        if self.test_last and self.model != "own":
            raise ConfigurationError("test_last tests a site's own model of the last round, which needs model=own")
        if self.backbones and self.model != "own":
            raise ConfigurationError("backbones gives sites networks of their own, which needs model=own")
        for site, backbone in (self.backbones or {}).items():
            try:
                minimum_image_size(backbone)
            except ConfigurationError as error:
                raise ConfigurationError(f"backbones: {site}: {error}") from error


@dataclass(frozen=True)
class ComputeOptions(Options):
    """How a site computes. Whether the device exists turns out with the first task.

    Models of a compiled network differ in the last digits, also between two processes. Without a compiler, isolation leaves
    models the same to the bit: a crash or a lack of memory in the child process costs the site one round, not its job.
    """

    identifies_run: ClassVar[bool] = False

    device: Annotated[str, "auto (a GPU if there is one), cpu or cuda[:index]"] = "auto"
    cpu_threads: Annotated[int | None, "torch's threads on the CPU; null for torch's default", Min(1)] = None
    precision: Annotated[
        Literal["float32", "bfloat16", "float16"], "of networks, by autocast; float16 also scales gradients"
    ] = "float32"
    compiler: Annotated[Literal["none", "inductor", "aot_eager"], "torch.compile's backend for the network"] = "none"
    isolation: Annotated[Literal["none", "process"], "process runs each task in a child process"] = "none"
