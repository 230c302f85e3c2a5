"""Every line of the structured log has the form of the schema, whoever writes it."""

import json
import logging
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from nvflare.fuel.utils.log_utils import apply_log_config, default_log_dict

from grandrounds.deployment.jobs import load_job
from grandrounds.deployment.kit.policy import line_log
from grandrounds.deployment.presets import with_options
from grandrounds.deployment.simulate import simulate
from grandrounds.federation.server.record import RunRecord
from grandrounds.logs.lines import LINE_SCHEMA, LineFormatter, enter_round, log_event
from grandrounds.privacy.gate.audit import Reason, write_audit

JOB, OTHER = "3f2b8a44-0f3e-4ad4-9d0e-0a7c1c5f9b12", "4f2b8a44-0f3e-4ad4-9d0e-0a7c1c5f9b12"
COMMAND = ["worker_process", "-t", OTHER, "-n", JOB, "-c", "hospital-a"]
VALIDATOR = Draft202012Validator(json.loads(LINE_SCHEMA.read_text()))


def checked(text):
    """The lines of a log, each of which has the form of the schema."""
    lines = [json.loads(line) for line in text.splitlines()]
    for line in lines:
        VALIDATOR.validate(line)
    return lines


@pytest.fixture
def handler(tmp_path):
    """Of a site's log, with a job's command line."""
    made = logging.FileHandler(tmp_path / "log.json", encoding="utf-8")
    made.setFormatter(LineFormatter("hospital-a", COMMAND))
    return made


@pytest.fixture
def written(handler, tmp_path):
    """Attaches the handler as FLARE does; returns the lines so far."""
    enter_round(None)  # a test of another file has been in a round
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    yield lambda: checked((tmp_path / "log.json").read_text())
    root.removeHandler(handler)
    root.setLevel(level)
    handler.close()
    enter_round(None)


def test_the_schema_is_one():
    Draft202012Validator.check_schema(json.loads(LINE_SCHEMA.read_text()))


def test_the_operators_page_has_every_key():
    page = (Path(__file__).parents[3] / "docs" / "reference" / "files.md").read_text()
    section = page.partition("## Structured logs")[2].partition("\n## ")[0]
    assert [name for name in json.loads(LINE_SCHEMA.read_text())["properties"] if f"`{name}`" not in section] == []


def test_a_message_has_party_job_and_round(written):
    logging.getLogger("nvflare.somewhere").info("started\nwith a second line")
    enter_round(3)
    logging.getLogger("nvflare.somewhere").warning("%s is late", "hospital-b")
    first, second = written()
    assert (first["party"], first["job"], first["round"], first["event"]) == ("hospital-a", JOB, None, "log")
    assert first["message"] == "started\nwith a second line"
    assert (second["level"], second["round"], second["message"]) == ("WARNING", 3, "hospital-b is late")


def test_what_flare_writes_before_a_message_is_taken_apart(written):
    prefix = f"[identity=hospital-a, run={OTHER}, peer=server, task_name=train]: "
    logging.getLogger("nvflare.private").info(prefix + "the task has [no]: images")
    logging.getLogger("nvflare.private").info("[identity=hospital-a, run=?]: idle")
    first, second = written()
    assert (first["job"], first["message"]) == (OTHER, "the task has [no]: images")
    assert (second["job"], second["message"]) == (JOB, "idle")


def test_an_error_has_its_traceback_and_a_name_of_any_bytes_is_written(handler, written, monkeypatch):
    logger = logging.getLogger("grandrounds.somewhere")
    monkeypatch.setattr(logger, "propagate", False)  # pytest cannot send such bytes from process to process
    logger.addHandler(handler)
    try:
        raise ValueError("bad \udcfc")
    except ValueError:
        logger.exception("M\udcfcller")
    logger.removeHandler(handler)
    (line,) = written()
    assert "ValueError" in line["traceback"]
    assert line["message"] == "M\udcfcller"


def test_unusual_levels_are_one_of_the_five(written):
    logging.getLogger("other").log(25, "between")
    assert written()[0]["level"] == "INFO"


def test_events_of_a_run_are_in_the_log(written, tmp_path):
    record = RunRecord(tmp_path / "run", {})
    record.event("dropped", round=2, site="hospital-b", reason="no answer within 25 s")
    record.event("round_end", round=2, seconds_of="x")
    record.remark("the checkpoint is missing")
    dropped, ended, remark = written()
    assert (dropped["event"], dropped["level"], dropped["round"], dropped["site"]) == (
        "dropped",
        "WARNING",
        2,
        "hospital-b",
    )
    assert dropped["message"] == "dropped: hospital-b: no answer within 25 s"
    assert (ended["event"], ended["level"], ended["round"]) == ("round_end", "INFO", 2)
    assert remark["message"] == "remark: the checkpoint is missing"


def test_outcomes_of_a_gate_are_in_the_log_without_their_details(written, tmp_path):
    about = {"job": OTHER, "run": "skin-1", "task": "train", "round": 4, "dataset": "skin"}
    write_audit(tmp_path, "released", about)
    write_audit(tmp_path, "refused", {**about, "reason": Reason.DATASET, "detail": "/data/Mueller.png"})
    released, refused = written()
    assert (released["event"], released["level"], released["job"], released["round"]) == ("released", "INFO", OTHER, 4)
    assert (refused["event"], refused["level"], refused["reason"]) == ("refused", "WARNING", str(Reason.DATASET))
    assert "Mueller" not in json.dumps(refused)


def test_every_line_of_a_simulated_run_has_the_form(written, tmp_path, shared_cache):
    job = with_options(load_job("fedavg"), ["controller.rounds=2"])
    # The run's own log takes the place of the root's handlers.
    (handler,) = (one for one in logging.getLogger().handlers if isinstance(one.formatter, LineFormatter))
    logging.getLogger("grandrounds").addHandler(handler)
    try:
        summary = simulate(job, tmp_path / "run", ["site-1", "site-2"])
    finally:
        logging.getLogger("grandrounds").removeHandler(handler)
    assert summary["status"] == "finished"
    lines = written()
    rounds = [(line["event"], line["round"]) for line in lines if line["event"] in ("round_start", "round_end")]
    assert rounds == [("round_start", 1), ("round_end", 1), ("round_start", 2), ("round_end", 2)]
    assert {"start", "answer", "finished"} <= {line["event"] for line in lines}


def test_flare_takes_the_configuration(tmp_path):
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    try:
        apply_log_config(line_log(default_log_dict, "server"), str(tmp_path))
        log_event(logging.getLogger("grandrounds.somewhere"), "score", "a score", round=1)
        logging.getLogger("nvflare.private").info("ready")
    finally:
        for handler in set(root.handlers) - set(before):
            handler.close()
        root.handlers[:] = before
        root.setLevel(level)
        logging.captureWarnings(False)
    score, ready = checked((tmp_path / "log.json").read_text())
    assert (score["party"], score["event"], score["job"]) == ("server", "score", None)
    assert ready["message"] == "ready"
    assert "a score" in (tmp_path / "log.txt").read_text()
