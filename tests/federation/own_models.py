"""Parties with models of their own; jobs name them by their class paths."""

from __future__ import annotations

from typing import ClassVar

from grandrounds.methods.supervised.controller import LocalController


class AskingLocalController(LocalController):
    """Asks each site which network it has."""

    registrations: ClassVar[bool] = True
