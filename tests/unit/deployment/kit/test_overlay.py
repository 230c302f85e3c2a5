"""The overlay sets a kit once, keeps what the site has decided, and pins what was reviewed."""

import hashlib
import json
import zipfile

import pytest

from grandrounds.data.partition.phantom_site import phantom_site
from grandrounds.deployment.kit import overlay
from grandrounds.deployment.kit.classes import classes_fault
from grandrounds.deployment.kit.overlay import (
    LOCK,
    Settings,
    apply_overlay,
    file_digest,
    installed_digest,
    wheel_digest,
)
from grandrounds.deployment.kit.shipped import DEFAULT_POLICY, OVERLAYS, shipped_content
from grandrounds.errors import ConfigurationError, DataError
from grandrounds.privacy.ledger.ledger import Ledger


def contents(kit):
    return {path.name: path.read_bytes() for path in kit.local.iterdir() if path.is_file()}


def read(kit, name):
    return json.loads((kit.local / name).read_text())


def test_a_second_time_changes_nothing(make_kit):
    kit = make_kit("site")
    assert {change.state for change in apply_overlay(kit)} == {"written"}
    before = contents(kit)
    assert {change.state for change in apply_overlay(kit)} == {"unchanged"}
    assert contents(kit) == before


def test_a_site_gets_all_that_it_needs(make_kit):
    kit = make_kit("site")
    apply_overlay(kit)
    assert classes_fault(read(kit, "resources.json"), at_site=True) == ""
    assert read(kit, "authorization.json")["permissions"]["lead"]["byoc"] == "none"
    assert read(kit, "privacy.json") == shipped_content(DEFAULT_POLICY)
    assert Ledger(kit.local / "privacy", kit.name).content().bookings == ()
    assert read(kit, LOCK)["files"]["privacy.json"] == file_digest(kit.local / "privacy.json")


@pytest.mark.parametrize("kind", ["site", "server"])
def test_the_structured_log_names_the_kit_and_is_locked(make_kit, kind):
    kit = make_kit(kind)
    apply_overlay(kit)
    formatter = read(kit, "log_config.json")["formatters"]["jsonFormatter"]
    assert formatter == {"()": "grandrounds.logs.lines.LineFormatter", "party": kit.name}
    assert "log_config.json" in read(kit, LOCK)["files"]


def test_a_log_configuration_of_ones_own_stays(make_kit):
    kit = make_kit("site")
    own = {"formatters": {"jsonFormatter": {"()": "own.Formatter"}}, "loggers": {"root": {"level": "DEBUG"}}}
    (kit.local / "log_config.json").write_text(json.dumps(own))
    apply_overlay(kit)
    assert read(kit, "log_config.json") == own


def test_startup_and_defaults_stay_as_they_were(make_kit):
    kit = make_kit("site")
    before = {path: path.read_bytes() for path in kit.folder.rglob("*") if path.is_file()}
    apply_overlay(kit)
    assert all(path.read_bytes() == content for path, content in before.items())


def test_settings_of_the_site_are_kept(make_kit):
    kit = make_kit("site")
    apply_overlay(kit, Settings(gpus=2))
    mine = {**read(kit, "privacy.json"), "default_scope": "sums", "note": "ours"}
    (kit.local / "privacy.json").write_text(json.dumps(mine))
    apply_overlay(kit)
    assert read(kit, "privacy.json") == mine
    assert read(kit, "resources.json")["components"][0]["args"]["num_of_gpus"] == 2
    assert read(kit, LOCK)["files"]["privacy.json"] == file_digest(kit.local / "privacy.json")


def test_another_policy_takes_the_place_of_the_one_that_is_there(make_kit):
    kit = make_kit("site")
    apply_overlay(kit)
    strict = OVERLAYS / "strict.json"
    for settings in (Settings(privacy=strict), None):
        apply_overlay(kit, settings)
        assert read(kit, "privacy.json") == json.loads(strict.read_text())


def test_a_ledger_that_was_removed_does_not_begin_again(make_kit):
    kit = make_kit("site")
    apply_overlay(kit)
    (kit.local / "privacy" / "ledger.jsonl").unlink()
    apply_overlay(kit)
    with pytest.raises((ConfigurationError, DataError)):
        Ledger(kit.local / "privacy", kit.name)


def test_a_server_stores_beside_its_kit_unless_configured(make_kit, tmp_path):
    kit = make_kit("server")
    apply_overlay(kit)
    assert read(kit, "resources.json")["components"][1]["args"]["uri_root"] == str(kit.folder / "storage" / "jobs")
    apply_overlay(kit, Settings(storage=tmp_path / "big"))
    apply_overlay(kit)
    assert read(kit, "resources.json")["components"][1]["args"]["uri_root"] == str(tmp_path / "big" / "jobs")
    assert not (kit.local / "privacy.json").exists()


@pytest.mark.parametrize("relative", [False, True])
def test_data_sets_keep_their_places(make_kit, tmp_path, monkeypatch, relative):
    kit = make_kit("site")
    config = phantom_site("hospital-a", tmp_path / "data", size=16, images=12)
    monkeypatch.chdir(tmp_path)
    apply_overlay(kit, Settings(datasets=config.relative_to(tmp_path) if relative else config))
    entry = read(kit, "grandrounds.json")["datasets"]["phantom"]
    assert entry == {"manifest": str(config.parent / "manifest.csv"), "root": str(config.parent / "images.npz")}


@pytest.mark.parametrize(
    ("kind", "settings", "reason"),
    [
        ("server", Settings(gpus=1), "--gpus is for a site"),
        ("site", Settings(storage=OVERLAYS), "--storage is for a server"),
        ("person", Settings(), "is the kit of a person"),
    ],
)
def test_a_choice_that_does_not_fit_the_kit_is_refused(make_kit, kind, settings, reason):
    kit = make_kit(kind)
    before = contents(kit)
    with pytest.raises(ConfigurationError, match=reason):
        apply_overlay(kit, settings)
    assert contents(kit) == before


def test_a_policy_that_the_gate_would_not_take_is_not_written(make_kit, tmp_path):
    """FLARE's own sample has no gate: with it every job would decide what leaves."""
    sample = tmp_path / "privacy.json"
    sample.write_text(json.dumps({"scopes": [{"name": "public"}], "default_scope": "public"}))
    kit = make_kit("site")
    before = contents(kit)
    with pytest.raises(ConfigurationError, match="must have a filter with path"):
        apply_overlay(kit, Settings(privacy=sample))
    assert contents(kit) == before


@pytest.mark.parametrize("name", ["sums.json", "open.json", "strict.json"])
def test_our_policies_are_ones_that_the_gate_takes(name):
    from grandrounds.privacy.gate.policy import read_policies

    assert len(read_policies(json.loads((OVERLAYS / name).read_text()), name)) == 1, "a job could choose the weaker one"


def wheel(folder, digest_of, version="1"):
    path = folder / f"grandrounds-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("grandrounds/__init__.py", digest_of)
    return path


def test_a_wheel_is_pinned_and_stays_pinned(make_kit, tmp_path, monkeypatch):
    kit = make_kit("site")
    reviewed = wheel(tmp_path, "x = 1")
    monkeypatch.setattr(overlay, "installed_digest", lambda: overlay.wheel_digest(reviewed))
    apply_overlay(kit, Settings(wheel=reviewed))
    pinned = read(kit, LOCK)["package"]
    assert pinned["wheel"] == reviewed.name
    assert pinned["wheel_sha256"] == file_digest(reviewed)
    apply_overlay(kit)
    assert read(kit, LOCK)["package"] == pinned
    monkeypatch.setattr(overlay, "installed_digest", lambda: "b" * 64)
    with pytest.raises(ConfigurationError, match="which is pinned"):
        apply_overlay(kit)


def test_a_wheel_that_is_not_installed_is_refused(make_kit, tmp_path):
    with pytest.raises(ConfigurationError, match="is not what is installed"):
        apply_overlay(make_kit("site"), Settings(wheel=wheel(tmp_path, "x = 2")))


FILES = {"grandrounds/__init__.py": b"x = 1\n", "grandrounds/data/a.py": b"y = 2\n"}


def install(folder, files):
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder / "grandrounds"


def wheel_of(folder, files):
    path = folder / "grandrounds-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("grandrounds-1.dist-info/RECORD", "")
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def test_the_digest_is_that_of_the_sorted_list_of_files(tmp_path):
    lines = "".join(sorted(f"{name}\0{hashlib.sha256(content).hexdigest()}\n" for name, content in FILES.items()))
    assert installed_digest(install(tmp_path, FILES)) == hashlib.sha256(lines.encode()).hexdigest()


def test_a_wheel_has_the_digest_of_its_installation_whatever_python_has_cached(tmp_path):
    package = install(tmp_path, {**FILES, "grandrounds/__pycache__/a.cpython-311.pyc": b"cache"})
    assert installed_digest(package) == wheel_digest(wheel_of(tmp_path, FILES))


@pytest.mark.parametrize(
    "changed",
    [
        {"grandrounds/__init__.py": b"x = 2\n"},
        {"grandrounds/more.py": b""},
        {"grandrounds/data/b.py": FILES["grandrounds/data/a.py"], "grandrounds/data/a.py": None},
    ],
)
def test_a_changed_added_or_renamed_file_shows(tmp_path, changed):
    files = {name: content for name, content in {**FILES, **changed}.items() if content is not None}
    assert installed_digest(install(tmp_path, files)) != wheel_digest(wheel_of(tmp_path, FILES))


def test_another_packages_wheel_is_refused(tmp_path):
    (tmp_path / "a.whl").write_text("no zip")
    with pytest.raises(ConfigurationError, match="cannot be read as a wheel"):
        wheel_digest(tmp_path / "a.whl")
    with pytest.raises(ConfigurationError, match="is not a wheel of grandrounds"):
        wheel_digest(wheel_of(tmp_path, {"other/__init__.py": b""}))


def test_a_files_digest_is_sha256sums(tmp_path):
    (tmp_path / "f").write_bytes(b"abc")  # FIPS 180-2, appendix B.1
    assert file_digest(tmp_path / "f") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
