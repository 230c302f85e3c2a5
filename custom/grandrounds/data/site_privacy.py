"""What a site says in its ``grandrounds.json`` of its own privacy, whatever a job asks for.

{"datasets": {...}, "privacy": {"min_support": 10}}
"""

from __future__ import annotations

from typing import Any

from grandrounds.errors import ConfigurationError
from grandrounds.files import require_object


def min_support_from(privacy: Any, where: str) -> int:
    """The fewest patients behind anything that is told of a class; a job can ask for more, never for fewer.

    Args:
        privacy: the entry as it was read.
        where: how errors call it, for example ``grandrounds.json: privacy``.

    Raises:
        ConfigurationError: naming the key, what was expected and what came.

    Example:
        >>> min_support_from({"min_support": 10}, "grandrounds.json: privacy")
        10
        >>> min_support_from({}, "grandrounds.json: privacy")
        0
    """
    value = require_object(privacy, where, optional=["min_support"]).get("min_support", 0)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ConfigurationError(f"{where}.min_support must be a whole number of patients, 0 or more, got {value!r}")
    return value
