"""Errors that a user can fix: each message names the file, option or site, and what to do."""

from __future__ import annotations

from enum import StrEnum


class GrandRoundsError(ValueError):
    """A problem outside the program: the command line prints its message in one line, without a traceback."""


class DataError(GrandRoundsError):
    """An image, a manifest or a site's data set is not as it must be."""


class ConfigurationError(GrandRoundsError):
    """A job, a site's configuration or a command has a value that does not exist or does not fit."""


class SeveralReadings(ConfigurationError):
    """Something can be read in several ways, of which a person has to choose one; the message has several lines."""


class MessageError(GrandRoundsError):
    """What arrived from another party is not what was agreed: a name, shape, dtype or value is wrong."""


class CheckpointError(GrandRoundsError):
    """A checkpoint is damaged, or belongs to another architecture or configuration."""


class UsageError(ConfigurationError):
    """Arguments of one call that contradict each other or are incomplete; the command exits with status 2."""


class InUseError(ConfigurationError):
    """Another process has what a job or a command must have for itself; it may be free later."""


class Fault(StrEnum):
    """What keeps a site from a task before it reads an image, in the words that a privacy gate lets out."""

    DATA = "the site's description of its data does not fit the job; grandrounds status at the site has the details"
    OPTIONS = "the site's settings do not fit the job; grandrounds status at the site has the details"
    TASK = (
        "the task has another network, options or rules than the site; grandrounds status at the site has the details"
    )
    STATE = "what the site has kept of a run is in the way; grandrounds status at the site has the details"
    DISK = "the site's disk is full or cannot be used; grandrounds status at the site has the details"
    OTHER = "the site failed before it read an image; grandrounds status at the site has the details"

    @classmethod
    def of(cls, error: Exception) -> Fault:
        """The fault, by the class of an error.

        Example:
            >>> Fault.of(OSError()).name, Fault.of(KeyError()).name
            ('DISK', 'OTHER')
        """
        kinds = {
            DataError: cls.DATA,
            ConfigurationError: cls.OPTIONS,
            MessageError: cls.TASK,
            CheckpointError: cls.STATE,
            OSError: cls.DISK,
        }
        return next((fault for kind, fault in kinds.items() if isinstance(error, kind)), cls.OTHER)
