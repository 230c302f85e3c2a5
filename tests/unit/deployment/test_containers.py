"""What can be known of the container files and the unit without an engine: they parse, and name what there is."""

import re
import shutil
import subprocess
import tomllib
from types import SimpleNamespace

import pytest
import yaml
from packaging.requirements import Requirement
from typer.testing import CliRunner

from grandrounds.cli import build_app
from grandrounds.deployment.kit import service as background
from grandrounds.deployment.kit.overlay import LEDGER_FOLDER
from grandrounds.deployment.kit.provision import PROJECT, read_project
from grandrounds.deployment.kit.shipped import PROVISIONING

CONTAINERS = PROVISIONING / "containers"
PYPROJECT = PROVISIONING.parent / "pyproject.toml"
UNIT = PROVISIONING / "systemd" / "grandrounds@.service"


def instructions():
    text = (CONTAINERS / "Dockerfile").read_text().replace("\\\n", " ")
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [line.split(maxsplit=1) for line in lines]


def test_every_kit_of_the_project_has_a_service_that_mounts_it_alone():
    services = yaml.safe_load((CONTAINERS / "compose.yml").read_text())["services"]
    parties = [e["name"] for e in read_project(PROJECT)["participants"] if e["type"] in ("server", "client")]
    assert list(services) == parties
    for name, service in services.items():
        mounts = [re.sub(r"\$\{(\w+)[^}]*\}", r"\1", volume) for volume in service["volumes"]]
        kit = {f"KITS/{name}:/kit", f"KITS/{name}/startup:/kit/startup:ro", f"KITS/{name}/local:/kit/local:ro"}
        if name != "server":  # of local, as under systemd, ledger and audit trail only
            kit |= {f"KITS/{name}/local/{LEDGER_FOLDER}:/kit/local/{LEDGER_FOLDER}"}
        assert kit <= set(mounts)
        assert [re.fullmatch(r"DATA_[A-Z]:/data:ro", other) is not None for other in set(mounts) - kit] == (
            [] if name == "server" else [True]
        )
        assert service["read_only"]
    assert [name for name, service in services.items() if "ports" in service] == ["server"], "hospitals only call out"


def test_the_image_checks_the_wheel_before_it_installs_it():
    parts = instructions()
    assert [word for word, _ in parts][:2] == ["ARG", "FROM"]
    install = next(text for word, text in parts if word == "RUN" and "sha256sum" in text)
    assert install.index("sha256sum --check --strict") < install.index("--no-deps")
    assert [text for word, text in parts if word == "USER"] == ["10001"]


def test_its_shell_lines_parse():
    lines = [text.partition("CMD ")[2] or text for word, text in instructions() if word in ("RUN", "HEALTHCHECK")]
    assert len(lines) == 4
    for line in lines:
        subprocess.run(["bash", "-n", "-c", line], check=True, timeout=600)


@pytest.mark.parametrize(
    ("base", "status"),
    [(f"python:3.11-slim@sha256:{'0' * 64}", 0), ("python:3.11-slim", 1), ("python@sha256:00", 1), ("", 1)],
)
def test_the_base_is_named_by_its_digest(base, status):
    line = next(text for word, text in instructions() if word == "RUN" and "BASE" in text)
    ended = subprocess.run(["sh", "-c", line], env={"BASE": base}, timeout=600, capture_output=True, check=False)
    assert ended.returncode == status
    assert (b"BASE must be an image by its digest" in ended.stderr) == bool(status)


def test_both_run_the_same_service_which_begins_with_the_doctor():
    (entry,) = (yaml.safe_load(text) for word, text in instructions() if word == "ENTRYPOINT")
    assert entry == ["grandrounds", "kit", "start", "/kit"]
    assert "ExecStart=/opt/grandrounds/venv/bin/grandrounds kit start /opt/grandrounds/kits/%i" in UNIT.read_text()


def test_every_party_comes_back_unless_it_was_stopped_and_its_log_is_bounded():
    for service in yaml.safe_load((CONTAINERS / "compose.yml").read_text())["services"].values():
        assert service["restart"] == "unless-stopped"
        assert service["stop_grace_period"] == "10s"
        assert service["logging"]["options"].keys() == {"max-size", "max-file"}


def test_no_party_takes_the_machine_from_the_others():
    """Memory without swap, processes and a share of the processors; a job that takes too much ends alone."""
    for service in yaml.safe_load((CONTAINERS / "compose.yml").read_text())["services"].values():
        assert service["mem_limit"] == service["memswap_limit"] == "${MEMORY:-8g}"
        assert service["pids_limit"] == 4096
        assert (service["cpus"], service["cpu_shares"]) == ("${CPUS:-0}", 512)
    lines = UNIT.read_text().splitlines()
    for line in ("MemoryMax=80%", "OOMPolicy=continue", "TasksMax=4096", "CPUWeight=50", "IOWeight=50"):
        assert line in lines


def test_the_unit_hears_that_the_service_lives_and_starts_it_again_as_often_as_it_ends():
    lines = UNIT.read_text().splitlines()
    for line in (
        "Type=notify",
        "NotifyAccess=main",
        "WatchdogSec=2min",
        "Restart=on-failure",
        "StartLimitIntervalSec=0",
    ):
        assert line in lines
    assert "TimeoutStartSec=10min" in lines, "the doctor reads all images before the service is ready"


def locked(variant):
    """Version and number of hashes of each locked package."""
    text = (CONTAINERS / f"requirements-{variant}.txt").read_text().replace("\\\n", " ")
    found = {}
    for line in text.splitlines():
        name, version, *hashes = re.split(r"==|\s+--hash=sha256:", line.strip())
        found[name] = (version.split(";")[0].strip(), len(hashes))
    return found


@pytest.mark.parametrize("variant", ["cpu", "cuda"])
def test_the_image_copies_a_lock_that_has_every_requirement_with_hashes(variant):
    copied = next(text for word, text in instructions() if word == "COPY")
    assert copied.split()[0] == "requirements-${VARIANT}.txt"
    packages = locked(variant)
    assert all(hashes for _, hashes in packages.values())
    project = tomllib.loads(PYPROJECT.read_text())["project"]
    extras = project["optional-dependencies"]
    for requirement in map(Requirement, [*project["dependencies"], *extras["server"], *extras["pretrained"]]):
        version, _ = packages[requirement.name.lower().replace("_", "-")]
        assert requirement.specifier.contains(version), f"{requirement} is locked as {version}; lock again"
    assert packages["torch"][0].endswith("+cpu") == (variant == "cpu")
    assert any(name.startswith("nvidia-") for name in packages) == (variant == "cuda")


def test_the_service_cannot_change_its_own_rules():
    """Of ``local`` it can write ledger and audit trail only."""
    lines = UNIT.read_text().splitlines()
    kit = "/opt/grandrounds/kits/%i"
    assert f"ReadOnlyPaths={kit}/local {kit}/startup" in lines
    written = [line for line in lines if line.startswith("ReadWritePaths=")]
    assert written == [f"ReadWritePaths={kit}", f"ReadWritePaths=-{kit}/local/privacy"]


def test_the_page_of_a_kit_is_a_service_at_an_address_that_stays(tmp_path, monkeypatch):
    """Its command is one of this version."""
    (start,) = re.findall("^ExecStart=(.+)$", UNIT.with_name("grandrounds-monitor@.service").read_text(), re.MULTILINE)
    served = []
    monkeypatch.setattr(
        "grandrounds.deployment.operation.monitor.serve_monitor", lambda *given: served.append(given[1])
    )
    monkeypatch.setattr("grandrounds.deployment.kit.read.read_kit", lambda folder: folder)
    words = start.replace("/opt/grandrounds/kits/%i", str(tmp_path)).split()[1:]
    result = CliRunner().invoke(build_app(), words, catch_exceptions=False)
    assert (result.exit_code, served) == (0, [8765])
    assert (tmp_path / "monitor.token").is_file()


def test_the_service_may_do_little_with_the_system():
    lines = UNIT.read_text().splitlines()
    for line in ("CapabilityBoundingSet=", "NoNewPrivileges=yes", "UMask=0077", "SystemCallFilter=@system-service"):
        assert line in lines


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize("name", ["grandrounds", "grandrounds-monitor"])
def test_systemd_takes_the_unit(tmp_path, name):
    unit = tmp_path / f"{name}@hospital-a.service"
    unit.write_text(UNIT.with_name(f"{name}@.service").read_text())
    ended = subprocess.run(
        ["systemd-analyze", "verify", unit], capture_output=True, text=True, timeout=600, check=False
    )
    assert "Unknown" not in ended.stderr
    rated = ["systemd-analyze", "security", "--offline=true", "--no-pager", unit]
    exposure = subprocess.run(rated, capture_output=True, text=True, timeout=600, check=False).stdout
    found = re.search(r"Overall exposure level for \S+: (\d+\.\d)", exposure)
    assert found is None or float(found[1]) <= 2.0  # an old systemd does not rate files


def test_files_of_a_kit_in_the_background_are_for_its_user_alone(monkeypatch, tmp_path):
    masks = []
    kit = SimpleNamespace(folder=tmp_path, name="hospital-a")
    monkeypatch.setattr(background, "remove_stale_files", lambda kit: None)
    monkeypatch.setattr(background, "supervisor", lambda kit: 7)
    monkeypatch.setattr(
        background,
        "start_program",
        lambda *arguments, umask=-1: masks.append(umask) or SimpleNamespace(pid=7, poll=lambda: None),
    )
    background.start_in_background(kit)
    assert masks == [0o077]
