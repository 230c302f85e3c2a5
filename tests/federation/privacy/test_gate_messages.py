"""The gate among FLARE's filters: of whatever message it is shown, nothing leaves that the policy does not name."""

import json
from pathlib import Path

import pytest
import torch
from gated_site import CODES, SECRET, assert_empty, audited, gated, good_reply, leave
from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.filter import FilterChainType, FilterContextKey, FilterSource
from nvflare.apis.fl_constant import FilterKey, ReturnCode
from nvflare.apis.shareable import ReservedHeaderKey, Shareable, make_reply
from nvflare.apis.workspace import Workspace
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from nvflare.private.privacy_manager import Scope

from grandrounds.errors import ConfigurationError
from grandrounds.federation.job_noise import GaussianPrivacy
from grandrounds.privacy.gate.audit import Reason, Refused
from grandrounds.privacy.gate.filters import SitePrivacyGate
from grandrounds.privacy.gate.gate import Gate
from grandrounds.protocol.messages import REASON_HEADER, TREATED, Result
from grandrounds.protocol.spending import TRAINING_GATE, Mechanism, Spending, Unit
from grandrounds.protocol.wire import decode_result, encode_payload, encode_result


def test_a_good_answer_leaves_treated(site):
    context, came_in = site.admit()
    assert "DXO" in came_in
    left = leave(good_reply(site), context)
    assert left.keys() == {"DXO", ReservedHeaderKey.HEADERS}
    parts = left["DXO"]["data"]
    assert parts["update"].meta == {"release": "model_update", TREATED: "clip_and_noise"}
    assert not bool((parts["update"].data["w"] == SECRET).any())
    assert parts["metrics"].data == {"validation.f1": 0.5}
    assert left["DXO"]["meta"]["samples"] == 1


@pytest.mark.parametrize(
    ("sent", "noted"), [("clip_and_noise", "clip_and_noise"), ("<b>x</b>", ""), ("x" * 33, ""), (7, ""), (None, "")]
)
def test_the_server_notes_a_treatment_by_a_plain_name_only(site, sent, noted):
    reply = good_reply(site)
    reply["DXO"]["data"]["update"].meta[TREATED] = sent
    assert decode_result(reply, site.asked).releases["update"].treated == noted


def joining(site, facts):
    result = Result(metrics={"validation.f1": 0.5}, facts=facts)
    return encode_result(result, {}, site.asked, facts)


def test_of_the_texts_of_a_site_that_joins_those_that_are_named_leave(site):
    context, _ = site.admit("join")
    before = len(audited(site))
    left = leave(joining(site, {"backbone": "resnet10", "diagnosis": "melanoma"}), context)
    assert left["DXO"]["data"]["facts"].data == {"backbone": "resnet10"}
    assert audited(site)[before]["facts"] == ["backbone"]
    assert audited(site)[before]["withheld"] == ["diagnosis"]
    assert "melanoma" not in repr(audited(site))


def test_an_answer_with_too_long_a_text_does_not_leave(site):
    context, _ = site.admit("join")
    reply, before = joining(site, {"backbone": "resnet10"}), len(audited(site))
    reply["DXO"]["data"]["facts"].data["backbone"] = "x" * 1000
    assert_empty(leave(reply, context), site, before)


def test_a_refused_task_keeps_the_cookies_by_which_flare_knows_it(site):
    message = encode_payload(site.asked)
    message.set_cookie_jar({"task": "7"})
    message["DXO"]["meta"]["round"] = "one"
    _, came_in = site.admit(message=message)
    assert came_in.get_cookie_jar() == {"task": "7"}
    assert came_in.keys() == {ReservedHeaderKey.HEADERS}


@pytest.mark.parametrize("code", [code for code in CODES if code != ReturnCode.OK])
def test_an_error_leaves_as_its_code_alone(site, code, monkeypatch):
    monkeypatch.setattr(Gate, "relies_on_noise", False)
    context, _ = site.admit("join")
    reply = make_reply(code, headers={REASON_HEADER: "patient 4711 has a broken file", "leak": SECRET})
    reply["images"] = torch.ones(3)
    before = len(audited(site))
    left = leave(reply, context)
    assert left[ReservedHeaderKey.HEADERS] == {ReservedHeaderKey.RC: code}
    assert_empty(left, site, before, code)
    assert audited(site)[-1]["outcome"] == "stripped"


@pytest.mark.parametrize("task", ["join", "validate", "test"])
@pytest.mark.parametrize("code", [ReturnCode.EXECUTION_EXCEPTION, ReturnCode.TIMEOUT, ReturnCode.TASK_ABORTED])
def test_a_model_that_cannot_be_scored_answers_like_scores_that_stay(site, task, code):
    context, _ = site.admit(task)
    reply = make_reply(code, headers={REASON_HEADER: "patient 4711 has a broken file"})
    left = leave(reply, context)
    assert left.get_return_code() == ReturnCode.OK
    assert REASON_HEADER not in left[ReservedHeaderKey.HEADERS]
    found = decode_result(left, site.asked)
    assert not found.releases
    assert not [name for name in found.metrics if name.startswith(("validation", "common"))]
    assert audited(site)[-1]["outcome"] == "released"


def test_a_job_asks_for_no_more_scores_than_allowed_whatever_is_answered(site, monkeypatch):
    counts = iter([1000, 1001])
    monkeypatch.setattr("grandrounds.privacy.gate.gate.count_question", lambda folder, job: next(counts))
    for allowed in (True, False):
        context, _ = site.admit("validate")
        left = leave(make_reply(ReturnCode.EXECUTION_EXCEPTION), context)
        refused = left.get_header(REASON_HEADER) == Reason.ANSWERS
        assert refused != allowed


def test_an_unreadable_task_is_refused(site):
    for message in (Shareable(), make_reply(ReturnCode.OK), DXO(DataKind.WEIGHTS, data={}).to_shareable()):
        context, came_in = site.admit(message=message)
        assert came_in.keys() == {ReservedHeaderKey.HEADERS}
        assert context.get_prop(TRAINING_GATE).refusal == Reason.FORM
        assert leave(good_reply(site), context).get_header(REASON_HEADER) == Reason.FORM
    context, _ = site.admit("tell_me_more")
    assert leave(good_reply(site), context).get_header(REASON_HEADER) == Reason.TASK


def test_a_script_of_flares_client_api_gets_no_task_and_gives_no_answer(site):
    _, came_in = site.admit(message=FLModelUtils.to_shareable(FLModel(params={"w": torch.ones(2)})))
    assert "DXO" not in came_in
    context, _ = site.admit()
    trained = FLModelUtils.to_shareable(FLModel(params={"w": torch.ones(2)}))
    trained[ReservedHeaderKey.HEADERS] = good_reply(site)[ReservedHeaderKey.HEADERS]  # FLModel's own are refused, too
    left = leave(trained, context)
    assert left.keys() == {ReservedHeaderKey.HEADERS}
    assert left.get_header(REASON_HEADER) == Reason.FORM


def test_without_the_gate_on_the_way_in_nothing_goes_out(site):
    context, _ = site.admit()
    context.set_prop(TRAINING_GATE, None, private=True, sticky=False)
    assert leave(good_reply(site), context).get_header(REASON_HEADER) == Reason.UNSEEN
    context, _ = site.admit()
    with pytest.raises(Refused, match="the cost of a training is a str"):
        context.get_prop(TRAINING_GATE).admit_training("very well protected")
    assert leave(good_reply(site), context).get_header(REASON_HEADER) == Reason.FORM


def test_after_a_training_that_was_refused_no_answer_leaves(site, monkeypatch):
    def refuse(gate, facts, training):
        raise Refused(Reason.BUDGET, "it would cost too much")

    monkeypatch.setattr(Gate, "admit_training", refuse)
    context, _ = site.admit()
    with pytest.raises(Refused):
        context.get_prop(TRAINING_GATE).admit_training(Spending(Mechanism.DP_SGD, Unit.RECORD, 1.0, 1.0))
    before = len(audited(site))
    left = leave(good_reply(site), context)
    assert_empty(left, site, before)
    assert left.get_header(REASON_HEADER) == Reason.BUDGET


@pytest.mark.parametrize("direction", [None, FilterKey.IN])
def test_a_scope_whose_answers_do_not_pass_the_gate_gets_no_task(site, monkeypatch, direction):
    scope = Scope()
    scope.set_props(site.scope.props)
    if direction:
        scope.add_task_result_filter(SitePrivacyGate(), direction)
    monkeypatch.setattr(site.scope, "task_result_filters", scope.task_result_filters)
    context, came_in = site.admit()
    assert came_in.keys() == {ReservedHeaderKey.HEADERS}
    assert context.get_prop(TRAINING_GATE).refusal == Reason.POLICY
    assert "would not see the answers" in audited(site)[-1]["detail"]


@pytest.mark.parametrize("props", [None, {}, {"grandrounds": {"unit": "site"}}, {"grandrounds": "allow everything"}])
def test_a_broken_policy_blocks_tasks_and_answers(site, monkeypatch, props):
    monkeypatch.setattr(site.scope, "props", props)
    context, came_in = site.admit()
    assert "DXO" not in came_in
    assert leave(good_reply(site), context).get_header(REASON_HEADER) == Reason.POLICY


def test_a_job_cannot_bring_its_own_gate(site):
    gate = gated(FilterChainType.TASK_RESULT_CHAIN)
    gate.set_prop(FilterContextKey.SOURCE, FilterSource.JOB)
    with pytest.raises(ConfigurationError, match="belongs in a site's privacy"):
        gate.process(good_reply(site), site.admit()[0])


def test_the_jobs_filter_clips_and_noises_what_no_gate_has_treated_and_nothing_else(site):
    quiet = GaussianPrivacy(clip=1.0, noise_multiplier=1e-9)
    alone = quiet.process(good_reply(site), None)["DXO"]["data"]
    norm = float(torch.cat(list(alone["update"].data.values())).norm())
    assert norm == pytest.approx(1.0, abs=1e-6)
    assert alone["metrics"].data == {"validation.f1": 0.5}
    reply = leave(good_reply(site), site.admit()[0])
    treated = {name: value.clone() for name, value in reply["DXO"]["data"]["update"].data.items()}
    again = GaussianPrivacy(clip=1e-3, noise_multiplier=5.0).process(reply, None)["DXO"]["data"]["update"].data
    assert all(torch.equal(again[name], treated[name]) for name in treated)
    with pytest.raises(ValueError, match="must be a collection"):
        quiet.process(DXO(DataKind.WEIGHT_DIFF, data={"w": torch.ones(1)}).to_shareable(), None)
    with pytest.raises(ConfigurationError, match="unit must be one of record, patient, presence, site"):
        GaussianPrivacy(1.0, 1.0, unit="hospital")


@pytest.mark.parametrize(("task", "asks"), [("test", True), ("test", False), ("test", None), ("validate", True)])
def test_the_gate_expects_a_sites_model_of_the_test_of_a_job_that_asks_for_it(site, task, asks):
    path = Path(Workspace(str(site.root), "site-1").get_client_app_config_file_path("job-1"))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"executors": [{"executor": {"path": "a.B", "args": {"release_model": asks}}}]}))
    if asks is None:
        path.unlink()
    context, _ = site.admit(task)
    path.unlink(missing_ok=True)
    assert context.get_prop(TRAINING_GATE).facts.expected.asks_for_model is (task == "test" and bool(asks))
