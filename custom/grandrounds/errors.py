"""Errors that a user can fix: each message names the file, option or site, and what to do."""

from __future__ import annotations


class GrandRoundsError(ValueError):
    """A problem outside the program: the command line prints its message in one line, without a traceback."""


class DataError(GrandRoundsError):
    """An image, a manifest or a site's data set is not as it must be."""


class ConfigurationError(GrandRoundsError):
    """A job, a site's configuration or a command has a value that does not exist or does not fit."""


class MessageError(GrandRoundsError):
    """What arrived from another party is not what was agreed: a name, shape, dtype or value is wrong."""


class CheckpointError(GrandRoundsError):
    """A checkpoint is damaged, or belongs to another architecture or configuration."""


class UsageError(ConfigurationError):
    """Arguments of one call that contradict each other, or of which one is missing; the command exits with status 2."""


def printable(name: str) -> str:
    r"""A name as it can be printed: bytes that are not UTF-8 are escaped.

    Example:
        >>> print(printable("M\udcfcller.jpg"))
        M\xfcller.jpg
    """
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
