"""The state of kits and runs, its exit status for monitoring, and the page that shows it."""

import asyncio
import json
import re
import shutil
import subprocess
from collections import namedtuple
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from aiohttp.test_utils import TestClient, TestServer
from typer.testing import CliRunner

from grandrounds.cli import build_app
from grandrounds.deployment.kit.overlay import apply_overlay
from grandrounds.deployment.operation import status as module
from grandrounds.deployment.operation.monitor import Monitor, score_curve
from grandrounds.deployment.operation.status import Status, describe_score, kit_status, run_status
from grandrounds.errors import GrandRoundsError
from grandrounds.federation.server.record import RunRecord
from grandrounds.privacy.gate.audit import write_audit

Usage = namedtuple("Usage", "total used free")
GIB = 1024**3


@pytest.fixture
def roomy(monkeypatch):
    """Enough room, and a running FLARE that listens."""
    state = SimpleNamespace(free=50 * GIB, running=[7], listens=True, supervisor=[6])
    monkeypatch.setattr(module.shutil, "disk_usage", lambda folder: Usage(1, 1, state.free))
    monkeypatch.setattr(module, "running_processes", lambda kit: state.running)
    monkeypatch.setattr(module, "listens", lambda running, port: state.listens)
    monkeypatch.setattr(module, "supervisor", lambda kit: state.supervisor)
    monkeypatch.setattr(module, "_remote_ports", lambda processes: {8002})
    return state


@pytest.fixture
def record(tmp_path):
    """The record of a run of four rounds, two of which are complete; hospital-b is lost."""
    record = RunRecord(tmp_path / "server", {"rounds": 4, "run_name": "skin"})
    record.event("start", rounds=4, sites=["hospital-a", "hospital-b"])
    entry = {"asked": ["hospital-a", "hospital-b"], "answered": ["hospital-a", "hospital-b"], "dropped": {}}
    record.close_round({"round": 1, **entry, "round_seconds": 2.0})
    record.note_score(
        1,
        "balanced_accuracy",
        {"metric": "balanced_accuracy", "score": 0.6, "low": 0.55, "high": 0.7, "basis": "pooled", "mean": 0.5},
    )
    lost = {
        "asked": ["hospital-a", "hospital-b"],
        "answered": ["hospital-a"],
        "dropped": {"hospital-b": "<late> & gone"},
    }
    record.event("dropped", round=2, site="hospital-b", reason="<late> & gone")
    record.close_round({"round": 2, **lost, "round_seconds": 4.0})
    record.connected = ["hospital-a"]
    record.privacy = {"hospital-a": {"treated": {}, "epsilon": 1.25}}
    record.write("running")
    return record


def test_a_run_has_rounds_scores_time_left_lost_sites_and_budget(record):
    found = run_status(record.folder)
    (run,) = found.runs
    assert (run["name"], run["round"], run["rounds"], run["seconds_left"]) == ("skin", 2, 4, 6.0)
    described = "pooled balanced accuracy 0.600 [0.550, 0.700], mean over sites 0.500"
    assert describe_score(run["scores"]["1"]) == described
    assert run["lost"] == {"hospital-b": 1}
    assert found.epsilon == {"hospital-a": 1.25}
    assert found.warnings == ["run skin: hospital-b is lost: not connected, last update in round 1"]
    assert found.level == "warning"


def test_scores_by_another_metric_are_not_drawn_with_the_last(record):
    likelihood = {"metric": "log_likelihood", "score": -1.5, "basis": "pooled", "mean": 0.4}
    record.note_score(2, "balanced_accuracy", likelihood)
    (run,) = run_status(record.folder).runs
    curve = score_curve(run["scores"])
    assert (curve["ends"], curve["band"], curve["mean"]) == ((2, 2), "", "")
    assert curve["best"] == (2, "pooled log likelihood -1.500, mean over sites of balanced accuracy 0.400")
    assert curve["axis"][0] == (-1.5, pytest.approx(186.0))


def test_a_score_without_a_mean_over_sites_is_drawn_and_described_without_it(record):
    hidden = {"metric": "balanced_accuracy", "score": 0.7, "basis": "pooled"}
    record.note_score(2, "balanced_accuracy", hidden)
    (run,) = run_status(record.folder).runs
    curve = score_curve(run["scores"])
    assert curve["last"] == (2, "pooled balanced accuracy 0.700")
    assert len(curve["line"].split()) == 2
    assert len(curve["mean"].split()) == 1


def test_the_command_prints_the_pooled_score_with_its_interval(make_kit, roomy, record):
    kit = make_kit("server")
    shutil.copytree(record.folder, kit.folder / "grandrounds" / "skin" / "server")
    result = CliRunner().invoke(build_app(), ["status", "--kit", str(kit.folder), "--no-network"])
    cells = " ".join(result.output.replace("│", " ").split())
    assert "pooled balanced accuracy 0.600 [0.550, 0.700]" in cells


def test_a_healthy_site_is_ok_and_tells_what_its_data_have_spent(make_kit, roomy):
    kit = make_kit("site")
    apply_overlay(kit)
    found = kit_status(kit, network=False)
    assert (found.level, found.epsilon, found.free) == ("ok", {}, 50 * GIB)
    assert found.certificate_days == pytest.approx(300, abs=0.1)


def test_a_site_shows_why_the_last_task_of_each_run_failed(make_kit, roomy):
    kit = make_kit("site")
    apply_overlay(kit)
    asked = {"job": "j", "run": "skin", "task": "train", "round": 3}
    for outcome, details in (
        ("failed", {**asked, "round": 2, "detail": "an older one"}),
        ("failed", {**asked, "detail": "site-1: [red]lesion 7.png[/red] is damaged"}),
        ("released", {**asked, "in_place_of": "an error of the training"}),
        ("released", {**asked, "run": "blood", "task": "test", "in_place_of": "curves are not finite"}),
        ("released", {**asked, "run": "fine"}),
        ("refused", {"job": "k", "task": "join", "detail": "no data set 'ct'"}),
    ):
        write_audit(kit.local / "privacy", outcome, details)
    result = CliRunner().invoke(build_app(), ["status", "--kit", str(kit.folder), "--no-network"])
    shown = [re.sub(r"failed at \S+:", "failed:", line) for line in result.output.splitlines() if "failed at" in line]
    assert shown == [
        "WARN: answers: run skin: train of round 3 failed: site-1: [red]lesion 7.png[/red] is damaged",
        "WARN: answers: run blood: test of round 3 failed: curves are not finite",
        "WARN: answers: run of job k: join failed: no data set 'ct'",
    ]
    assert kit_status(kit, network=False).level == "warning"


def test_a_site_sees_its_own_scores_and_a_damaged_file_hides_no_other(make_kit, roomy):
    kit = make_kit("site")
    for run, content in (("skin", {"common": {"n": 37, "accuracy": 0.5}}), ("bad", None)):
        folder = kit.folder / "grandrounds" / run / kit.name
        folder.mkdir(parents=True)
        (folder / "scores.json").write_text("{" if content is None else json.dumps(content))
    found = kit_status(kit, network=False)
    assert found.own_scores == {"skin": {"common": {"n": 37, "accuracy": 0.5}}}
    assert any("scores.json" in warning for warning in found.warnings)
    shown = CliRunner().invoke(build_app(), ["status", "--kit", str(kit.folder), "--no-network"]).output
    assert "37 test images" in shown
    assert "0.500" in shown


def test_a_damaged_audit_trail_is_a_failure(make_kit, roomy):
    kit = make_kit("site")
    write_audit(kit.local / "privacy", "failed", {"run": "skin", "detail": "x"})
    with (kit.local / "privacy" / "audit.jsonl").open("a") as trail:
        trail.write("{\n")
    assert "line 2 is damaged" in " ".join(kit_status(kit, network=False).failures)


@pytest.mark.parametrize(
    ("kind", "change", "level", "message"),
    [
        ("site", {"free": 5 * GIB}, "warning", "5.0 GiB free .* grandrounds kit clean"),
        ("site", {"free": GIB // 2}, "critical", "0.5 GiB free"),
        ("site", {"running": []}, "critical", "FLARE does not run"),
        (
            "site",
            {"supervisor": []},
            "warning",
            "what starts it again after a crash has ended; run grandrounds kit stop",
        ),
        ("server", {"listens": False}, "critical", "does not listen on port 8002"),
        ("site", {"days": 20}, "warning", "a certificate expires in 20 days; grandrounds kit renew"),
        ("site", {"days": -2}, "critical", "a certificate expired 2 days ago"),
    ],
)
def test_what_is_wrong_is_named_with_its_level(make_kit, roomy, kind, change, level, message):
    kit = make_kit(kind, days=change.pop("days", 300))
    apply_overlay(kit)
    vars(roomy).update(change)
    found = kit_status(kit, network=False)
    assert found.level == level
    assert re.search(message, " ".join(found.warnings + found.failures))


class Session:
    """A server with two sites and a running job."""

    def get_system_info(self):
        clients = [SimpleNamespace(name=n, last_connect_time=module.time.time() - s) for n, s in (("a", 3), ("b", 300))]
        return SimpleNamespace(client_info=clients, job_info=[SimpleNamespace(job_id="j")])

    def report_version(self, target):
        return {"a": {"version": "2.9.0"}, "b": {"error": "not authorized"}, "c": {"version": "[/]\x1b[2J"}}

    def get_job_meta(self, job):
        return {"name": "fedperl", "status": "RUNNING"}

    def show_stats(self, job, target):
        told = {
            "round": 3,
            "rounds": 10,
            "seconds_per_round": 2.0,
            "scores": {"2": {"mean": 0.5}},
            "epsilon": {"a": 2.0},
            "remarks": ["the checkpoint after round 2 is missing; the run goes on after round 1"],
        }
        return {"server": {"controller": told}}


@pytest.fixture
def session(monkeypatch):
    @contextmanager
    def session(kit):
        yield Session()

    monkeypatch.setattr(module, "admin_session", session)


def test_a_person_sees_sites_with_versions_and_the_running_job(make_kit, session):
    found = kit_status(make_kit("person"))
    assert found.sites["a"]["flare"] == "2.9.0"
    assert found.sites["b"]["flare"] is None
    assert module._versions(Session()) == {"a": "2.9.0"}, "the third site's is none"
    (run,) = found.runs
    assert (run["round"], run["rounds"], run["seconds_left"], run["scores"]) == (3, 10, 16.0, {"2": {"mean": 0.5}})
    assert found.epsilon == {"a": 2.0}
    told = "run fedperl: the checkpoint after round 2 is missing; the run goes on after round 1"
    assert re.fullmatch(r"b was last seen 3\d\d s ago", found.warnings[0])
    assert found.warnings[1:] == [told]


def test_a_server_that_does_not_answer_is_a_failure(make_kit, monkeypatch):
    @contextmanager
    def session(kit):
        raise GrandRoundsError("no connection to the server")
        yield

    monkeypatch.setattr(module, "admin_session", session)
    found = kit_status(make_kit("person"))
    assert (found.level, found.failures) == ("critical", ["no connection to the server"])


@pytest.mark.parametrize(("running", "status"), [([7], 0), ([], 2)])
def test_the_exit_status_is_for_monitoring(make_kit, roomy, running, status):
    roomy.running = running
    kit = make_kit("server")
    result = CliRunner().invoke(build_app(), ["status", "--kit", str(kit.folder), "--no-network", "--json"])
    assert result.exit_code == status
    assert json.loads(result.stdout)["level"] == {0: "ok", 2: "critical"}[status]


def asked(monitor, path, host="127.0.0.1"):
    """The answer to a request: status, text and headers."""

    async def ask():
        async with TestClient(TestServer(monitor.application())) as client:
            answer = await client.get(path, headers={"Host": host})
            return answer.status, await answer.text(), answer.headers

    return asyncio.run(ask())


@pytest.fixture
def monitor(record):
    return Monitor(lambda: run_status(record.folder), 5, "secret")


def test_the_state_of_a_run_is_shown_once_too(record):
    result = CliRunner().invoke(build_app(), ["status", "--run", str(record.folder), "--json"])
    assert json.loads(result.stdout)["level"] == "warning"  # a site was dropped
    assert result.exit_code == 1
    assert CliRunner().invoke(build_app(), ["status"]).exit_code == 2


def test_the_page_needs_no_script_and_no_other_file_and_escapes_text(monitor):
    status, text, headers = asked(monitor, "/secret/")
    assert status == 200
    assert "round 2 of 4" in text
    assert "hospital-b is lost: not connected, last update in round 1" in text
    assert "Best model, after round 1: pooled balanced accuracy 0.600 [0.550, 0.700]" in text
    assert "&lt;late&gt; &amp; gone" in text
    assert '<meta http-equiv="refresh" content="5">' in text
    assert not re.search(r"<script|<link|<img|src=|https?://", text)
    assert headers["Content-Security-Policy"].startswith("default-src 'none'")


@pytest.mark.parametrize(
    ("path", "host"),
    [("/", "127.0.0.1"), ("/wrong/", "127.0.0.1"), ("/wrong/status.json", "127.0.0.1"), ("/secret/", "evil.example")],
)
def test_nothing_is_shown_without_the_token_or_under_another_name(monitor, path, host):
    status, text, _ = asked(monitor, path, host)
    assert status == 404
    assert "skin" not in text


def test_the_same_state_is_there_as_json(monitor):
    status, text, _ = asked(monitor, "/secret/status.json")
    assert status == 200
    assert json.loads(text)["runs"][0]["round"] == 2


def test_a_source_that_fails_is_shown_and_the_page_goes_on():
    def fail():
        raise GrandRoundsError("the folder is gone")

    status, text, _ = asked(Monitor(fail, 5, "secret"), "/secret/")
    assert status == 200
    assert "the folder is gone" in text


def test_the_source_is_asked_no_more_often_than_the_page_refreshes():
    looks = []
    monitor = Monitor(lambda: looks.append(1) or Status("a", "run"), 60, "secret")

    async def ask_twice():
        async with TestClient(TestServer(monitor.application())) as client:
            for _ in range(2):
                await client.get("/secret/", headers={"Host": "localhost"})

    asyncio.run(ask_twice())
    assert looks == [1]


@pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium is not installed")
def test_a_browser_without_scripts_shows_it_on_a_phone_without_scrolling_sideways(monitor, tmp_path):
    """The page has no script, so its width is read from the layout that a measuring frame sees."""
    _, text, _ = asked(monitor, "/secret/")
    page, outer = tmp_path / "page.html", tmp_path / "outer.html"
    page.write_text(text.replace('<meta http-equiv="refresh" content="5">', ""))
    outer.write_text(
        f'<iframe src="{page.name}" width="360" height="800"></iframe><script>onload = () => document.title = '
        "document.querySelector('iframe').contentDocument.documentElement.scrollWidth</script>"
    )
    flags = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking"
    more = f"--disable-component-update --disable-sync --user-data-dir={tmp_path / 'profile'} --allow-file-access-from-files"
    ended = subprocess.run(
        ["chromium", *flags.split(), *more.split(), "--dump-dom", outer.as_uri()],
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )
    width = int(re.search(r"<title>(\d+)</title>", ended.stdout).group(1))
    assert 0 < width <= 360
