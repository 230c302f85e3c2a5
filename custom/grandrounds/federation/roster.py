"""Who must be there before a run starts: by the job's wish, and by the rule of whoever runs the server.

A researcher's job can ask for sites and cannot waive them: those in the server's ``local/roster.json``,
``{"mandatory_sites": ["hospital-a"]}``, must be there for every job.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nvflare.apis.fl_context import FLContext

from grandrounds.errors import ConfigurationError
from grandrounds.files import read_json_object, require_object

ROSTER = "roster.json"
MANDATORY = "mandatory_sites"


def require_names(names: Any, where: str) -> tuple[str, ...]:
    """Check a list of sites' names.

    Raises:
        ConfigurationError: naming the place, if it is no list of different names.
    """
    listed = isinstance(names, list | tuple) and all(isinstance(name, str) and name for name in names)
    if not listed or len(set(names)) < len(names):
        raise ConfigurationError(f"{where} must be a list of different names of sites, got {names!r}")
    return tuple(names)


def servers_roster(fl_ctx: FLContext) -> tuple[str, ...]:
    """The sites that the server asks for in every job; none if it has no ``local/roster.json``.

    Raises:
        ConfigurationError: if the file is not as it must be; it is named.
    """
    return read_roster(Path(fl_ctx.get_engine().get_workspace().get_site_config_dir()) / ROSTER)


def read_roster(path: Path) -> tuple[str, ...]:
    """Read a ``roster.json``.

    Raises:
        ConfigurationError: if it is damaged, or says something else than mandatory sites.
    """
    if not path.is_file():
        return ()
    content = require_object(read_json_object(path), str(path), [MANDATORY])
    return require_names(content[MANDATORY], f"{path}: {MANDATORY}")


def joined(*rosters: Sequence[str]) -> tuple[str, ...]:
    """All names, each once, in the order in which they come.

    Example:
        >>> joined(("b", "a"), ("a", "c"))
        ('b', 'a', 'c')
    """
    return tuple(dict.fromkeys(name for roster in rosters for name in roster))
