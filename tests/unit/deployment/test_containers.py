"""What can be known of the container files and the unit without an engine: they parse, and name what there is."""

import re
import shutil
import subprocess

import pytest
import yaml

from grandrounds.deployment.kit.overlay import PROVISIONING
from grandrounds.deployment.kit.provision import PROJECT, read_project

UNIT = PROVISIONING / "systemd" / "grandrounds@.service"


def instructions():
    text = (PROVISIONING / "containers" / "Dockerfile").read_text().replace("\\\n", " ")
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [line.split(maxsplit=1) for line in lines]


def test_every_kit_of_the_project_has_a_service_that_mounts_it_alone():
    services = yaml.safe_load((PROVISIONING / "containers" / "compose.yml").read_text())["services"]
    parties = [e["name"] for e in read_project(PROJECT)["participants"] if e["type"] in ("server", "client")]
    assert list(services) == parties
    for name, service in services.items():
        kits = [volume for volume in service["volumes"] if volume.endswith(":/kit")]
        assert [re.search(r"\}/(.+):/kit", kit).group(1) for kit in kits] == [name]
        assert all(volume.endswith(":ro") for volume in service["volumes"] if volume not in kits)
        assert service["read_only"]
    assert [name for name, service in services.items() if "ports" in service] == ["server"], "hospitals only call out"


def test_the_image_checks_the_wheel_before_it_installs_it():
    parts = instructions()
    assert parts[0][0] == "FROM"
    assert {word for word, _ in parts} <= {
        "FROM",
        "ARG",
        "RUN",
        "WORKDIR",
        "COPY",
        "USER",
        "VOLUME",
        "ENV",
        "ENTRYPOINT",
    }
    install = next(text for word, text in parts if word == "RUN" and "sha256sum" in text)
    assert install.index("sha256sum --check --strict") < install.index("--no-deps")
    assert [text for word, text in parts if word == "USER"] == ["flare"]


def test_its_shell_lines_parse():
    lines = [text for word, text in instructions() if word == "RUN"]
    lines += [entry for word, text in instructions() if word == "ENTRYPOINT" for entry in yaml.safe_load(text)[2:]]
    assert len(lines) == 3
    for line in lines:
        subprocess.run(["bash", "-n", "-c", line], check=True, timeout=20)


def test_neither_starts_a_kit_that_the_doctor_finds_wanting():
    (entry,) = (yaml.safe_load(text) for word, text in instructions() if word == "ENTRYPOINT")
    assert re.search(r"grandrounds doctor --no-network --kit /kit && exec /kit/startup/sub_start.sh$", entry[-1])
    lines = UNIT.read_text().splitlines()
    (before,) = (line for line in lines if line.startswith("ExecStartPre=") and "doctor" in line)
    assert before.endswith("/bin/grandrounds doctor --no-network --kit /opt/grandrounds/kits/%i")


def test_the_unit_starts_flares_own_script_with_our_python():
    text = UNIT.read_text()
    assert "ExecStart=/bin/bash /opt/grandrounds/kits/%i/startup/sub_start.sh" in text
    assert re.search(r"^Environment=PATH=/opt/grandrounds/venv/bin:", text, re.MULTILINE)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_takes_the_unit(tmp_path):
    unit = tmp_path / "grandrounds@hospital-a.service"
    unit.write_text(UNIT.read_text())
    ended = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, timeout=60, check=False)
    assert "Unknown" not in ended.stderr
