"""Options of federated ridge regression."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from grandrounds.data.images.augmentation import view_named
from grandrounds.errors import ConfigurationError
from grandrounds.models.closed_form.sums import FEATURE_VIEWS
from grandrounds.options import METHOD, Options

MOST_PENALTIES, MOST_OFFSETS = 12, 2


@dataclass(frozen=True)
class ViewOptions(Options):
    """Of which views of an image the features are."""

    views: Annotated[tuple[str, ...], "fixed views of each training image, such as none, half_turn", METHOD] = (
        FEATURE_VIEWS
    )

    def check(self) -> None:
        """Refuse views that do not exist, that are drawn at random, or none."""
        if not self.views:
            raise ConfigurationError("views must be at least one view, such as none")
        for name in self.views:
            if not view_named(name, "views").fixed:
                raise ConfigurationError(f"views must be fixed, such as none or half_turn; {name} is drawn at random")
