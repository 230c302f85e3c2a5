"""A federation of startup kits on this machine."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from benchmarks.rehearsal.federated_run import free_port
from grandrounds.deployment.kit.overlay import Settings
from grandrounds.deployment.kit.shipped import OPEN
from grandrounds.deployment.local_federation import Federation, prepare


def new_federation(folder: Path, sites: Sequence[str], port: int = 0) -> Federation:
    """Empty a folder and make kits with the policy ``open`` in it; without a port a free one is taken."""
    shutil.rmtree(folder, ignore_errors=True)
    return prepare(folder, sites, port or free_port(), {site: Settings(policy=OPEN) for site in sites})
