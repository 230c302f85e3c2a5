"""Numbers for Prometheus without a word of a message, rules that ask for them, and a monitor with a fixed address."""

import asyncio
import json
import re
from datetime import UTC, datetime

import pytest
import yaml
from aiohttp.test_utils import TestClient, TestServer
from typer.testing import CliRunner

from grandrounds.cli import build_app
from grandrounds.data.fitness import Finding
from grandrounds.deployment.kit.certificates import WARNING_DAYS
from grandrounds.deployment.kit.machine import GOOD_DISK
from grandrounds.deployment.kit.shipped import PROVISIONING
from grandrounds.deployment.operation.metrics import METRIC_HELP, exposition, reason_code
from grandrounds.deployment.operation.monitor import Monitor, read_token
from grandrounds.deployment.operation.status import Status
from grandrounds.errors import ConfigurationError, Fault
from grandrounds.privacy.gate.audit import Reason

NOW = datetime(2026, 5, 3, 12, tzinfo=UTC)
SCORE = {"metric": "accuracy", "by": "accuracy", "basis": "pooled", "score": 0.75}
RUN = {
    "name": 'a "new" \\ run',
    "status": "running",
    "round": 3,
    "rounds": 9,
    "scores": {"1": {**SCORE, "score": 0.5}, "3": SCORE},
    "contributions": {"hospital-a": 3, "hospital-b": 1},
    "lost": {"hospital-b": 1},
    "dropped": [
        ("hospital-b", "no answer within 25 s"),
        ("hospital-b", "no sign of life for 30 s, and 2 sites had answered"),
        ("hospital-b", "/data/7.png"),
    ],
    "moved": {"down": 100, "up": 50},
}
FAILED = Finding("failure", "data sets", "'skin': /data/skin/patient-7.png is not there")


@pytest.fixture
def status():
    return Status(
        "hospital-a",
        "site",
        [FAILED, Finding("ok", "disk", "much"), Finding("warning", "runs", "x"), Finding("warning", "runs", "y")],
        sites={"hospital-b": {"last_seen": 4.0}, "hospital-c": {"last_seen": None}},
        runs=[RUN],
        free=2048,
        certificate_days=20.5,
        epsilon={"skin": 1.25},
        released={"time": "2026-05-03T11:59:00+00:00"},
    )


def samples(text):
    """The samples of a text in Prometheus' format, each line of which has the form that it must have."""
    found = {}
    for line in text.splitlines():
        if line.startswith("# "):
            assert re.fullmatch(r"# (HELP|TYPE) grandrounds_[a-z_]+ .+", line), line
            continue
        label = r'[a-z_]+="(?:[^"\\]|\\.)*"'
        name, labels, value = re.fullmatch(rf"(grandrounds_[a-z_]+)\{{({label}(?:,{label})*)\}} (\S+)", line).groups()
        assert (name, labels) not in found, "a sample is there twice"
        found[name.removeprefix("grandrounds_"), labels.split(",", 2)[-1] if labels.count(",") > 1 else ""] = float(
            value
        )
    return found


def test_all_that_an_operator_watches_is_a_number(status):
    found = samples(exposition(status, NOW))
    run = r'run="a \"new\" \\ run"'
    assert found["level", ""] == 2
    assert found["findings", 'check="runs",level="warning"'] == 2
    assert (found["disk_free_bytes", ""], found["certificate_days", ""]) == (2048, 20.5)
    assert found["epsilon", 'of="skin"'] == 1.25
    assert found["last_seen_seconds", 'site="hospital-b"'] == 4
    assert found["answer_age_seconds", 'outcome="released"'] == 60
    assert (found["run_running", run], found["run_round", run], found["run_rounds", run]) == (1, 3, 9)
    assert (found["run_score", f'{run},metric="accuracy",basis="pooled"'], found["run_scored_rounds", run]) == (0.75, 2)
    assert found["run_dropped", f'{run},site="hospital-b",reason="silent"'] == 2
    assert found["run_bytes", f'{run},direction="up"'] == 50
    assert {name for name, _ in found} == set(METRIC_HELP)


def test_the_dashboard_shows_numbers_that_there_are():
    dashboard = json.loads((PROVISIONING / "monitoring" / "grafana.json").read_text())
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    named = {name for expression in asked for name in re.findall(r"grandrounds_([a-z_]+)", expression)}
    assert set(METRIC_HELP) - named == {"run_rounds", "run_scored_rounds", "run_answers", "run_lost"}
    assert named <= set(METRIC_HELP)
    places = [tuple(panel["gridPos"][side] for side in "xy") for panel in dashboard["panels"]]
    assert len(set(places)) == len(places)
    (scraped,) = yaml.safe_load((PROVISIONING / "monitoring" / "prometheus.yml").read_text())["scrape_configs"]
    assert scraped["metrics_path"] == "/TOKEN/metrics"


def test_the_rules_ask_for_numbers_and_labels_that_there_are(status):
    content = yaml.safe_load((PROVISIONING / "monitoring" / "alerts.yml").read_text())
    rules = [rule for group in content["groups"] for rule in group["rules"]]
    assert len({rule["alert"] for rule in rules}) == len(rules) == 5
    given = {}
    for line in exposition(status, NOW).splitlines():
        if not line.startswith("#"):
            given.setdefault(re.match(r"grandrounds_(\w+)", line)[1], set()).update(re.findall(r'[{,](\w+)="', line))
    for rule in rules:
        named = set(re.findall(r"grandrounds_(\w+)", rule["expr"]))
        assert named
        assert named <= set(METRIC_HELP)
        labels = set(re.findall(r"\$labels\.(\w+)", str(rule["annotations"]))) | set(
            re.findall(r"[{,](\w+)=", rule["expr"])
        )
        assert labels <= set.union(*(given[name] for name in named))
    assert yaml.safe_load((PROVISIONING / "monitoring" / "prometheus.yml").read_text())["rule_files"] == ["alerts.yml"]


def test_the_rules_warn_when_the_checks_do():
    (group,) = yaml.safe_load((PROVISIONING / "monitoring" / "alerts.yml").read_text())["groups"]
    asked = {rule["alert"]: rule["expr"] for rule in group["rules"]}
    assert asked["GrandRoundsCertificateExpires"].endswith(f"< {WARNING_DAYS}")
    assert GOOD_DISK == 10 * 1024**3
    assert asked["GrandRoundsDiskLow"].endswith("< 10 * 1024 * 1024 * 1024")


def test_no_file_and_no_patient_is_in_it(status):
    text = exposition(status, NOW)
    assert "png" not in text
    assert "patient" not in text
    assert 'reason="other"' in text


def test_every_reason_that_a_server_writes_has_a_code():
    assert {reason_code(one.value) for one in (*Reason, *Fault)}.isdisjoint({"other"})
    assert all(re.fullmatch("[a-z_]+", reason_code(one.value)) for one in (*Reason, *Fault))


def test_the_command_writes_the_file_also_where_the_state_cannot_be_read(make_kit, tmp_path):
    path = tmp_path / "grandrounds.prom"
    kit = make_kit("person")
    arguments = ["status", "--no-network", "--prometheus", str(path), "--kit"]
    assert CliRunner().invoke(build_app(), [*arguments, str(kit.folder)]).exit_code == 0
    assert samples(path.read_text())["up", ""] == 1
    assert CliRunner().invoke(build_app(), [*arguments, str(tmp_path)]).exit_code == 3
    assert path.read_text().endswith("grandrounds_up 0\n")


@pytest.mark.parametrize(("path", "code"), [("/secret/metrics", 200), ("/metrics", 404), ("/wrong/metrics", 404)])
def test_the_monitor_gives_the_numbers_under_its_token_only(status, path, code):
    async def ask():
        async with TestClient(TestServer(Monitor(lambda: status, 5, "secret").application())) as client:
            answer = await client.get(path, headers={"Host": "127.0.0.1"})
            return answer.status, await answer.text()

    found, text = asyncio.run(ask())
    assert found == code
    assert ("grandrounds_level" in text) == (code == 200)


def test_the_token_stays_and_is_for_its_owner_alone(tmp_path):
    path = tmp_path / "token"
    token = read_token(path)
    assert (read_token(path), path.stat().st_mode & 0o777) == (token, 0o600)
    assert read_token(None) != read_token(None)
    path.chmod(0o644)
    with pytest.raises(ConfigurationError, match="chmod 600"):
        read_token(path)
    path.chmod(0o600)
    path.write_text("../x")
    with pytest.raises(ConfigurationError, match="16 or more letters"):
        read_token(path)
