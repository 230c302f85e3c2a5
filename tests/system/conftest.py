"""Consortia of real processes from startup kits, which leave nothing running and nothing outside their folder."""

import socket
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest

from grandrounds.deployment.kit.read import processes_of
from grandrounds.deployment.local_federation import prepare, start, stop

sys.path.insert(0, str(Path(__file__).parent))  # hostile.py is a module of kits and of a test


@pytest.fixture(scope="session")
def free_port():
    """Finds a free port of this machine: ``free_port()``."""

    def find():
        with socket.socket() as probe:
            probe.bind(("", 0))
            return probe.getsockname()[1]

    return find


@pytest.fixture(scope="session")
def consortium(tmp_path_factory, free_port):
    """A server and hospitals, up inside the block: ``with consortium(sites, settings, change) as federation``.

    ``change`` may set the kits otherwise before they start. At the end nothing of them runs, and what would be in the home
    folder or among temporary files is not there. ``gently``: FLARE's own shutdown must be enough.
    """

    @contextmanager
    def up(sites, settings=None, change=lambda made: None, gently=False):
        folder = tmp_path_factory.mktemp("consortium")
        elsewhere = folder / "elsewhere"
        elsewhere.mkdir()
        with pytest.MonkeyPatch.context() as patch:
            for variable in ("HOME", "TMPDIR", "XDG_CACHE_HOME"):
                patch.setenv(variable, str(elsewhere))
            patch.setattr(tempfile, "tempdir", str(elsewhere))
            made = prepare(folder / "federation", tuple(sites), free_port(), settings)
            change(made)
            try:
                start(made)
                yield made
            finally:
                killed = stop(made)
        assert processes_of(made.folder) == []
        assert not (gently and killed), "FLARE's own shutdown must be enough"
        assert [path for path in elsewhere.rglob("*") if path.is_file()] == []

    return up
