"""Each possible fault of a kit is found and reported with advice."""

import json
import re
import socket
import ssl
import threading
from types import SimpleNamespace

import pytest

from grandrounds.data.partition.phantom_site import phantom_site
from grandrounds.deployment.kit import doctor as kit_doctor
from grandrounds.deployment.kit.doctor import examine_kit
from grandrounds.deployment.kit.overlay import Settings, apply_overlay
from grandrounds.deployment.kit.read import read_kit


def found(kit, check, network=False):
    return [finding for finding in examine_kit(kit, network) if finding.check == check]


def failure(kit, check, network=False):
    """The one failure of a check."""
    failures = [finding.message for finding in found(kit, check, network) if finding.level == "failure"]
    assert len(failures) == 1, (check, failures)
    return failures[0]


@pytest.fixture(autouse=True)
def same_python(monkeypatch):
    """Asking the path's ``python3`` who it is takes a second, and has a test of its own, as the walls of this system."""
    monkeypatch.setattr("grandrounds.deployment.kit.machine._same_environment", lambda python3: True)
    monkeypatch.setattr("grandrounds.deployment.kit.machine.missing_walls", dict)
    monkeypatch.delenv("GRANDROUNDS_ISOLATION", raising=False)


@pytest.fixture
def site(make_kit, tmp_path):
    kit = make_kit("site")
    apply_overlay(kit, Settings(datasets=phantom_site("hospital-a", tmp_path / "data", size=16, images=20)))
    return kit


class Server:
    """Accepts handshakes with a kit's certificate, one after another, as FLARE's server does."""

    def __init__(self, kit):
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(kit.authority))
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_cert_chain(kit.certificate, kit.key)
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self.heard = []
        threading.Thread(target=self._serve, args=(context,), daemon=True).start()

    def _serve(self, context):
        while True:
            try:
                plain, _ = self._socket.accept()
            except OSError:
                return
            try:
                with context.wrap_socket(plain, server_side=True) as secured:
                    self.heard.append(secured.recv(1))
            except OSError:
                plain.close()

    def close(self):
        self._socket.shutdown(socket.SHUT_RDWR)  # wakes its thread
        self._socket.close()


@pytest.fixture
def serve():
    servers = []

    def start(kit):
        servers.append(Server(kit))
        return servers[-1].port

    start.servers = servers
    yield start
    for server in servers:
        server.close()


def test_a_kit_in_order_has_no_failure(site):
    levels = {finding.check: finding.level for finding in examine_kit(site, network=False)}
    assert "failure" not in levels.values()
    for check in (
        "certificate",
        "overlay",
        "allowed classes",
        "authorisation",
        "channels",
        "logs",
        "privacy",
        "privacy ledger",
        "weights",
    ):
        assert levels[check] == "ok", check


def test_a_kit_without_overlay_fails_where_it_is_open(make_kit):
    failed = {f.check for f in examine_kit(make_kit("site"), False) if f.level == "failure"}
    assert {"package", "allowed classes", "authorisation", "channels", "logs", "privacy", "privacy ledger"} <= failed


def test_it_writes_nothing(site):
    before = {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in site.folder.rglob("*")}
    examine_kit(site)
    assert {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in site.folder.rglob("*")} == before


@pytest.mark.parametrize(
    ("days", "level", "words"), [(-3, "failure", "expired 3 days ago"), (10, "warning", "expires in 10 days")]
)
def test_a_certificates_end(make_kit, days, level, words):
    finding = found(make_kit("site", days=days), "certificate")[0]
    assert finding.level == level
    assert words in finding.message
    assert "grandrounds kit renew" in finding.message


def test_the_authoritys_certificate_counts_too(make_kit):
    """It ends after 1000 days, whatever the site's certificate."""
    assert "for 1000 more days" in found(make_kit("site", days=2000), "certificate")[0].message


@pytest.mark.parametrize(("minutes", "behind"), [(10, True), (3, False)])
def test_a_clock_that_is_behind_by_minutes(make_kit, minutes, behind):
    kit = make_kit("site", begins=minutes / (24 * 60))
    if behind:
        assert "clock is slow" in failure(kit, "clock")
    else:
        assert [finding.level for finding in found(kit, "clock")] == ["ok"]


def test_a_certificate_of_another_project(make_kit):
    kit, other = make_kit("site"), make_kit("site", project="elsewhere")
    (kit.startup / "rootCA.pem").write_bytes((other.startup / "rootCA.pem").read_bytes())
    assert "the files are of two projects" in failure(kit, "certificate")


def test_a_certificate_of_another_site(make_kit):
    kit, other = make_kit("site"), make_kit("site", name="hospital-b")
    for name in ("client.crt", "client.key"):
        (kit.startup / name).write_bytes((other.startup / name).read_bytes())
    assert "is of 'hospital-b', but the kit is of 'hospital-a'" in failure(kit, "certificate")


def test_a_key_that_does_not_belong(make_kit):
    kit, other = make_kit("site"), make_kit("site", name="hospital-b")
    (kit.startup / "client.key").write_bytes((other.startup / "client.key").read_bytes())
    assert "does not belong to client.crt" in failure(kit, "certificate")


@pytest.mark.parametrize(("mode", "levels"), [(0o640, ["ok", "warning"]), (0o604, ["ok", "warning"]), (0o400, ["ok"])])
def test_a_key_that_others_may_read(make_kit, mode, levels):
    kit = make_kit("site")
    kit.key.chmod(mode)
    assert [finding.level for finding in found(kit, "certificate")] == levels


def test_the_sites_that_a_server_asks_for_are_named(make_kit):
    kit = make_kit("server")
    assert found(kit, "roster")[0].message == "mandatory for every job: none"
    apply_overlay(kit, Settings(mandatory=["hospital-a", "hospital-b"]))
    assert found(kit, "roster")[0].message == "mandatory for every job: hospital-a, hospital-b"
    (kit.local / "roster.json").write_text('{"mandatory": ["hospital-a"]}')
    assert "roster.json" in failure(kit, "roster")


def test_a_server_that_answers(make_kit, serve):
    port = serve(make_kit("server"))
    kit = make_kit("site", port=port)
    assert [finding.level for finding in found(kit, "server", network=True)] == ["ok"]


def test_the_server_hears_a_handshake_and_a_request_and_no_login(make_kit, serve, monkeypatch):
    """FLARE's preflight check logs in as the site, which cuts a running one off. This server knows no HTTP."""
    started = []
    programs = SimpleNamespace(run=lambda command, **_: started.append(command) or fail(), SubprocessError=OSError)
    monkeypatch.setattr("grandrounds.deployment.kit.machine.subprocess", programs)
    kit = make_kit("site", port=serve(make_kit("server")))
    apply_overlay(kit)
    assert not [finding for finding in examine_kit(kit) if finding.check == "bandwidth"]
    (server,) = serve.servers
    assert server.heard == [b"", b"P"]
    assert [command[0] for command in started] == ["nvidia-smi"]


def fail():
    raise OSError("not found")


def test_a_wrong_host_name(make_kit, serve):
    port = serve(make_kit("server", hosts=("server.elsewhere",)))
    assert "does not name 'localhost'" in failure(make_kit("site", port=port), "server", network=True)


def test_a_server_whose_certificate_has_ended(make_kit, serve):
    port = serve(make_kit("server", days=-1))
    message = failure(make_kit("site", port=port), "server", network=True)
    assert "is out of date (certificate has expired): the operator must make the server's kit again" in message


def test_a_server_that_refuses_the_sites_certificate(make_kit, serve, monkeypatch):
    monkeypatch.setattr("grandrounds.deployment.kit.certificates.REFUSAL_SECONDS", 60.0)  # it comes, if not soon
    port = serve(make_kit("server"))
    message = failure(make_kit("site", port=port, days=-1), "server", network=True)
    assert re.search("does not accept the certificate .*EXPIRED", message)


def test_a_server_of_another_project(make_kit, serve):
    port = serve(make_kit("server", project="elsewhere"))
    assert "is not of project 'study'" in failure(make_kit("site", port=port), "server", network=True)


def test_a_server_that_is_not_there(make_kit):
    with socket.socket() as taken:  # so that no other program gets the port
        taken.bind(("127.0.0.1", 0))
        kit = make_kit("site", port=taken.getsockname()[1])
        assert "is the port open outwards?" in failure(kit, "server", network=True)


@pytest.mark.parametrize("host", ["unknown.invalid", "server..elsewhere", "a" * 70])
def test_an_unknown_host_name_is_a_failure(make_kit, host):
    kit = make_kit("site", host=host)
    assert "ask for a DNS entry" in failure(kit, "server", network=True)


def test_a_port_that_is_taken(make_kit):
    with socket.create_server(("", 0)) as other:
        message = failure(make_kit("server", port=other.getsockname()[1]), "port")
    assert "it cannot be used (Address already in use); stop the program that uses it" in message


def test_a_free_port(make_kit):
    with socket.create_server(("", 0)) as probe:
        port = probe.getsockname()[1]
    assert [finding.level for finding in found(make_kit("server", port=port), "port")] == ["ok"]


def test_another_version_is_installed_than_was_pinned(site, monkeypatch):
    monkeypatch.setattr(kit_doctor, "installed_digest", lambda: "b" * 64)
    assert "; install the pinned wheel" in failure(site, "package")


def test_a_pinned_wheel_is_named_with_its_hash(site, monkeypatch):
    lock = site.local / "grandrounds.lock.json"
    package = {
        "version": "0.1.0",
        "contents": "a" * 64,
        "wheel": "reviewed.whl",
        "wheel_sha256": "0123456789abcdef" * 4,
    }
    lock.write_text(json.dumps({**json.loads(lock.read_text()), "package": package}))
    (finding,) = found(site, "package")
    assert (finding.level, finding.message) == ("ok", "reviewed.whl (sha256 0123456789ab…), unchanged")
    monkeypatch.setattr(kit_doctor, "installed_digest", lambda: "b" * 64)
    assert "is not the pinned reviewed.whl (sha256 0123456789ab…)" in failure(site, "package")


def test_local_files_of_another_kit(make_kit, site):
    other = make_kit("site", name="hospital-b")
    for path in site.local.glob("*.json"):
        (other.local / path.name).write_bytes(path.read_bytes())
    assert "belongs to hospital-a of project study" in failure(other, "overlay")


def test_a_file_that_was_edited_after_the_overlay(site):
    path = site.local / "resources.json"
    path.write_text(path.read_text() + "\n")
    finding = found(site, "overlay")[0]
    assert (finding.level, "resources.json changed since" in finding.message) == ("warning", True)


def test_a_data_set_whose_manifest_is_missing(site):
    path = site.local / "grandrounds.json"
    content = json.loads(path.read_text())
    content["datasets"]["phantom"]["manifest"] = "/nowhere/manifest.csv"
    path.write_text(json.dumps(content))
    assert "there is no file /nowhere/manifest.csv" in failure(site, "data sets")


def test_data_sets_are_counted_and_their_labels_named(site):
    message = found(site, "data sets")[0].message
    assert re.search(r"'phantom': \d+ train, \d+ val, \d+ test; labels: clustered, irregular, ring, round", message)


@pytest.mark.parametrize(
    ("kind", "lost"), [("site", "privacy ledger, audit trail and states"), ("server", "states and")]
)
def test_jobs_in_pods_of_their_own_would_lose_what_they_must_keep(make_kit, kind, lost):
    kit = make_kit(kind)
    apply_overlay(kit)
    assert found(kit, "launcher") == []
    path = kit.local / "resources.json"
    content = json.loads(path.read_text())
    others = [entry for entry in content["components"] if entry["id"] != "process_launcher"]
    launcher = f"nvflare.app_opt.job_launcher.k8s_launcher.{'Client' if kind == 'site' else 'Server'}K8sJobLauncher"
    content["components"] = [*others, {"id": "k8s_launcher", "path": launcher, "args": {"config_file_path": ""}}]
    path.write_text(json.dumps(content))
    assert lost in failure(kit, "launcher")


def test_a_choice_of_scopes_is_a_warning(site):
    path = site.local / "privacy.json"
    content = json.loads(path.read_text())
    content["scopes"].append({**content["scopes"][0], "name": "lax"})
    path.write_text(json.dumps(content))
    assert [finding.level for finding in found(site, "privacy")] == ["ok", "warning"]


def test_a_ledger_that_is_missing(site):
    (site.local / "privacy" / "ledger.jsonl").unlink()
    assert "there is no ledger" in failure(site, "privacy ledger")


def test_what_the_site_has_allowed_beside_the_usual_is_reported(site):
    path = site.local / "resources.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "class_allow_list": [*content["class_allow_list"], "our.filters.Blur"]}))
    findings = found(site, "allowed classes")
    assert [finding.level for finding in findings] == ["ok", "warning"]
    assert "jobs may also call our.filters.Blur" in findings[1].message


@pytest.mark.parametrize(
    ("name", "content", "check"),
    [
        ("resources.json", {"class_allow_list": "all"}, "allowed classes"),
        ("resources.json", {"class_allow_list": [], "components": None}, "gpu"),
        ("resources.json", {"components": [{"id": "resource_manager", "args": {"num_of_gpus": "two"}}]}, "gpu"),
        ("authorization.json", {"permissions": ["lead"]}, "authorisation"),
        ("privacy.json", {"scopes": "strict"}, "privacy"),
        ("grandrounds.json", {"datasets": ["skin"]}, "data sets"),
        ("grandrounds.lock.json", {"package": "the wheel"}, "package"),
    ],
)
def test_a_file_of_any_form_is_a_finding_and_the_other_checks_go_on(site, name, content, check):
    (site.local / name).write_text(json.dumps(content))
    assert failure(site, check)
    assert found(site, "certificate")[0].level == "ok"
    assert found(site, "disk")


def test_a_gpu_that_is_not_offered(site, monkeypatch):
    monkeypatch.setattr("grandrounds.deployment.kit.machine._gpus_here", lambda: 1)
    (finding,) = found(site, "gpu")
    assert (finding.level, "1 found, 0 offered to jobs" in finding.message) == ("warning", True)


def test_more_gpus_than_there_are(site, monkeypatch):
    monkeypatch.setattr("grandrounds.deployment.kit.machine._gpus_here", lambda: 1)
    apply_overlay(site, Settings(gpus=2))
    assert "2 are offered to jobs, 1 found" in failure(site, "gpu")


@pytest.mark.parametrize(
    ("isolation", "missing", "level"),
    [
        ("", {}, "ok"),
        ("", {"landlock": "too old"}, "warning"),
        ("required", {}, "ok"),
        ("required", {"landlock": "too old"}, "failure"),
        ("none", {}, "warning"),
    ],
)
def test_walls_that_the_system_lacks_are_reported(site, monkeypatch, isolation, missing, level):
    monkeypatch.setenv("GRANDROUNDS_ISOLATION", isolation)
    monkeypatch.setattr("grandrounds.deployment.kit.machine.missing_walls", lambda: missing)
    (finding,) = found(site, "training child")
    assert finding.level == level


def test_storage_among_temporary_files(make_kit, tmp_path, monkeypatch):
    assert "which may be emptied" in failure(make_kit("server"), "storage")
    monkeypatch.setattr(kit_doctor, "TEMPORARY", (str(tmp_path),))
    kit = make_kit("server", name="trial")
    apply_overlay(kit)
    assert [finding.level for finding in found(kit, "storage")] == ["ok"], "a kit may be kept there on purpose"
    apply_overlay(kit, Settings(storage=tmp_path / "elsewhere"))
    assert "which may be emptied" in failure(kit, "storage")


def test_a_persons_kit_is_asked_for_less(make_kit):
    checks = {finding.check for finding in examine_kit(make_kit("person"), network=False)}
    assert checks == {"python", "packages", "certificate", "clock"}
    assert read_kit(make_kit("person", name="bo@study.example").folder).kind == "person"


def test_a_site_behind_a_relay_is_a_failure(make_kit):
    kit = make_kit("site")
    apply_overlay(kit)
    assert [finding.level for finding in found(kit, "channels")] == ["ok"]
    (kit.local / "relay__resources.json").write_text("{}")
    assert "relay" in failure(kit, "channels")


def test_the_number_of_sites_that_the_server_takes_is_set_and_fewer_than_are_mandatory_a_failure(make_kit):
    kit = make_kit("server")
    path = kit.local / "resources.json.default"
    path.write_text(json.dumps({**json.loads(path.read_text()), "servers": [{"max_num_clients": 100}]}))
    apply_overlay(kit, Settings(max_sites=300, mandatory=["a", "b"]))
    assert json.loads((kit.local / "resources.json").read_text())["servers"] == [{"max_num_clients": 300}]
    assert [finding.level for finding in found(kit, "sites")] == ["ok"]
    apply_overlay(kit, Settings(max_sites=1))
    assert "--max-sites" in failure(kit, "sites")
