"""Consortia of real processes from startup kits, which leave nothing running and nothing outside their folder."""

import json
import os
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from grandrounds.deployment.kit.overlay import Settings
from grandrounds.deployment.kit.read import processes_of, read_kit
from grandrounds.deployment.kit.shipped import OPEN, PROVISIONING
from grandrounds.deployment.local_federation import prepare, start, stop_federation

sys.path.insert(0, str(Path(__file__).parent))  # hostile.py is a module of kits and of a test


@pytest.fixture(scope="session")
def allowing():
    """Make a change of kits: ``allowing(hospitals, rules)`` adds rules to the releases of their policies."""

    def change(hospitals, rules):
        def allow(federation):
            for hospital in hospitals:
                policy = federation.kits / hospital / "local" / "privacy.json"
                content = json.loads(policy.read_text())
                content["scopes"][0]["properties"]["grandrounds"]["releases"] += rules
                policy.write_text(json.dumps(content))

        return allow

    return change


@pytest.fixture(scope="session")
def consortium(tmp_path_factory, free_port):
    """A server and hospitals, up inside the block: ``with consortium(sites, settings, change) as federation``.

    ``change`` may set the kits otherwise before they start. At the end nothing of them runs, and what would be in the home
    folder or among temporary files is not there. ``gently``: FLARE's own shutdown must be enough. Hospitals without a policy
    of the test have ``open``, and ``shipped`` leaves them what they get by default.
    """

    @contextmanager
    def up(sites, settings=None, change=lambda made: None, gently=False, shipped=False):
        given = {site: (settings or {}).get(site) or Settings() for site in sites}
        opened = {site: replace(one, policy=OPEN) for site, one in given.items() if not (one.privacy or one.policy)}
        settings = {**(settings or {}), **({} if shipped else opened)}
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
                killed = stop_federation(made)
        assert processes_of(made.folder) == []
        assert not (gently and killed), "FLARE's own shutdown must be enough"
        assert [path for path in elsewhere.rglob("*") if path.is_file()] == []

    return up


class Authority:
    """Kits by the runbook's commands: every participant makes its own key; only requests and certificates travel.

    Args:
        place: empty folder for requests, answers and kits.
        port: the server's.
    """

    SERVER, OPERATOR, RESEARCHER = "localhost", "operator@consortium.example", "researcher@consortium.example"

    def __init__(self, place, port):
        self.place, self._port = place, str(port)
        (place / "home").mkdir()
        self._profile = self._edited("profile", "profile")
        self.flare("cert", "init", "--profile", self._profile, "-o", place / "ca")

    def make(self, name, folder):
        """Request, approve and package a participant's kit below a folder; each one has a key of its own."""
        requests = self.place / f"{folder}-requests" / name
        signed = self.place / f"{name}-{folder}.signed.zip"  # the operator has one folder for all answers
        file = "server" if name == self.SERVER else "researcher" if "@" in name else "hospital"
        self.flare("cert", "request", "-p", self._edited(file, name), "--out", requests)
        request = requests / f"{name}.request.zip"
        self.flare("cert", "approve", request, "-c", self.place / "ca", "--profile", self._profile, "--out", signed)
        fingerprint = json.loads((self.place / "ca" / "ca.json").read_text())["rootCA_fingerprint"]
        into = self.place / folder
        self.flare("package", signed, "--request-dir", requests, "--fingerprint", fingerprint, "-w", into)
        return read_kit(next(into.glob(f"*/prod_*/{name}")))

    def _edited(self, file, name):
        """A copy with the server's host, its port, and this participant's name and role."""
        text = (PROVISIONING / "distributed" / f"{file}.yml").read_text()
        text = text.replace("fl.consortium.example", self.SERVER).replace("8002", self._port)
        text = text.replace("hospital-a", name).replace("hospital_a", name.replace("-", "_"))
        if name == self.OPERATOR:
            text = text.replace(self.RESEARCHER, name).replace("role: lead", "role: org_admin")
        copy = self.place / f"{name}.yml"
        copy.write_text(text)
        return copy

    def flare(self, *arguments):
        """FLARE's command line with a home of its own."""
        ended = subprocess.run(
            [sys.executable, "-m", "nvflare.cli", *map(str, arguments)],
            env={**os.environ, "HOME": str(self.place / "home")},
            cwd=self.place / "home",
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.fixture(scope="module")
def authority(tmp_path_factory, free_port):
    """The authority of a consortium whose server is on this machine."""
    return Authority(tmp_path_factory.mktemp("authority"), free_port())
