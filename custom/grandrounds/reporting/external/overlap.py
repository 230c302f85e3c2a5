"""What a place has in common with the run whose model is tested there."""

from __future__ import annotations

from dataclasses import dataclass

from grandrounds.reporting.format import format_list


@dataclass(frozen=True)
class Overlap:
    """What a place has in common with the run.

    Attributes:
        shared_images: how many test images are images of a site of the run, by their pixels.
        sites: names that are sites of the run.
        not_compared: sites of the run whose images are not known.
    """

    shared_images: int
    sites: tuple[str, ...]
    not_compared: tuple[str, ...]

    @property
    def message(self) -> str:
        """What is wrong, as one sentence; empty if nothing is."""
        images = f"{self.shared_images} of the images are images of the run's sites" if self.shared_images else ""
        sites = f"{format_list(self.sites)} took part in the run" if self.sites else ""
        return "; ".join(filter(None, (images, sites)))
