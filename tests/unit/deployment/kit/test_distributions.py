"""In a kit only the plug-ins that its lock lists are imported, by name, version and content; the doctor fails else."""

import base64
import hashlib
import json
import site
import sys

import pytest

from grandrounds import plugins
from grandrounds.deployment.kit import service
from grandrounds.deployment.kit.distributions import listed_plugins, locked_networks, locked_plugins
from grandrounds.deployment.kit.doctor import examine_kit
from grandrounds.deployment.kit.overlay import LOCK, Settings, apply_overlay
from grandrounds.deployment.kit.shipped import PROVISIONING
from grandrounds.errors import ConfigurationError
from grandrounds.federation import channels
from grandrounds.plugins import LISTED_VARIABLE, NETWORKS_VARIABLE, PLUGINS_VARIABLE, Distribution, load_plugins


@pytest.fixture
def install(tmp_path, monkeypatch):
    """A distribution with a plug-in that notes its import: ``install(version, code)``."""
    root = tmp_path / "site-packages"
    monkeypatch.syspath_prepend(str(root))
    monkeypatch.delenv(PLUGINS_VARIABLE, raising=False)

    def make(version="1.0", code="", name="nice_metric"):
        info = root / f"{name}-1.dist-info"
        files = {
            f"{name}.py": f"import builtins\nbuiltins.imported = getattr(builtins, 'imported', 0) + 1\n{code}",
            f"{info.name}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
            f"{info.name}/entry_points.txt": f"[grandrounds]\nmine = {name}\n",
        }
        lines = []
        for path, text in files.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text)
            digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
            lines.append(f"{path},sha256={digest},{len(text)}")
        (info / "RECORD").write_text("\n".join([*lines, f"{info.name}/RECORD,,", ""]))
        return root / f"{name}.py"

    yield make
    plugins.load_plugins.cache_clear()


def imports(monkeypatch):
    """How often the plug-in has been imported anew."""
    import builtins

    sys.modules.pop("nice_metric", None)
    monkeypatch.setattr(builtins, "imported", 0, raising=False)
    load_plugins.cache_clear()
    found = load_plugins()
    sys.modules.pop("nice_metric", None)
    return builtins.imported, [plugin.distribution for plugin in found]


def finding(kit, check):
    return [(one.level, one.message) for one in examine_kit(kit, network=False) if one.check == check]


def test_a_plug_in_that_is_not_listed_is_not_imported_and_fails_the_doctor(install, make_kit, monkeypatch):
    install()
    assert imports(monkeypatch) == (1, ["nice-metric"])
    kit = make_kit("site")
    apply_overlay(kit)
    with listed_plugins(locked_plugins(kit)):
        assert imports(monkeypatch) == (0, [])
    (level, message), _ = finding(kit, "plug-ins")
    assert (level, "nice-metric 1.0 (nice_metric) is installed and not listed" in message) == ("failure", True)
    assert "--plugin nice-metric" in message
    assert "nice_metric" not in sys.modules


def test_a_listed_plug_in_is_imported_and_stays_listed(install, make_kit, monkeypatch):
    install()
    kit = make_kit("site")
    apply_overlay(kit, Settings(plugins=["Nice_Metric"]))
    apply_overlay(kit)
    (entry,) = json.loads((kit.local / LOCK).read_text())["plugins"]
    assert (entry["name"], entry["version"], len(entry["record"])) == ("nice-metric", "1.0", 64)
    with listed_plugins(locked_plugins(kit)):
        assert imports(monkeypatch) == (1, ["nice-metric"])
    assert finding(kit, "plug-ins") == [("ok", "nice-metric 1.0 (nice_metric)")]
    apply_overlay(kit, Settings(plugins=[]))
    assert locked_plugins(kit) == []


def another_version(install):
    install("1.1")


def edited(install):
    path = install()
    path.write_text(path.read_text() + "x = 1\n")


def other_content_in_the_record(install):
    install(code="x = 1\n")


@pytest.mark.parametrize("change", [another_version, edited, other_content_in_the_record])
def test_a_listed_plug_in_that_has_changed_is_not_imported(install, make_kit, monkeypatch, change):
    install()
    kit = make_kit("site")
    apply_overlay(kit, Settings(plugins=["nice-metric"]))
    change(install)
    with (
        listed_plugins(locked_plugins(kit)),
        pytest.raises(
            ConfigurationError, match=r"nice-metric 1\.0 is listed in this kit, but (version 1\.1|other cont)"
        ),
    ):
        imports(monkeypatch)
    ((level, message),) = finding(kit, "plug-ins")
    assert (level, "install what was reviewed" in message) == ("failure", True)


def test_the_variable_of_modules_is_not_read_in_a_kit(install, make_kit, monkeypatch):
    path = install()
    path.parent.joinpath("nice_metric-1.dist-info", "entry_points.txt").write_text("")
    monkeypatch.setenv(PLUGINS_VARIABLE, "nice_metric")
    with listed_plugins([]):
        assert imports(monkeypatch) == (0, [])
    kit = make_kit("site")
    apply_overlay(kit)
    assert ("failure", f"{PLUGINS_VARIABLE} is set, which no kit reads; remove it") in finding(kit, "plug-ins")


def test_what_is_no_plug_in_cannot_be_listed(make_kit):
    for name, reason in (("no-such-package", "is not installed here"), ("iniconfig", "iniconfig is no plug-in")):
        with pytest.raises(ConfigurationError, match=reason):
            apply_overlay(make_kit("site", name=name), Settings(plugins=[name]))


def test_a_kits_processes_read_the_list_from_the_lock(install, make_kit, monkeypatch):
    install()
    kit = make_kit("site")
    apply_overlay(kit, Settings(plugins=["nice-metric"]))
    monkeypatch.setattr(channels.os, "environ", {})  # what the code sets must not reach the next test
    assert channels._kit_of(["-s", "fed_client.json"]) is None, "a simulation has no kit"
    assert channels._kit_of(["--workspace", str(kit.folder)]) == kit.folder
    assert channels._kit_of(["-m", str(kit.folder), "-s", "fed_client.json", "--set", "org=x"]) == kit.folder
    channels._list_plugins(kit.folder)
    assert [Distribution(*one) for one in json.loads(channels.os.environ[LISTED_VARIABLE])] == locked_plugins(kit)
    (kit.local / LOCK).unlink()
    channels._list_plugins(kit.folder)
    assert channels.os.environ[LISTED_VARIABLE] == "[]"


def test_another_library_fails_the_doctor(make_kit):
    kit = make_kit("site")
    apply_overlay(kit)
    assert [level for level, _ in finding(kit, "libraries")] == ["ok"]
    lock = json.loads((kit.local / LOCK).read_text())
    lock["libraries"][0]["record"] = "0" * 64
    (kit.local / LOCK).write_text(json.dumps(lock))
    ((level, message),) = finding(kit, "libraries")
    assert (level, "not what the lock pins" in message) == ("failure", True)


def test_a_kit_lists_networks_with_their_library_as_it_was_reviewed(make_kit, monkeypatch):
    kit = make_kit("site")
    with pytest.raises(ConfigurationError, match="did you mean monai:resnet1"):
        apply_overlay(kit, Settings(networks=["monai:resnet11"]))
    apply_overlay(kit, Settings(networks=["monai:resnet10"]))
    apply_overlay(kit)
    version = Distribution.installed("monai").version
    assert finding(kit, "plug-ins") == [("ok", f"monai:resnet10 (monai {version})")]
    monkeypatch.setattr(channels.os, "environ", {})
    channels._list_plugins(kit.folder)
    listed = json.loads(channels.os.environ[NETWORKS_VARIABLE])
    assert {name: Distribution(*one) for name, one in listed.items()} == locked_networks(kit)
    lock = json.loads((kit.local / LOCK).read_text())
    lock["networks"]["monai:resnet10"]["version"] = "0.1"
    (kit.local / LOCK).write_text(json.dumps(lock))
    ((level, message),) = finding(kit, "plug-ins")
    assert (level, "install what was reviewed" in message) == ("failure", True)


def test_whatever_else_is_installed_is_compared_with_the_lock(make_kit, install, monkeypatch, tmp_path):
    """As a distribution that torch would import by itself, whose six lines open the gate."""
    kit = make_kit("site")
    apply_overlay(kit)
    assert finding(kit, "installation") == [("ok", "as it was when the overlay was applied")]
    install(name="backend_speedup")
    points = tmp_path / "site-packages" / "backend_speedup-1.dist-info" / "entry_points.txt"
    points.write_text("[torch.backends]\nspeedup = backend_speedup:go\n")
    ((level, message),) = finding(kit, "installation")
    assert level == "failure"
    assert "backend_speedup 1.0" in message
    assert "torch.backends: speedup = backend_speedup:go" in message
    apply_overlay(kit)
    assert finding(kit, "installation")[0][0] == "ok", "reviewed"
    record = points.with_name("RECORD")
    record.write_text(record.read_text() + "more.py,sha256=x,1\n")
    assert "changed: backend_speedup 1.0" in finding(kit, "installation")[0][1]


@pytest.mark.parametrize("name", ["spy.pth", "sitecustomize.py"])
def test_a_file_that_python_runs_when_it_starts_is_compared(make_kit, monkeypatch, tmp_path, name):
    kit = make_kit("server")
    apply_overlay(kit)
    monkeypatch.setattr(site, "getsitepackages", lambda: [str(tmp_path)])
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / name).write_text("import os\n")
    assert f"new: {name}" in finding(kit, "installation")[0][1]


def test_a_kit_starts_without_what_torch_would_import_by_itself():
    assert service._environment()["TORCH_DEVICE_BACKEND_AUTOLOAD"] == "0"
    for path in ("containers/Dockerfile", "slurm/grandrounds.sbatch", "systemd/grandrounds@.service"):
        assert "TORCH_DEVICE_BACKEND_AUTOLOAD=0" in (PROVISIONING / path).read_text()
