"""A site refuses jobs of others than it has listed, and while a file of its own is damaged; the doctor finds the same."""

import io
import json
import shutil
import stat
import tempfile
import tracemalloc
import zipfile
from uuid import uuid4

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from nvflare.apis.workspace import Workspace
from nvflare.lighter.utils import load_private_key, sign_folders
from nvflare.private.fed.utils.app_deployer import AppDeployer

from grandrounds.deployment import manifest
from grandrounds.deployment.jobs import JOBS, load_job
from grandrounds.deployment.kit.admission import RELEASES, CheckedDeployer, privacy_fault
from grandrounds.deployment.kit.doctor import privacy
from grandrounds.deployment.kit.overlay import apply_overlay
from grandrounds.deployment.kit.shipped import OVERLAYS
from grandrounds.deployment.kit.signers import SUBMITTERS
from grandrounds.deployment.manifest import add_manifests, approve
from grandrounds.deployment.operation.status import read_trail
from grandrounds.errors import ConfigurationError
from grandrounds.federation.job_files import read_files
from grandrounds.protocol.refusal import Reason, Refusal

JOB = "0d8fba9f-0e7e-4b0a-9b62-3c7f9b1f3a11"
NEW = object()
"""FLARE's id of a job that has not come before."""


@pytest.fixture
def site(make_kit):
    kit = make_kit("site")
    apply_overlay(kit)
    return kit


def test_the_roles_of_submitters_are_those_of_startup_kits():
    assert json.loads((OVERLAYS / "signers.json").read_text())["roles"] == list(SUBMITTERS)


@pytest.fixture
def signed(tmp_path, authorities, site):
    """A job's files, changed ``before`` they have a manifest, ``stating`` another one, or by ``change`` once signed."""

    def make(
        name="ann@study.example",
        role="lead",
        change=lambda folder: None,
        authority=None,
        before=lambda folder: None,
        stating=lambda folder: None,
    ):
        shutil.rmtree(tmp_path / "job", ignore_errors=True)
        shutil.copytree(JOBS / "fedavg", tmp_path / "job")
        folder = tmp_path / "job" / "app"
        before(folder)
        add_manifests(tmp_path / "job")
        stating(folder)
        certificate, key = (authority or authorities["study"]).issue(name, 10, hosts=(), role=role)
        (tmp_path / "person.crt").write_bytes(certificate)
        sign_folders(str(folder), load_private_key(key.decode()), str(tmp_path / "person.crt"))
        change(folder)
        stream = io.BytesIO()
        with zipfile.ZipFile(stream, "w") as archive:
            for path in sorted(folder.rglob("*")):
                archive.write(path, path.relative_to(folder))
        return stream.getvalue()

    return make


@pytest.fixture
def deploy(site, signed, monkeypatch):
    """A job arrives at the site; FLARE's own deployer would accept it."""
    monkeypatch.setattr(AppDeployer, "deploy", lambda *arguments: None)
    workspace = Workspace(root_dir=str(site.folder), site_name=site.name)

    def arrive(job=NEW, app=None, **meta):
        meta = {"name": "fedavg", "study": "default", **meta}
        return CheckedDeployer().deploy(
            workspace, str(uuid4()) if job is NEW else job, meta, "app", app or signed(), None
        )

    return arrive


def test_a_site_whose_files_are_in_order_accepts(deploy):
    assert deploy() == ""


@pytest.mark.parametrize("name", ["local", "startup", "grandrounds", JOB.upper(), f"{JOB}/..", "", None])
def test_a_job_cannot_have_the_name_of_a_folder_of_the_kit(deploy, name):
    """FLARE empties the folder of this name before it unpacks the job."""
    assert deploy(name) == "the job's id is none that FLARE gives"


def write_signers(site, **content):
    (site.local / "signers.json").write_text(json.dumps({"roles": [], "names": [], **content}))


def test_a_job_is_run_for_the_roles_and_names_that_the_site_lists(site, deploy, signed):
    assert deploy(app=signed(role="project_admin")) == ""
    refused = "the job is signed by ann@study.example (member), whose jobs this site does not run"
    assert deploy(app=signed(role="member")) == refused
    write_signers(site, names=["bo@study.example"])
    assert "signed by ann@study.example (lead)" in deploy(app=signed(role="lead"))
    assert deploy(app=signed("bo@study.example", role="member")) == ""


def test_the_servers_own_certificate_signs_no_job(deploy, signed):
    assert "signed by server (no role)" in deploy(app=signed("server", role=""))


def test_a_job_that_was_changed_or_lacks_a_signature_is_refused(deploy, signed, make_kit, authorities):
    def change(folder):
        (folder / "config" / "config_fed_client.json").write_text(json.dumps(load_job("local").client))

    def unsign(folder):
        for path in folder.rglob(".__nvfl_sig.json"):
            path.unlink()

    make_kit("site", project="another")
    apps = [signed(change=change), signed(change=unsign), signed(authority=authorities["another"])]
    assert [deploy(app=app) for app in apps] == ["the job has no valid signature of a person"] * 3


CLIENT, SERVER = "config_fed_client.json", "config_fed_server.json"


def edited(name, change):
    """A job author's change of one of the two files."""

    def edit(folder):
        path = folder / "config" / name
        content = json.loads(path.read_text())
        change(content)
        path.write_text(json.dumps(content))

    return edit


def extended(name, text):
    """A job author's text at the end of a file's object, which JSON's writer would not write."""

    def extend(folder):
        path = folder / "config" / name
        path.write_text(f"{path.read_text().rstrip()[:-1]}, {text}}}")

    return extend


def argument(value):
    return edited(CLIENT, lambda job: job["executors"][0]["executor"]["args"].update(device=value))


def as_hocon(folder):
    text = (folder / "config" / CLIENT).read_text().rstrip()
    hocon = f'{text[:-1]}, more: {{ include url("http://127.0.0.1:9/") }} }}'
    (folder / "config" / "config_fed_client.conf").write_text(hocon)


def as_hocon_alone(folder):
    as_hocon(folder)
    (folder / "config" / CLIENT).unlink()


def with_file(name):
    def add(folder):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("{}")

    return add


PROGRAMS = {
    "a variable of the machine as an argument": (argument("{$HTTPS_PROXY}"), "HTTPS_PROXY"),
    "a variable in a run's name": (
        edited(SERVER, lambda job: job["workflows"][0]["args"].update(run_name="run-{$NAME}")),
        "run-",
    ),
    "a variable of FLARE's": (argument("{WORKSPACE}"), "WORKSPACE"),
    "a secret of FLARE's": (argument("${env:TOKEN}"), "TOKEN"),
    "a parameter": (edited(CLIENT, lambda job: job.update({"@device": {"a": 1}})), "@device"),
    "a name with braces": (edited(CLIENT, lambda job: job["components"].append({"{$A}": 1})), "{$A}"),
    "letters as names of tasks": (
        edited(CLIENT, lambda job: job["executors"][0].update(tasks=["join", "train", "0_a"])),
        "0_a",
    ),
    "an unknown task in a filter": (
        edited(CLIENT, lambda job: job["task_data_filters"].append({"tasks": ["0_a"], "filters": []})),
        "0_a",
    ),
    "no list of tasks": (edited(CLIENT, lambda job: job["executors"][0].update(tasks="train")), "train"),
    "HOCON in place of JSON": (as_hocon_alone, "config_fed_client.conf"),
    "HOCON beside JSON": (as_hocon, "config_fed_client.conf"),
    "a text beside the parts of a job": (edited(CLIENT, lambda job: job.update(stolen="x")), "stolen"),
    "an include in JSON": (extended(CLIENT, 'a: { include file("/etc/passwd") }'), CLIENT),
    "one name twice": (extended(CLIENT, '"executors": []'), "twice"),
    "a number that is none": (extended(CLIENT, '"x": NaN'), "NaN"),
    "a number beyond all": (extended(CLIENT, '"x": 1e999'), "1e999"),
    "another file": (with_file("config/more.json"), "more.json"),
    "settings of another format": (with_file("config/config_fed_server.yml"), "config_fed_server.yml"),
    "a folder of resources": (with_file("resources/a.txt"), "resources"),
    "code of another name": (with_file("custom/spy.py"), "spy.py"),
    "no part of the sites": (lambda folder: (folder / "config" / CLIENT).unlink(), CLIENT),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_jobs_configuration_is_data_and_no_program(deploy, signed, name):
    """All are signed by a lead, and FLARE would read them."""
    before, named = PROGRAMS[name]
    assert named in deploy(app=signed(before=before))


@pytest.mark.parametrize("job", sorted(path.parent.name for path in JOBS.glob("*/meta.json")))
def test_the_packages_own_jobs_are_data(deploy, signed, job):
    assert (
        deploy(app=signed(before=lambda folder: shutil.copytree(JOBS / job / "app", folder, dirs_exist_ok=True))) == ""
    )


def packed(files):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files:
            archive.writestr(name, content)
    return stream.getvalue()


def lying(content):
    """A file that states, in both of its entries, that it has ten bytes."""
    archive = bytearray(packed([(f"config/{CLIENT}", content)]))
    for place in (22, archive.find(b"PK\x01\x02") + 24):
        archive[place : place + 4] = (10).to_bytes(4, "little")
    return bytes(archive)


def two_names():
    """A file that has another name in its own entry than in the archive's list."""
    archive = bytearray(packed([(f"config/{CLIENT}", "{}")]))
    archive[30:36] = b"CONFIG"
    return bytes(archive)


def compressed(method):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method) as archive:
        archive.writestr(f"config/{CLIENT}", bytes(1000))
    return stream.getvalue()


def damaged():
    """A compressed file whose first block is of no kind."""
    archive = bytearray(packed([("a", bytes(range(256)))]))
    archive[31] = 0x07
    return bytes(archive)


def link(name):
    entry = zipfile.ZipInfo(name)
    entry.external_attr = (stat.S_IFLNK | 0o777) << 16
    return entry


@pytest.mark.parametrize(
    ("app", "named"),
    [
        (packed([("config/a.bin", bytes(64 * 1024**2))]), "has more"),
        (packed([(f"config/{number}", b"") for number in range(5000)]), "has more"),
        (packed([(link("config/config_fed_client.json"), "/etc/passwd")]), "is a link"),
        (packed([("custom/grandrounds/../../x.py", "")]), "outside"),
        (packed([("../custom/", "")]), "outside"),
        (packed([("Config/config_fed_client.json", "{}")]), "no file of a job"),
        (packed([("config\uff0fconfig_fed_client.json", "{}")]), "no file of a job"),
        (packed([("config\\config_fed_client.json", "{}")]), "no file of a job"),
        (two_names(), "differ"),
        (packed([("config/a", b""), ("config/a", b"")]), "have one name"),
        (b"PK", "cannot be read"),
        (damaged(), "cannot be read"),
        (compressed(zipfile.ZIP_BZIP2), "compressed in another way"),
        (compressed(zipfile.ZIP_LZMA), "compressed in another way"),
        (
            packed([(f"config/{CLIENT}", "[" * 100_000), (f"config/{SERVER}", "{}"), ("manifest.json", "{}")]),
            "strict JSON",
        ),
    ],
    ids=[
        "large",
        "many",
        "link",
        "path",
        "folder",
        "case",
        "wide",
        "backslash",
        "two names",
        "twice",
        "no archive",
        "damaged",
        "bzip2",
        "lzma",
        "deep",
    ],
)
def test_an_archive_is_bounded_before_anything_is_unpacked(deploy, monkeypatch, app, named):
    monkeypatch.setattr(tempfile, "TemporaryDirectory", lambda: pytest.fail("unpacked"))
    assert named in deploy(app=app)


def test_an_app_has_no_name_that_leads_out_of_its_job():
    files = read_files(packed([(f"job/app/config/{CLIENT}", "{}")]))
    assert set(files) == {f"job/app/config/{CLIENT}"}
    with pytest.raises(ConfigurationError, match="outside"):
        read_files(packed([(f"job/../config/{CLIENT}", "{}")]))


def test_no_more_is_unpacked_of_a_file_than_it_states():
    """Python would unpack all of it before it takes the first ten bytes."""
    archive = lying(bytes(64 * 1024**2))
    assert len(archive) < 100_000
    tracemalloc.start()
    try:
        with pytest.raises(ConfigurationError, match="cannot be read"):
            read_files(archive)
        assert tracemalloc.get_traced_memory()[1] < 4 * 1024**2
    finally:
        tracemalloc.stop()


SIGNED = ".__nvfl_sig.json"


def taken_over(folder, other, name, called=""):
    """A server puts a file of another signed job in the place of one, with its signature."""
    shutil.copy(other / name, folder / (called or name))
    place = (folder / name).parent
    signatures = json.loads((place / SIGNED).read_text())
    signed = json.loads((other / name).parent.joinpath(SIGNED).read_text())[(other / name).name]
    (place / SIGNED).write_text(json.dumps({**signatures, (folder / (called or name)).name: signed}))


@pytest.fixture
def pilot(signed, tmp_path):
    """Another signed job of the same lead."""
    signed(before=argument("cpu"))
    return shutil.move(tmp_path / "job" / "app", tmp_path / "pilot")


CUT = {
    "the sites' part of a pilot": f"config/{CLIENT}",
    "the server's part of a pilot": f"config/{SERVER}",
    "the manifest of a pilot": "manifest.json",
}


@pytest.mark.parametrize("name", CUT)
def test_parts_of_two_signed_jobs_are_no_job(deploy, signed, pilot, name):
    if "server" in name:
        (pilot / CUT[name]).write_text((pilot / CUT[name]).read_text() + " ")
    app = signed(change=lambda folder: taken_over(folder, pilot, CUT[name]))
    refused = deploy(app=app)
    assert refused in (
        "the files of the job are not those of its signed manifest",
        "the job has no valid signature of a person",
    )
    assert deploy(app=signed()) == ""


def test_a_part_that_was_removed_or_renamed_is_missed(deploy, signed, pilot):
    def rename(folder):
        taken_over(folder, pilot, f"config/{CLIENT}", called="config/config_fed_client.conf")
        (folder / "config" / CLIENT).unlink()

    assert "config_fed_client.conf" in deploy(app=signed(change=rename))
    assert "lacks" in deploy(app=signed(change=lambda folder: (folder / "config" / CLIENT).unlink()))
    assert "lacks manifest.json" in deploy(app=signed(change=lambda folder: (folder / "manifest.json").unlink()))


def test_a_signed_job_is_run_once(deploy, signed, site):
    """Under the id that FLARE gave it first it may be taken up again, as by a server that was restarted."""
    app = signed()
    assert deploy(JOB, app) == deploy(JOB, app) == ""
    assert "was used at" in deploy(NEW, app)
    assert "was used at" in deploy(JOB, signed()), "FLARE's id of another job"
    assert deploy(NEW, signed()) == ""
    path = site.local / "privacy" / "jobs.jsonl"
    taken = [json.loads(line) for line in path.read_text().splitlines()]
    assert taken[0]["job"] == JOB
    assert len({line["number"] for line in taken}) == len(taken) == 2
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with path.open("a") as stream:
        stream.write('{"number": "of a full disk')
    assert "was used at" in deploy(NEW, app)
    assert deploy(NEW, signed()) == ""
    assert len([json.loads(line) for line in path.read_text().splitlines()]) == 3


@pytest.mark.parametrize("meta", [{"name": "study"}, {"scope": "open"}, {"study": "another"}])
def test_what_the_server_says_of_a_job_is_what_was_signed(deploy, meta):
    assert "the signed manifest" in deploy(**meta)


def stated(**values):
    """A manifest with other values."""

    def state(folder):
        path = folder / "manifest.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **values}))

    return state


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"sites": ["hospital-b"]}, "not for hospital-a"),
        ({"code": "0" * 64}, "another version"),
        ({"expires": "2020-01-01T00:00:00+00:00"}, "valid until"),
        ({"expires": "2999-01-01T00:00:00+00:00"}, "valid until"),
        ({"expires": "2999-01-01"}, "no date with a zone"),
        ({"files": {}}, "not those"),
        ({"files": []}, "manifest.json"),
        ({"sites": "hospital-a"}, "manifest.json"),
        ({"number": 7}, "manifest.json"),
        ({"more": ""}, "more"),
    ],
)
def test_a_manifest_is_for_these_sites_this_code_and_some_time(deploy, signed, values, named):
    assert named in deploy(app=signed(stating=stated(**values)))


def test_a_signature_can_be_withdrawn_by_name_and_by_certificate(deploy, signed, site, tmp_path):
    app = signed()
    certificate = x509.load_pem_x509_certificate((tmp_path / "person.crt").read_bytes())
    fingerprint = certificate.fingerprint(hashes.SHA256()).hex(":").upper()
    for withdrawn in ("ann@study.example", "Ann@Study.example", fingerprint):
        write_signers(site, roles=["lead"], withdrawn=[withdrawn])
        assert deploy(app=app) == "the signature of ann@study.example has been withdrawn at this site"
    assert deploy(app=signed()) == "", "a new certificate of the same person"
    write_signers(site, roles=["lead"], withdrawn=["bo@study.example"])
    assert deploy(app=app) == ""


def test_a_hospital_may_run_only_what_it_has_approved(deploy, signed, site, tmp_path, monkeypatch):
    write_signers(site, roles=["lead"], approval=True)
    app = signed()
    assert "has not approved" in deploy(app=app)
    folder = tmp_path / "job"
    approve(site.local, folder)
    assert deploy(app=app) == deploy(app=signed()) == "", "as often as it comes"
    assert "has not approved" in deploy(app=signed(before=argument("cpu")))
    assert "has not approved" in deploy(app=signed(stating=stated(policy="open")), scope="open"), "another policy"
    (folder / "app" / "config" / CLIENT).write_text("{}")
    with pytest.raises(ConfigurationError, match="not those of its manifest"):
        approve(site.local, folder)
    monkeypatch.setattr(manifest, "installed_digest", lambda: "1" * 64)
    assert "has not approved" in deploy(app=signed()), "other code"


def unknown_class(site):
    path = site.local / "privacy.json"
    content = json.loads(path.read_text())
    content["scopes"][0]["task_result_filters"].append({"path": "grandrounds.privacy.gate.filters.Unknown", "args": {}})
    path.write_text(json.dumps(content))


BROKEN = [
    (unknown_class, "privacy.json: "),
    (lambda site: (site.local / "privacy.json").write_text("{"), "privacy.json: "),
    (lambda site: (site.local / "grandrounds.json").write_text("[]"), "grandrounds.json: "),
    (lambda site: (site.local / "resources.json").write_text("{"), "resources.json: "),
    (lambda site: (site.local / "authorization.json").write_text(""), "authorization.json: "),
    (lambda site: write_signers(site), "signers.json: ConfigurationError: signers.json allows nobody"),
    (lambda site: (site.local / "signers.json").unlink(), "signers.json: "),
]


@pytest.mark.parametrize(("damage", "named"), BROKEN)
def test_a_damaged_file_refuses_the_job_by_name_and_without_the_sites_folders(site, deploy, damage, named):
    damage(site)
    reason = deploy()
    assert reason.startswith("the site's own files are not valid: " + named)
    assert "grandrounds doctor --kit" in reason
    assert str(site.folder) not in reason


def test_the_doctor_fails_for_a_class_that_does_not_load(site):
    assert privacy_fault(site.folder) == ""
    unknown_class(site)
    (finding,) = privacy(site)
    assert finding.level == "failure"
    assert "Unknown" in finding.message


def test_the_overlay_names_the_deployer_once(site):
    apply_overlay(site)
    components = json.loads((site.local / "resources.json").read_text())["components"]
    assert [entry["path"] for entry in components if entry["id"] == "app_deployer"] == [
        "grandrounds.deployment.kit.admission.CheckedDeployer"
    ]


def test_a_job_whose_releases_the_policy_keeps_is_refused_on_arrival_with_the_line_that_would_allow_it(site, deploy):
    stated = {"update": "model_update", "bank": "embeddings"}
    refusal = Refusal.read(deploy(custom_props={RELEASES: stated}))
    assert (refusal.final, "bank (embeddings)" in refusal.cause, "update" in refusal.cause) == (True, True, False)
    assert json.loads(refusal.line)["kind"] == "embeddings"
    trail = read_trail(site.local / "privacy")
    assert (trail.refused["run"], trail.refused["reason"]) == ("fedavg", Reason.DENIED)
    (line,) = trail.recent(3600)
    assert "bank (embeddings)" in line


@pytest.mark.parametrize(
    "stated", [None, {}, {"update": "model_update"}, {"update": "pictures"}, ["update"], {"\n": "counts"}]
)
def test_a_job_that_states_nothing_that_is_kept_is_accepted_and_its_gate_decides(deploy, stated):
    assert deploy(custom_props={RELEASES: stated}) == ""
