"""A federation of startup kits on this machine."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from benchmarks.rehearsal.federated_run import free_port
from grandrounds.deployment.local_federation import Federation, prepare


def new_federation(folder: Path, sites: Sequence[str], port: int = 0) -> Federation:
    """Empty a folder and make the kits of a federation in it; without a port a free one is taken."""
    shutil.rmtree(folder, ignore_errors=True)
    return prepare(folder, sites, port or free_port())
