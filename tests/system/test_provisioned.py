"""A server and three hospitals from startup kits: what a job may do there, what it gives, and that nothing stays behind."""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from jsonschema import Draft202012Validator
from nvflare.recipe import ProdEnv

import grandrounds as gr
from benchmarks.rehearsal.kit_processes import running_module, training_child
from grandrounds.data.partition.phantom_site import phantom_site
from grandrounds.deployment.job_watch import admin_session, connected_sites, summary_in
from grandrounds.deployment.jobs import Job, load_job, write_job
from grandrounds.deployment.kit.doctor import examine_kit
from grandrounds.deployment.kit.read import processes_of, read_kit, running_processes
from grandrounds.deployment.local_federation import prepare
from grandrounds.deployment.manifest import add_manifests
from grandrounds.deployment.presets import with_options
from grandrounds.deployment.simulate import simulate
from grandrounds.deployment.submission import submit_and_watch, with_roster
from grandrounds.errors import GrandRoundsError
from grandrounds.logs.lines import LINE_SCHEMA
from grandrounds.reporting.export import export_model
from grandrounds.reporting.model import report_on
from grandrounds.reporting.page import write_report
from grandrounds.reporting.runs import read_run
from grandrounds.walls import SECCOMP, missing_walls

pytestmark = pytest.mark.provisioned

HOSPITALS = ("hospital-a", "hospital-b", "hospital-c")
TINY = [
    *("executor.steps=2", "executor.batch_size=8", "executor.device=cpu", "executor.cpu_threads=1"),
    *("controller.rounds=2", "controller.warm_up=1", "executor.threshold=0.26", "controller.round_timeout=600"),
]


@pytest.fixture(scope="module")
def federation(consortium):
    """Server and hospitals, up; afterwards nothing of them runs."""
    with consortium(HOSPITALS, gently=True) as made:
        yield made


@pytest.fixture(scope="module")
def researcher(federation):
    return federation.kit(federation.researcher)


def small(*assignments):
    return with_options(load_job("fedperl"), [*TINY, *assignments])


@pytest.fixture(scope="module")
def trained(federation, researcher, tmp_path_factory):
    """A job, how it ended, and what the system said of each process that trained for the first hospital meanwhile."""
    job = with_roster(small(), mandatory=HOSPITALS, min_sites=3)
    kit, seen, ended = federation.kits / HOSPITALS[0], {}, threading.Event()

    def watch():
        while not ended.wait(0.05):
            for child in filter(None, map(training_child, running_module(kit, "worker_process"))):
                with contextlib.suppress(OSError):
                    lines = Path(f"/proc/{child}/status").read_text().splitlines()
                    seen[child] = dict(line.split(":\t", 1) for line in lines if ":\t" in line)

    watcher = threading.Thread(target=watch)
    watcher.start()
    reported = []
    try:
        outcome = submit_and_watch(researcher, job, tmp_path_factory.mktemp("trained"), reported.append)
    finally:
        ended.set()
        watcher.join()
    assert outcome.finished, reported
    return job, outcome, list(seen.values())


def test_a_job_gives_the_models_of_the_same_job_in_one_process(
    trained, tmp_path, shared_cache, small_counts, monkeypatch
):
    """Kits, certificates, processes and the sites' gates change no bit of the models; gates round scores.

    What the report and the model card say of its patients counts none of them from one to nine.
    """
    job, outcome, _ = trained
    assert outcome.summary["contributions"] == dict.fromkeys(HOSPITALS, 2)
    assert sorted(outcome.summary["records"]) == sorted(HOSPITALS)
    alone = simulate(job, tmp_path / "alone", list(HOSPITALS))
    for site, tested in alone["records"].items():
        sent = outcome.summary["records"][site]["common"]["exact"]
        known = {name: tested["common"]["exact"][name] for name in sent}
        # The table stays, so that scores of 50 images or more leave in steps of .02.
        assert sent == pytest.approx(known, abs=0.0101)
        assert sent["log_loss"] == pytest.approx(known["log_loss"], rel=1e-6)
        assert {"auc_macro", "log_loss"} <= sent.keys()
    for name in ("last.pt", "selected.pt"):
        here = torch.load(outcome.download / "workspace" / "results" / name, weights_only=True)
        there = torch.load(tmp_path / "alone" / "results" / name, weights_only=True)
        assert here.keys() == there.keys()
        assert all(torch.equal(here[entry], there[entry]) for entry in here)
    monkeypatch.setenv("MPLCONFIGDIR", str(tmp_path / "matplotlib"))  # its list of fonts
    run = read_run(outcome.download / "workspace" / "results", "skin")
    report = report_on([run])
    write_report(report, tmp_path / "report")
    export_model(report, tmp_path / "report")
    assert small_counts(tmp_path / "report") == []


def test_a_hospital_trains_behind_the_walls_that_its_system_has(federation, trained):
    """Its trail names those that are missing; here they are looked for in the system's own status of the process."""
    _, _, seen = trained
    assert len(seen) == 1, "one child does all tasks of a job"
    (status,) = seen
    assert (status["Seccomp"] == "2") == (SECCOMP not in missing_walls())
    trail = federation.kits / HOSPITALS[0] / "local" / "privacy" / "audit.jsonl"
    assert any('"unwalled"' in line for line in trail.read_text().splitlines()) == bool(missing_walls())


def test_every_line_of_every_structured_log_has_the_form_of_the_schema(federation):
    """After the job above: of the kits, of its processes at the sites, and of the server's in its results."""
    validator = Draft202012Validator(json.loads(LINE_SCHEMA.read_text()))
    logs = [*federation.kits.rglob("log.json")]
    assert len(logs) > len(HOSPITALS) + 1
    lines = [json.loads(line) for path in logs for line in path.read_text().splitlines()]
    for line in lines:
        validator.validate(line)
    assert {line["party"] for line in lines} == {"server", *HOSPITALS}
    told = {(line["party"], line["round"]) for line in lines if line["event"] == "released" and line["job"]}
    assert told >= {(site, number) for site in HOSPITALS for number in (1, 2)}


def test_everything_is_in_the_folder(federation):
    """Storage is not where it is by default, and every process writes its files in the federation's folder."""
    assert (federation.kits / federation.server / "storage" / "jobs").is_dir()
    for name in (federation.server, *HOSPITALS):
        for path in (federation.kits / name / "local").rglob("*.json"):
            assert "/tmp/nvflare" not in path.read_text()
    places = [place for process in processes_of(federation.folder) for place in written(process)]
    assert places
    assert [place for place in places if not place.is_relative_to(federation.folder)] == []


def written(process):
    """Regular files that a process has open for writing."""
    for entry in Path(f"/proc/{process}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            flags = int((entry.parents[1] / "fdinfo" / entry.name).read_text().split("flags:")[1].split()[0], 8)
            place = entry.readlink()
            if flags & os.O_ACCMODE != os.O_RDONLY and place.is_file():
                yield place


def test_the_doctor_leaves_a_live_site_alone(federation):
    kit = federation.kit("hospital-a")
    before = running_processes(kit)
    assert before
    levels = {finding.check: finding.level for finding in examine_kit(kit)}
    assert levels["server"] == "ok"
    assert levels["certificate"] == levels["authorisation"] == levels["privacy"] == "ok"
    assert running_processes(kit) == before
    with admin_session(federation.kit(federation.operator)) as session:
        assert connected_sites(session) == list(HOSPITALS)


def test_the_servers_port_is_found_to_be_its_own(federation):
    findings = {finding.check: finding for finding in examine_kit(federation.kit(federation.server))}
    assert findings["port"].level == "ok"
    assert "this kit's server" in findings["port"].message


def own_code(job, mark):
    return job, "BYOC not permitted"


def own_class(job, mark):
    entry = {"id": "spy", "path": "subprocess.Popen", "args": {"args": ["touch", str(mark)]}}
    return Job(job.meta, job.server, {**job.client, "components": [entry]}), "'subprocess.Popen' .* not in allow"


def own_call(job, mark):
    """A function of the installed package that runs programs; and the job declares its code as its own."""
    entry = {"id": "spy", "path": "grandrounds.deployment.processes.run_logged"}
    entry |= {"args": {"commands": [["touch", str(mark)]], "workers": 1}}
    changed = Job({**job.meta, "byoc": True}, job.server, {**job.client, "components": [entry]})
    return changed, "'grandrounds.deployment.processes.run_logged' .* not in allow|BYOC not permitted"


def other_controller(job, mark):
    """One of FLARE's, which knows nothing of the sites that the server asks for."""
    flares = {"path": "nvflare.app_common.workflows.global_model_eval.GlobalModelEval", "args": {}}
    server = {**job.server, "workflows": [{"id": "controller", **flares}]}
    return Job(job.meta, server, job.client), f"'{flares['path']}' .* not in allow"


def other_scope(job, mark):
    return Job({**job.meta, "scope": "none"}, job.server, job.client), "scope 'none' is not allowed"


def other_data(job, mark):
    # Here the sites do start, which takes a while on a busy machine.
    patient = ["controller.start_timeout=600", "controller.round_timeout=600"]
    return with_options(
        job, ["problem.dataset=../../../etc", *patient]
    ), "nothing leaves: .* cannot identify the data set"


@pytest.mark.parametrize("forbidden", [own_code, own_class, own_call, other_controller, other_scope, other_data])
def test_a_researcher_cannot(federation, researcher, tmp_path, forbidden):
    """No job runs code that is not installed, leaves the gate's scope, or reads what the site has not named."""
    limits = [
        "controller.rounds=1",
        "controller.min_sites=1",
        "controller.start_timeout=5",
        "controller.round_timeout=15",
        f"controller.run_name={forbidden.__name__}",  # else the state of an earlier run would refuse the job
    ]
    mark = tmp_path / "ran"
    job, reason = forbidden(small(*limits), mark)
    folder = add_manifests(write_job(job, tmp_path / forbidden.__name__, byoc=forbidden is own_code))
    if forbidden is own_code:
        code = folder / "app" / "custom" / "grandrounds" / "__init__.py"
        code.write_text(f"{code.read_text()}\nopen({str(mark)!r}, 'w').close()\n")
    summary, reported = attempt(federation, folder, tmp_path / "download")
    assert summary.get("status") != "finished"
    assert not summary.get("contributions")
    assert not mark.exists()
    assert re.search(reason, reported), reported[-2000:]


def attempt(federation, folder, out):
    """Submit a job; its summary, and all that FLARE, the run and the sites say about it."""
    try:
        with admin_session(federation.kit(federation.researcher)) as session:
            identifier = session.submit_job(str(folder))
            session.wait_for_job(identifier, timeout=900, poll_interval=0.5)
            download = Path(session.download_job_result(identifier, str(out)))
            meta = session.get_job_meta(identifier)  # FLARE writes the status before the reason
    except GrandRoundsError as error:
        return {}, str(error)
    logs = [download / "workspace" / "log.txt", *federation.kits.glob(f"*/{identifier}/log.txt")]
    return summary_in(download), json.dumps(meta) + "".join(log.read_text() for log in logs if log.is_file())


def test_a_job_does_not_start_without_a_mandatory_site(researcher, tmp_path):
    job = with_roster(small(), mandatory=["hospital-z"])
    with pytest.raises(GrandRoundsError, match="hospital-z is mandatory and not connected"):
        submit_and_watch(researcher, job, tmp_path, print)


@pytest.mark.parametrize(("asked", "sites"), [("hospital-z", ()), (HOSPITALS[0], HOSPITALS[1:])])
def test_no_job_starts_without_a_site_that_the_server_asks_for(federation, tmp_path, asked, sites):
    """One that is not there, or that the job leaves out; and a run that fails leaves a record that can be downloaded."""
    roster = federation.kits / federation.server / "local" / "roster.json"
    roster.write_text(json.dumps({"mandatory_sites": [asked]}))
    try:
        job = with_roster(
            small(f"controller.run_name=without-{asked}", "controller.start_timeout=3"), sites, min_sites=2
        )
        summary, _ = attempt(federation, add_manifests(write_job(job, tmp_path / "roster")), tmp_path / "download")
    finally:
        roster.unlink()
    assert (summary["status"], summary["rounds_done"]) == ("failed", 0)
    assert summary["reason"].startswith(f"{asked} is mandatory and not connected")


def by_command_line(kit, job):
    return [sys.executable, "-m", "nvflare.cli", "job", "submit", "-j", str(job), "--startup-kit", str(kit.folder)], ""


def by_console(kit, job):
    return ["bash", str(kit.startup / "fl_admin.sh")], f"{kit.name}\nsubmit_job {job}\nbye\n"


@pytest.mark.parametrize("way", [by_command_line, pytest.param(by_console, marks=pytest.mark.slow)])
def test_flares_own_tools_accept_a_job_folder(federation, researcher, tmp_path, way):
    """As ``build`` writes it; FLARE's console writes signatures into it."""
    shutil.rmtree(federation.kits / federation.server / "grandrounds" / "statistics", ignore_errors=True)
    folder = add_manifests(write_job(load_job("statistics"), tmp_path / "statistics"))
    command, typed = way(researcher, folder)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    ended = subprocess.run(
        command,
        input=typed,
        env={**os.environ, "HOME": str(tmp_path), "PATH": path},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    found = re.search(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", ended.stdout)
    assert found, ended.stdout + ended.stderr
    with admin_session(researcher) as session:
        session.wait_for_job(found[0], timeout=900, poll_interval=0.5)
        summary = summary_in(Path(session.download_job_result(found[0], str(tmp_path))))
    assert (summary["status"], summary["contributions"]) == ("finished", dict.fromkeys(HOSPITALS, 1))


def test_a_recipe_is_sent_with_the_statement_of_what_leaves(federation, researcher, capsys):
    """It is shown before the job is sent, and each site has it with the job, which brings no code."""
    recipe = gr.recipe(small("controller.run_name=recipe"), mandatory_sites=list(HOSPITALS))
    env = ProdEnv(startup_kit_location=str(researcher.folder), username=researcher.name)
    run = recipe.execute(env)
    result = run.get_result(timeout=900)
    assert gr.Run(Path(result) / "workspace").summary["status"] == "finished"
    line = "leaves each site, in every round: update (model_update); and scalar metrics"
    assert line in capsys.readouterr().err
    for hospital in HOSPITALS:
        received = json.loads((federation.kits / hospital / run.get_job_id() / "meta.json").read_text())
        assert f"  {line}" in received["custom_props"]["statement"]


def test_a_missing_data_set_excludes_only_the_site_that_lacks_it(federation, researcher, tmp_path):
    """Two hospitals have named their drawn images; the third has not, and its log lists what it has."""
    named = {site: federation.kits / site / "local" / "grandrounds.json" for site in HOSPITALS[:2]}
    for site, path in named.items():
        content = json.loads(phantom_site(site, tmp_path / "data", size=32, images=40).read_text())
        (entry,) = content["datasets"].values()
        folder = tmp_path / "data" / site
        path.write_text(json.dumps({"datasets": {"skin": {part: str(folder / name) for part, name in entry.items()}}}))
    (federation.kits / HOSPITALS[2] / "local" / "grandrounds.json").write_text('{"datasets": {}}')
    try:
        job = small("problem.dataset=skin", "controller.run_name=named", "controller.min_sites=2")
        outcome = submit_and_watch(researcher, job, tmp_path / "results", print)
    finally:
        for site in HOSPITALS:
            (federation.kits / site / "local" / "grandrounds.json").unlink(missing_ok=True)
    assert outcome.finished
    assert outcome.summary["contributions"] == dict.fromkeys(HOSPITALS[:2], 2)
    assert list(outcome.summary["rounds"][0]["dropped"]) == [HOSPITALS[2]]


def test_a_kit_of_another_project_is_detected(federation, tmp_path, free_port):
    """Its certificate is in order, but neither the server's nor this one's authority knows the other."""
    other = prepare(tmp_path / "other", ["hospital-a"], free_port())
    kit = shutil.copytree(other.kits / "hospital-a", tmp_path / "kit")
    config = json.loads((kit / "startup" / "fed_client.json").read_text())
    port = federation.kit("hospital-a").port
    config["servers"][0]["service"]["target"] = f"localhost:{port}"
    (kit / "startup" / "fed_client.json").write_text(json.dumps(config))
    findings = {finding.check: finding for finding in examine_kit(read_kit(kit))}
    assert findings["certificate"].level == "ok"
    assert findings["server"].level == "failure"
