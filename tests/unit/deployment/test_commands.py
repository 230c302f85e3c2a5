"""The commands of operators, administrators and researchers: what they show, and what they end with."""

import hashlib
import json
import re
import shlex
import socket
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from grandrounds.cli import build_app
from grandrounds.data.manifest import manifest_digest
from grandrounds.data.site import LABELLED_NAME
from grandrounds.deployment import local_federation
from grandrounds.deployment.kit.provision import PROJECT
from grandrounds.deployment.submission import Outcome
from grandrounds.errors import ConfigurationError, GrandRoundsError
from grandrounds.files import write_json
from grandrounds.protocol.refusal import Reason, Refusal

SUMMARY = {"status": "finished", "rounds_done": 2, "selected": {"round": 2}, "records": {}, "bytes": {}, "rounds": []}


@pytest.fixture
def run():
    return lambda *arguments: CliRunner().invoke(build_app(), [str(argument) for argument in arguments])


@pytest.fixture
def server(monkeypatch):
    """A server with two connected hospitals; a submitted job ends with ``server.outcome``."""
    state = SimpleNamespace(outcome=Outcome(("j",), "FINISHED:COMPLETED", SUMMARY), submitted=[], up=True)

    @contextmanager
    def session(kit, *arguments):
        if not state.up:
            raise GrandRoundsError("no connection to the server at localhost:8002")
        yield None

    def submit(kit, job, out, tell, attempts=1):
        state.submitted.append((job, out, attempts))
        tell("submitted as j")
        return state.outcome

    monkeypatch.setattr("grandrounds.deployment.job_watch.admin_session", session)
    monkeypatch.setattr("grandrounds.deployment.job_watch.connected_sites", lambda _: ["hospital-a", "hospital-b"])
    monkeypatch.setattr("grandrounds.deployment.submission.submit_and_watch", submit)
    return state


@pytest.fixture
def person(make_kit):
    return make_kit("person").folder


class TestSubmit:
    def test_it_shows_first_what_runs_and_what_leaves(self, run, server, person):
        result = run("submit", "fedperl", "--kit", person, "--dry-run", "--dataset", "skin")
        assert result.exit_code == 0, result.output
        assert "runs at: hospital-a, hospital-b (minimum 2)" in result.stderr
        assert "leaves each site, in every round: update (model_update)" in result.stderr
        assert "data set 'skin'" in result.stderr
        assert server.submitted == []

    def test_it_says_which_preset_network_and_minimum_counts_there_are(self, run, server, person):
        shown = run("submit", "fedavg", "--kit", person, "--dry-run").stderr
        assert "preset: none (the options of the job)" in shown
        assert "no preset is used; what is advised for images of hospitals is --preset recommended" in shown
        assert "network: 32 x 32 pixels; compact from random weights" in shown
        for name, line in {"sums": "in sums of at least 3 hospitals", "open": "as it is", "strict": "clipped"}.items():
            assert f"under policy {name}: update: {line}" in shown
        shown = run(
            "submit", "fedavg", "--kit", person, "--dry-run", "--preset", "recommended", "--scope", "own"
        ).stderr
        assert "preset: recommended\n" in shown
        assert "no preset is used" not in shown
        assert "network: 112 x 112 pixels; efficientnet_lite0 from imagenet weights" in shown

    def test_a_start_is_named_with_the_digest_of_its_model(self, run, server, person, tmp_path):
        results = tmp_path / "results"
        results.mkdir()
        write_json(results / "summary.json", {**SUMMARY, "configuration": {"run_name": "skin-1"}})
        words = ("submit", "fedavg", "--kit", person, "--dry-run", "--start", tmp_path)
        refused = run(*words)
        assert refused.exit_code == 1
        assert f"--start: {results} has no finished run with selected.pt: finish it" in refused.stderr
        (results / "selected.pt").write_bytes(b"a model")
        digest = hashlib.sha256(b"a model").hexdigest()
        line = next(line for line in run(*words).stderr.splitlines() if "starts from: run 'skin-1' of yours" in line)
        assert f"SHA-256 {digest}" in line

    def test_a_kit_that_submits_nothing_is_named_with_the_right_one(self, run, server, make_kit):
        site, it = make_kit("site").folder, make_kit("person", "it@study.example", role="org_admin").folder
        lead = make_kit("person", "lead@study.example", role="lead").folder
        refused = run("submit", "fedavg", "--kit", site, "--dry-run")
        assert refused.exit_code == 1
        right = f"with that of a person with the role project_admin or lead, such as {lead}"
        assert f"{site} is the kit of a site; jobs are submitted {right}" in refused.stderr
        warned = run("submit", "fedavg", "--kit", it, "--dry-run")
        assert warned.exit_code == 0, warned.output
        assert (
            f"warning: {it} is the kit of a person with the role org_admin; jobs are submitted {right}" in warned.stderr
        )
        assert "warning" not in run("submit", "fedavg", "--kit", lead, "--dry-run").stderr

    def test_a_dry_run_needs_no_server(self, run, server, person):
        server.up = False
        result = run("submit", "fedperl", "--kit", person, "--dry-run")
        assert result.exit_code == 0, result.output
        assert "all connected sites" in result.stderr

    def test_without_a_server_nothing_is_submitted(self, run, server, person):
        server.up = False
        result = run("submit", "fedperl", "--kit", person)
        assert result.exit_code == 1
        assert result.stderr.splitlines()[-1] == "error: no connection to the server at localhost:8002"

    def test_options_reach_the_job(self, run, server, person, tmp_path):
        options = ["--mandatory-sites", "hospital-a", "--min-sites", 1, "--run-name", "skin-1", "--scope", "strict"]
        more = ["--resume", "auto", "--attempts", 4, "--out", tmp_path, "--rounds", 7, "--gpu-memory", "hospital-a=12"]
        result = run("submit", "fedperl", "--kit", person, *options, *more)
        assert result.exit_code == 0, result.output
        ((job, out, attempts),) = server.submitted
        controller = job.options("controller")
        assert (controller["mandatory_sites"], controller["min_sites"]) == (["hospital-a"], 1)
        assert (controller["run_name"], controller["rounds"], job.meta["scope"]) == ("skin-1", 7, "strict")
        assert (out, attempts) == (tmp_path, 4)
        assert job.meta["resource_spec"] == {"hospital-a": {"num_of_gpus": 1, "mem_per_gpu_in_GiB": 12.0}}

    def test_without_resume_it_is_tried_once(self, run, server, person):
        run("submit", "fedperl", "--kit", person, "--attempts", 4)
        assert server.submitted[0][2] == 1

    def test_a_run_that_has_not_finished_ends_with_one_and_its_reason(self, run, server, person):
        server.outcome = Outcome(("j",), "FINISHED:ABNORMAL", {"status": "failed", "reason": "round 3: 1 of 2 sites"})
        result = run("submit", "fedperl", "--kit", person)
        assert result.exit_code == 1
        assert "the run has not finished (FLARE's status: FINISHED:ABNORMAL): round 3: 1 of 2 sites" in result.stdout

    def test_a_data_set_that_no_site_has_under_this_name_is_named(self, run, server, person):
        for reason in ("round 1: 0 of 2 sites", f"round 1: 0 of 2 sites (hospital-a: {Reason.DATASET})"):
            server.outcome = Outcome(("j",), "FINISHED:ABNORMAL", {"status": "failed", "reason": reason})
            shown = run("submit", "fedperl", "--kit", person, "--dataset", "pbc").stdout
            assert ("the job asks for data set 'pbc'" in shown) == (Reason.DATASET in reason)

    def test_the_last_line_is_about_the_cause(self, run, server, person):
        refused = {"status": "refused", "reason": "another job is using this run; choose another run_name"}
        server.outcome = Outcome(("j",), "FINISHED:EXECUTION_EXCEPTION", refused)
        shown = run("submit", "fedperl", "--kit", person).stdout
        assert "the job was refused, and the run of this name is as it was: another job is using this run" in shown
        assert "run the same command" not in shown
        server.outcome = Outcome(("j",), "FINISHED:COMPLETED", {}, None, {"hospital-a": "privacy scope 'x'"})
        shown = run("submit", "fedperl", "--kit", person).stdout
        assert "the run has not begun (FLARE's status: FINISHED:COMPLETED): these sites refuse the job" in shown
        assert "run the same command" not in shown

    def test_what_sites_refuse_is_told_with_the_line_that_would_allow_it(self, run, server, person):
        refusal = Refusal("no rule lets sums out", "releases", '{"kind": "x"}')
        for summary, refused in (
            ({"status": "failed", "reason": "r", "final": True, "refusals": {"hospital-a": asdict(refusal)}}, {}),
            ({}, {"hospital-a": str(refusal)}),
        ):
            server.outcome = Outcome(("j",), "FINISHED:ABNORMAL", summary, None, refused)
            result = run("submit", "ridge", "--kit", person, "--resume", "auto")
            assert result.exit_code == 1
            assert f"hospital-a: {refusal.cause}; {refusal.advice}" in result.stdout
            assert "run the same command" not in result.stdout

    def test_figures_before_a_study_are_shown_and_no_model_is_spoken_of(self, run, server, person):
        reported = {
            "a": {"images.train.nevus": 120.0, "size.256": 150.0, "intensity.0.3": 0.5},
            "b": {"size.256": 30.0},
        }
        rounds = [{"round": 1, "statistics": {"sites": reported}}]
        server.outcome = Outcome(
            ("j",),
            "FINISHED:COMPLETED",
            {**SUMMARY, "configuration": {"problem": {"classes": ["a", "b"]}}, "records": {}, "rounds": rounds},
        )
        shown = run("submit", "statistics", "--kit", person).stdout
        assert re.search("images.train.nevus *│ *120 *│ *- ", shown)
        assert re.search("size.256 *│ *150 *│ *30 ", shown)
        assert "intensity" not in shown
        assert "selected" not in shown

    def test_json_is_the_outcome(self, run, server, person):
        result = run("submit", "fedperl", "--kit", person, "--json")
        assert json.loads(result.stdout)["summary"]["rounds_done"] == 2

    @pytest.mark.parametrize(
        ("options", "reason"),
        [
            (["--resume", "often"], "is not one of 'auto', 'never'"),
            (
                ["--gpu-memory", "hospital-a"],
                "--gpu-memory must be SITE=GIB,... with numbers above 0, got 'hospital-a'",
            ),
            (["--gpu-memory", "hospital-a=-1"], "with numbers above 0, got 'hospital-a=-1'"),
            (["--gpu-memory", "hospital-q=8"], "hospital-q, which is not connected (hospital-a, hospital-b)"),
            (["--set", "controller.peeers=1"], "did you mean controller.peers"),
            (
                ["--sites", "hospital-a", "--min-sites", 1, "--mandatory-sites", "z"],
                "z is mandatory, but does not take",
            ),
            (["--set", "controller.mandatory_sites=a"], "controller.mandatory_sites must be"),
        ],
    )
    def test_a_job_that_is_wrong_is_not_submitted(self, run, server, person, options, reason):
        result = run("submit", "fedperl", "--kit", person, *options)
        assert result.exit_code != 0
        assert reason in " ".join(result.stderr.replace("│", " ").split())
        assert server.submitted == []

    def test_without_a_job_it_is_ridge_and_without_a_data_set_it_has_images_of_enough_patients(
        self, run, server, person
    ):
        for options in (["ridge"], []):
            assert run("submit", *options, "--kit", person).exit_code == 0
        assert run("submit", "--kit", person, "--dataset", "skin", "--classes", "a,b").exit_code == 0
        named, first, own = (job for job, _, _ in server.submitted)
        assert [job.value("problem", "dataset") for job in (named, first, own)] == [
            LABELLED_NAME,
            LABELLED_NAME,
            "skin",
        ]
        assert {job.component("controller").__name__ for job in (named, first, own)} == {"RidgeController"}
        assert [job.value("controller", "preset") for job in (first, own)] == ["", "recommended"]

    def test_a_folder_that_is_no_kit_is_reported(self, run, server, tmp_path):
        result = run("submit", "fedperl", "--kit", tmp_path)
        assert result.exit_code == 1
        assert "is no startup kit" in result.stderr


class TestOverlay:
    def test_each_file_is_named_and_the_second_time_changes_none(self, run, make_kit):
        kit = make_kit("site").folder
        first, second = run("overlay", kit), run("overlay", kit)
        assert f"written: {kit / 'local' / 'privacy.json'}" in first.stdout
        assert {line.partition(":")[0] for line in second.stdout.splitlines()} == {"unchanged"}

    def test_a_server_names_the_mandatory_sites(self, run, make_kit):
        kit = make_kit("server").folder
        assert run("overlay", kit, "--mandatory-sites", "hospital-a, hospital-b").exit_code == 0
        assert json.loads((kit / "local" / "roster.json").read_text()) == {
            "mandatory_sites": ["hospital-a", "hospital-b"]
        }
        run("overlay", kit)
        assert json.loads((kit / "local" / "roster.json").read_text())["mandatory_sites"], "it stays as it was"
        run("overlay", kit, "--mandatory-sites", "")
        assert json.loads((kit / "local" / "roster.json").read_text()) == {"mandatory_sites": []}

    def test_a_site_does_not(self, run, make_kit):
        result = run("overlay", make_kit("site").folder, "--mandatory-sites", "hospital-a")
        assert result.exit_code == 1
        assert "--mandatory-sites is for a server" in result.stderr

    def test_json_reports_whether_to_restart(self, run, make_kit):
        result = json.loads(run("overlay", make_kit("site").folder, "--json").stdout)
        assert (result["participant"], result["kind"], result["restart"]) == ("hospital-a", "site", False)
        assert {entry["state"] for entry in result["files"]} == {"written"}

    def test_running_participants_must_restart_if_something_has_changed(self, run, make_kit, monkeypatch):
        monkeypatch.setattr("grandrounds.deployment.kit.read.running_processes", lambda kit: [1])
        kit = make_kit("site").folder
        assert "hospital-a is running: restart it" in run("overlay", kit).stdout
        assert "restart" not in run("overlay", kit).stdout
        (kit / "local" / "grandrounds.json").write_text('{"datasets": {}}')  # jobs read it anew
        assert "restart" not in run("overlay", kit).stdout
        policy = kit / "local" / "privacy.json"
        policy.write_text(json.dumps(json.loads(policy.read_text()), indent=1))
        assert "hospital-a is running: restart it" in run("overlay", kit).stdout


class TestProvision:
    def test_kits_of_servers_and_sites_get_the_overlay(self, run, make_kit, monkeypatch, tmp_path):
        kits = make_kit("site").folder.parent
        make_kit("person")
        monkeypatch.setattr("grandrounds.deployment.kit.provision.provision", lambda project, out: kits)
        result = run("provision", PROJECT, "--out", tmp_path / "kits", "--policy", "strict")
        assert result.exit_code == 0, result.output
        shown = [line.partition(":")[0] for line in result.stdout.splitlines()]
        assert shown[:3] == ["person", "site", "policy strict"]
        assert len(shown) == 2 + 5
        assert (kits / "study-hospital-a" / "local" / "grandrounds.lock.json").is_file()
        assert not (kits / "study-ann@study.example" / "local" / "grandrounds.lock.json").exists()

    def test_a_missing_description_is_reported_in_one_line(self, run, tmp_path):
        result = run("provision", tmp_path / "project.yml", "--out", tmp_path / "kits")
        assert result.exit_code == 1
        assert result.stderr.startswith(f"error: {tmp_path / 'project.yml'} cannot be read")


class TestDoctor:
    def test_failures_end_with_one(self, run, make_kit):
        result = run("doctor", "--kit", make_kit("site").folder)
        assert result.exit_code == 1
        assert "fix the failures" in result.stdout

    def test_json_lists_the_findings_by_participant(self, run, make_kit):
        result = run("doctor", "--kit", make_kit("server").folder, "--json")
        checks = {finding["check"] for finding in json.loads(result.stdout)["server"]}
        assert {"certificate", "authorisation", "storage", "port"} <= checks


class TestPoc:
    @pytest.fixture
    def federation(self, tmp_path, monkeypatch):
        """A federation whose processes are pretended."""
        (tmp_path / "fed").mkdir()
        made = local_federation.Federation(tmp_path / "fed", tmp_path / "kits", "server", ("a",), "op", "re")
        started = []
        monkeypatch.setattr(local_federation, "prepare", lambda *arguments: started.append(arguments) or made)
        monkeypatch.setattr(local_federation, "start", lambda federation: started.append("start"))
        monkeypatch.setattr(local_federation, "load", lambda folder: made)
        monkeypatch.setattr(local_federation, "stop_federation", lambda federation: [7, 8])
        return SimpleNamespace(folder=made.folder, started=started)

    def test_up_prepares_once_and_starts(self, run, federation):
        assert run("poc", "up", federation.folder, "--sites", "a", "--port", 9000).exit_code == 0
        assert federation.started[0][:3] == (federation.folder, ["a"], 9000)
        (federation.folder / "federation.json").write_text("{}")
        assert run("poc", "up", federation.folder).exit_code == 0
        assert federation.started[1:] == ["start", "start"]

    @pytest.mark.parametrize("classes", [["basophil", "b c"], ["nevus, blue", "b c"]])
    def test_up_prints_the_question_that_the_sites_images_answer(self, run, federation, tmp_path, classes):
        manifest = tmp_path / "my sites" / "a" / "manifest.csv"
        manifest.parent.mkdir(parents=True)
        manifest.write_text("image,label\n1.png,b c\n")
        site = {"sha256": manifest_digest(manifest)}
        described = {"dataset_name": "cells", "classes": classes, "task": "multi", "sites": {"a": site}}
        (tmp_path / "my sites" / "partition.json").write_text(json.dumps(described))
        result = run("poc", "up", federation.folder, "--sites", "a", "--sites-dir", manifest.parents[1])
        (line,) = (line for line in result.stdout.splitlines() if " poc submit " in line)
        start, *asked = shlex.split(line)[3:]
        assert start == str(federation.folder)
        in_words = ["--classes", "basophil,b c", "--set", "problem.task=multi"]
        as_json = ["--set", f"problem.classes={json.dumps(classes)}", "--set", "problem.task=multi"]
        assert asked == ["--dataset", "cells", *(in_words if classes[0] == "basophil" else as_json)]

    def test_running_participants_are_not_started_again(self, run, federation, monkeypatch):
        (federation.folder / "federation.json").write_text("{}")
        monkeypatch.setattr("grandrounds.deployment.kit.read.processes_of", lambda folder: [1])
        result = run("poc", "up", federation.folder)
        assert result.exit_code == 1
        assert "is running; take it down first" in result.stderr

    def test_down_names_the_processes_that_were_killed(self, run, federation):
        assert "2 processes had to be killed" in run("poc", "down", federation.folder).stdout

    @pytest.mark.parametrize(
        ("given", "out"),
        [((), "fed/results"), (("--out", "elsewhere"), "elsewhere"), (("--out=elsewhere",), "elsewhere")],
    )
    def test_submit_takes_the_researchers_kit(self, run, federation, monkeypatch, given, out):
        seen = []
        monkeypatch.setattr("grandrounds.commands.submit._run", lambda job, kit, out, *rest: seen.append((kit, out)))
        result = run("poc", "submit", federation.folder, "fedperl", "--rounds", 2, *given)
        assert result.exit_code == 0, result.output
        place = federation.folder.parent
        assert seen == [(place / "kits" / "re", Path(out) if given else place / out)]

    def test_a_folder_without_a_federation_is_reported(self, run, tmp_path):
        result = run("poc", "down", tmp_path)
        assert result.exit_code == 1
        assert "has no federation" in result.stderr


def test_a_port_in_use_is_reported_before_anything_is_made(tmp_path):
    with socket.create_server(("", 0)) as other, pytest.raises(ConfigurationError, match="choose another by --port"):
        local_federation.prepare(tmp_path / "new", ["a"], other.getsockname()[1])
    assert not (tmp_path / "new").exists()


def test_a_port_taken_in_the_meantime_is_reported_before_anything_is_started(make_kit, tmp_path, monkeypatch):
    monkeypatch.setattr(local_federation, "start_participant", lambda *arguments: pytest.fail("nothing is started"))
    with socket.create_server(("", 0)) as other:
        kit = make_kit("server", port=other.getsockname()[1]).folder
        made = local_federation.Federation(tmp_path, kit.parent, kit.name, (), "op", "re")
        with pytest.raises(ConfigurationError, match="Address already in use"):
            local_federation.start(made)
