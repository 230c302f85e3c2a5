"""The registration of a site before it first takes part: a few numbers and short texts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from grandrounds.errors import MessageError

MAX_FACTS = 8
MAX_FACT_LENGTH = 128


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
