"""A training whose answer never comes is booked like one that is answered; a spent budget admits no more models."""

import multiprocessing
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from gate_answers import NOISY, SKIN, TARGET, UPDATE, answer, audited, booked, facts

from grandrounds.deployment.kit.shipped import shipped_policy
from grandrounds.errors import DataError
from grandrounds.privacy.gate.audit import Reason, Refused
from grandrounds.privacy.gate.gate import LAST_SCORES
from grandrounds.privacy.gate.policy import ReleaseRule, SiteDemands, Terms
from grandrounds.privacy.gate.questions import (
    MOST_ANSWERS,
    SentAnswers,
    book_unanswered,
    count_question,
)
from grandrounds.privacy.gate.treatments import RecordLevel, Unmodified
from grandrounds.privacy.ledger.lines import DatasetIdentity
from grandrounds.protocol.messages import Payload
from grandrounds.protocol.question import question_id
from grandrounds.protocol.spending import Mechanism, Spending, Unit


def killed_while_training(chosen, training=None):
    """A process of the site that is killed after it has begun."""

    def work():
        note = chosen.begin(facts(), training)
        assert note is not None
        os.kill(os.getpid(), signal.SIGKILL)

    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL


def test_a_training_that_was_killed_is_booked_when_the_next_task_comes(gate):
    chosen = gate()
    killed_while_training(chosen)
    assert booked(chosen) == ()
    chosen.admit(facts(number=2))
    (booking,) = booked(chosen)
    assert (booking.purpose.release, booking.purpose.round_number) == ("update", 1)
    assert booking.spending == NOISY.treatment.spending(None)
    assert [(line["outcome"], line["round"]) for line in audited(chosen)] == [("unanswered", 1)]
    chosen.admit(facts(number=3))
    assert len(booked(chosen)) == 1


def test_a_record_level_private_training_that_was_killed_has_the_cost_of_its_training(gate):
    rule = ReleaseRule(UPDATE, "update", RecordLevel(0.5))
    chosen = gate(rule, unit=Unit.RECORD, target_epsilon={"*": 10.0})
    training = Spending(Mechanism.DP_SGD, Unit.RECORD, 1.0, 2.0, 0.1, 10)
    killed_while_training(chosen, training)
    chosen.admit(facts(number=2))
    assert [booking.spending for booking in booked(chosen)] == [training]


def test_a_training_without_a_guarantee_that_was_killed_is_booked_as_such(gate):
    chosen = gate(ReleaseRule(UPDATE, "update", Unmodified()))
    killed_while_training(chosen)
    chosen.admit(facts(number=2))
    assert [booking.spending.mechanism for booking in booked(chosen)] == [Mechanism.NO_GUARANTEE]


def test_a_training_at_work_and_one_that_was_answered_are_not_booked_once_more(gate):
    chosen = gate()
    note = chosen.begin(facts())
    assert list(book_unanswered(chosen.folder, chosen.ledger())) == []
    chosen.release(facts(), answer())
    note.answered()
    assert list(book_unanswered(chosen.folder, chosen.ledger())) == []
    assert len(booked(chosen)) == 1


def test_only_trainings_are_noted_and_a_damaged_note_is_named(gate):
    chosen = gate()
    assert chosen.begin(facts("validate")) is None
    (chosen.folder / "open").mkdir()
    (chosen.folder / "open" / "a.json").write_text('[{"kind": "dataset"}]')
    with pytest.raises(Refused, match=r"a\.json") as caught:
        chosen.admit(facts())
    assert caught.value.reason is Reason.LEDGER
    with pytest.raises(DataError):
        list(book_unanswered(chosen.folder, chosen.ledger()))


def asked(task, run="run"):
    return replace(facts(task, run=run), terms=Terms(updates=True, models=True))


def test_a_spent_budget_admits_no_more_models(gate):
    """One update is affordable. Its run is scored to its end, and no more; other runs are not."""
    chosen = gate(target_epsilon={"*": TARGET}, tasks=("train", "validate", "test"))
    chosen.admit(asked("validate", "other"))
    chosen.release(facts(), answer())
    with pytest.raises(Refused) as caught:
        chosen.admit(facts(number=2))
    assert caught.value.reason is Reason.BUDGET
    for task in ("validate", "test"):
        for _ in range(LAST_SCORES):
            chosen.admit(asked(task))
        with pytest.raises(Refused) as caught:
            chosen.admit(asked(task))
        assert caught.value.reason is Reason.BUDGET
        with pytest.raises(Refused) as caught:
            chosen.admit(asked(task, "other"))
        assert caught.value.reason is Reason.BUDGET
    assert {booking.dataset for booking in booked(chosen)} == {SKIN}


def test_a_model_in_any_part_is_one_and_only_the_run_that_has_spent_the_budget_is_scored(gate):
    chosen = gate(target_epsilon={"other": TARGET, "*": 1.2 * TARGET}, tasks=("train", "validate"))
    chosen.release(replace(facts(run="elsewhere"), dataset=DatasetIdentity("other", "b" * 64)), answer())
    chosen.release(facts(), answer())
    elsewhere = replace(facts("validate", run="elsewhere"), terms=Terms(models=True))
    with pytest.raises(Refused) as caught:
        chosen.admit(elsewhere)
    assert caught.value.reason is Reason.BUDGET


def test_questions_of_several_processes_are_all_counted(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        counts = list(pool.map(lambda _: count_question(tmp_path, "job"), range(80)))
    assert sorted(counts) == list(range(1, 81))


def test_a_job_gets_as_many_scored_tasks_as_the_policy_allows_whatever_is_answered(gate):
    chosen = gate(tasks=("train", "validate", "test"), scored_answers=3)
    for task in ("validate", "test", "validate"):
        chosen.admit(facts(task))
    for task in ("validate", "test"):
        with pytest.raises(Refused) as caught:
            chosen.admit(facts(task))
        assert caught.value.reason is Reason.ANSWERS
    chosen.admit(facts())


def test_the_shipped_policy_of_sums_scores_a_hundred_models_of_a_job(gate):
    chosen = gate(tasks=("validate",), scored_answers=shipped_policy("sums").scored_answers)
    for _ in range(100):
        chosen.admit(facts("validate"))
    with pytest.raises(Refused) as caught:
        chosen.admit(facts("validate"))
    assert caught.value.reason is Reason.ANSWERS


@pytest.mark.parametrize("task", ["train", "validate", "test"])
def test_no_task_has_weights_that_overflow_where_updates_leave_with_noise(gate, task):
    chosen = gate(tasks=("train", "validate", "test"))
    large = facts(task)
    with pytest.raises(Refused) as caught:
        chosen.admit(replace(large, expected=replace(large.expected, largest=1.1e4)))
    assert caught.value.reason is Reason.VALUES
    chosen.admit(replace(large, expected=replace(large.expected, largest=1e4)))


def test_a_training_without_the_demanded_precision_is_refused_before_any_work(gate):
    chosen = gate(demands=SiteDemands(update_precision="bfloat16"))
    with pytest.raises(Refused) as caught:
        chosen.admit(asked("train"))
    assert caught.value.reason is Reason.PRECISION


def training(**changes):
    """A task of round 3, some of it changed."""
    values = {"seed": 1, "checkpoints": [1, 2], "round_timeout": 5.0, "classes": ["a"]} | changes.pop("values", {})
    parts = {"global": {"w": torch.tensor([1.0, 2.0]), "n": torch.tensor(3)}} | changes.pop("parts", {})
    return Payload(changes.pop("number", 3), values, parts)


@pytest.mark.parametrize(
    "values", [{"checkpoints": [2]}, {"round_timeout": 60.0}, {"ledger_head": "f" * 64}, {"seed": 1}]
)
def test_a_task_of_another_start_of_the_server_asks_the_same(values):
    assert question_id("train", training(), "policy") == question_id("train", training(values=values), "policy")


@pytest.mark.parametrize(
    ("task", "changed", "terms"),
    [
        ("validate", {}, "policy"),
        ("train", {"number": 4}, "policy"),
        ("train", {"values": {"seed": 2}}, "policy"),
        ("train", {"parts": {"global": {"w": torch.tensor([1.0, 2.0000002]), "n": torch.tensor(3)}}}, "policy"),
        ("train", {"parts": {"global": {"w": torch.tensor([[1.0, 2.0]]), "n": torch.tensor(3)}}}, "policy"),
        ("train", {"parts": {"peer": {}}, "values": {"more": 1}}, "policy"),
        ("train", {}, "another policy"),
    ],
)
def test_whatever_an_answer_depends_on_makes_another_question(task, changed, terms):
    assert question_id("train", training(), "policy") != question_id(task, training(**changed), terms)


def test_an_answer_is_kept_until_the_server_cannot_ask_for_it_any_more(tmp_path):
    answers = SentAnswers(tmp_path, "run-1")
    assert answers.find("0" * 64) is None
    for number in range(1, 7):
        answers.keep(f"{number:064d}"[::-1], number, f"answer {number}".encode(), range(1, number))
    kept = [number for number in range(1, 7) if answers.find(f"{number:064d}"[::-1])]
    assert kept == [5, 6], "of the newest two checkpoints, 4 and 5, the newest may be damaged"
    assert answers.find(f"{6:064d}"[::-1]) == b"answer 6"
    assert SentAnswers(tmp_path, "run-2").find(f"{6:064d}"[::-1]) is None


def test_a_server_cannot_fill_the_disk_with_answers_and_old_runs_are_forgotten(tmp_path):
    old = SentAnswers(tmp_path, "old")
    old.keep("a" * 64, 1, b"x", [])
    (folder,) = (tmp_path / "answers").iterdir()
    os.utime(folder, (0, 0))
    answers = SentAnswers(tmp_path, "new")
    for number in range(1, 40):
        answers.keep(f"{number:064d}"[::-1], number, b"x", [])
    assert len(list((tmp_path / "answers").glob("*/*"))) == MOST_ANSWERS
    assert old.find("a" * 64) is None
