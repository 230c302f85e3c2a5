"""The gate among FLARE's filters: of whatever message it is shown, nothing leaves that the policy does not name."""

import json
from types import SimpleNamespace

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.filter import FilterChainType, FilterContextKey, FilterSource
from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContextManager
from nvflare.apis.shareable import ReservedHeaderKey, Shareable, make_reply
from nvflare.apis.workspace import Workspace

from grandrounds.errors import ConfigurationError
from grandrounds.federation.messages import (
    REASON_HEADER,
    TREATED,
    Payload,
    ReleaseKind,
    Result,
    decode_result,
    encode_payload,
    encode_result,
    model_update,
)
from grandrounds.federation.problem import Problem
from grandrounds.federation.release_facts import ADMISSION, TRAINED
from grandrounds.privacy.filters import GaussianPrivacy, SitePrivacyGate
from grandrounds.privacy.refusals import Reason

SECRET = 0.31415926
CODES = [value for name, value in vars(ReturnCode).items() if name.isupper()]
HEADERS = [value for name, value in vars(ReservedHeaderKey).items() if name.isupper()]


def gated(chain):
    gate = SitePrivacyGate()
    gate.set_prop(FilterContextKey.CHAIN_TYPE, chain)
    gate.set_prop(FilterContextKey.SOURCE, FilterSource.SITE)
    return gate


@pytest.fixture(scope="module")
def house(tmp_path_factory, shared_cache, install, policy_of):
    """A site with phantoms, a policy and a ledger; ``admit`` passes a training task through the gate."""
    root = tmp_path_factory.mktemp("house")
    (root / "startup").mkdir()
    content = policy_of(scalars=[{"name": "validation.*", "part": "val", "minimum_support": 2}], facts=["backbone"])
    install(root / "local", content)
    engine = SimpleNamespace(get_workspace=lambda: Workspace(str(root), "site-1"))
    manager = FLContextManager(engine=engine, identity_name="site-1", job_id="job-1")
    scope = SimpleNamespace(name="strict", props={"grandrounds": content})
    problem = Problem("phantom", ("a", "b")).to_dict()
    values = {"problem": problem, "run_name": "run", "run_id": "r-1", "seed": 0}
    asked = Payload(1, values, {"global": {"w": torch.zeros(3), "b": torch.zeros(2), "n": torch.tensor(1)}})

    def admit(task="train", message=None):
        context = manager.new_context()
        context.set_prop(FLContextKey.SCOPE_OBJECT, scope, private=True, sticky=False)
        context.set_prop(FLContextKey.TASK_NAME, task, private=True, sticky=False)
        came_in = gated(FilterChainType.TASK_DATA_CHAIN).process(message or encode_payload(asked), context)
        return context, came_in

    return SimpleNamespace(root=root, admit=admit, asked=asked, scope=scope, folder=root / "local" / "privacy")


def good_reply(house):
    result = Result(model_update({"w": torch.full((3,), SECRET), "b": torch.ones(2)}), {"validation.f1": 0.5}, 44)
    return encode_result(result, {"update": ReleaseKind.MODEL_UPDATE}, house.asked)


def leave(reply, context):
    return gated(FilterChainType.TASK_RESULT_CHAIN).process(reply, context)


def audited(house):
    path = house.folder / "audit.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def require_empty(left, house, before, code=ReturnCode.TASK_RESULT_FILTER_ERROR):
    """Nothing but a code and a fixed sentence, and a line in the trail."""
    headers = {ReservedHeaderKey.RC} | ({REASON_HEADER} if code == ReturnCode.TASK_RESULT_FILTER_ERROR else set())
    assert left.keys() == {ReservedHeaderKey.HEADERS}
    assert left[ReservedHeaderKey.HEADERS].keys() <= headers
    assert left.get_return_code() == code
    assert left.get_header(REASON_HEADER, Reason.FAILED) in set(Reason)
    assert len(audited(house)) == before + 1
    assert str(SECRET) not in repr(left)


def test_a_good_answer_leaves_treated(house):
    context, came_in = house.admit()
    assert "DXO" in came_in
    left = leave(good_reply(house), context)
    assert left.keys() == {"DXO", ReservedHeaderKey.HEADERS}
    parts = left["DXO"]["data"]
    assert parts["update"].meta == {"release": "model_update", TREATED: "clip_and_noise"}
    assert not bool((parts["update"].data["w"] == SECRET).any())
    assert parts["metrics"].data == {"validation.f1": 0.5}
    assert left["DXO"]["meta"]["samples"] == 1


@pytest.mark.parametrize(
    ("said", "noted"), [("clip_and_noise", "clip_and_noise"), ("<b>x</b>", ""), ("x" * 33, ""), (7, ""), (None, "")]
)
def test_the_server_notes_a_treatment_by_a_plain_name_only(house, said, noted):
    reply = good_reply(house)
    reply["DXO"]["data"]["update"].meta[TREATED] = said
    assert decode_result(reply, house.asked).releases["update"].treated == noted


def joining(house, facts):
    result = Result(metrics={"validation.f1": 0.5}, facts=facts)
    return encode_result(result, {}, house.asked, facts)


def test_of_the_texts_of_a_site_that_joins_those_that_are_named_leave(house):
    context, _ = house.admit("join")
    before = len(audited(house))
    left = leave(joining(house, {"backbone": "resnet10", "diagnosis": "melanoma"}), context)
    assert left["DXO"]["data"]["facts"].data == {"backbone": "resnet10"}
    assert audited(house)[before]["facts"] == ["backbone"]
    assert audited(house)[before]["withheld"] == ["diagnosis"]
    assert "melanoma" not in repr(audited(house))


def test_a_text_that_is_too_long_lets_nothing_leave(house):
    context, _ = house.admit("join")
    reply, before = joining(house, {"backbone": "resnet10"}), len(audited(house))
    reply["DXO"]["data"]["facts"].data["backbone"] = "x" * 1000
    require_empty(leave(reply, context), house, before)


def test_a_refused_task_keeps_the_cookies_by_which_flare_knows_it(house):
    message = encode_payload(house.asked)
    message.set_cookie_jar({"task": "7"})
    message["DXO"]["meta"]["round"] = "one"
    _, came_in = house.admit(message=message)
    assert came_in.get_cookie_jar() == {"task": "7"}
    assert came_in.keys() == {ReservedHeaderKey.HEADERS}


# Without shrinking: a counterexample here is small already.
ANYTHING = settings(
    max_examples=150,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
VALUES = st.sampled_from(
    [SECRET, "image", b"\x00image", [SECRET], {"w": SECRET}, torch.full((3,), SECRET), None, float("nan"), object()]
)
STATES = st.dictionaries(st.sampled_from(["w", "b", "x", "n", 7, "a b\n"]), VALUES, max_size=3)
KINDS = st.one_of(
    st.sampled_from([*DataKind, *(kind.value for kind in DataKind)]), st.sampled_from(["IMAGES", "weights"])
)
METAS = st.one_of(
    st.just({}),
    st.sampled_from([{"release": kind.value} for kind in ReleaseKind]),
    st.dictionaries(st.sampled_from(["release", "processed_algorithm", "leak", TREATED]), VALUES, max_size=3),
)
LEAVES = st.builds(lambda kind, data, meta: DXO(kind, data=data, meta=meta), KINDS, STATES, METAS)
COLLECTIONS = st.builds(
    lambda parts, meta: DXO(DataKind.COLLECTION, data=parts, meta=meta),
    st.dictionaries(
        st.sampled_from(["update", "metrics", "relation", "images"]), st.one_of(LEAVES, VALUES), max_size=3
    ),
    st.dictionaries(st.sampled_from(["protocol", "round", "run_id", "samples", "leak"]), VALUES, max_size=4),
)


@st.composite
def replies(draw):
    """Any shareable: a DXO of any kind, anything else, any header, any return code."""
    reply = draw(st.one_of(LEAVES, COLLECTIONS)).to_shareable() if draw(st.booleans()) else Shareable()
    for key, value in draw(st.dictionaries(st.sampled_from(["DXO", "images", "x"]), VALUES, max_size=2)).items():
        reply[key] = value
    for key, value in draw(st.dictionaries(st.sampled_from([*HEADERS, "leak"]), VALUES, max_size=3)).items():
        reply.set_header(key, value)
    if draw(st.booleans()):
        reply.set_return_code(draw(st.sampled_from(CODES)))
    if draw(st.integers(0, 9)) == 0:
        reply[ReservedHeaderKey.HEADERS] = draw(VALUES)
    return reply


@ANYTHING
@given(reply=replies())
def test_whatever_a_reply_is_nothing_undeclared_leaves_and_it_is_written_down(house, reply):
    context, _ = house.admit()
    before = len(audited(house))
    left = leave(reply, context)
    code = left.get_return_code()
    assert code != ReturnCode.OK, "none of these is an answer that a policy lets out"
    require_empty(left, house, before, code)


@ANYTHING
@given(data=st.data())
def test_a_good_answer_with_one_thing_more_does_not_leave(house, data):
    reply, (context, _) = good_reply(house), house.admit()
    value, parts, meta = data.draw(VALUES), reply["DXO"]["data"], reply["DXO"]["meta"]
    where = data.draw(
        st.sampled_from(["body", "header", "dxo", "meta", "part", "part meta", "entry", "number", "kind"])
    )
    if where == "body":
        reply["leak"] = value
    elif where == "header":
        reply.set_header(data.draw(st.sampled_from([*HEADERS, "leak"])), value)
        # A code that is no success turns it into an error reply, which leaves without its content as well.
    elif where == "dxo":
        reply["DXO"]["leak"] = value
    elif where == "meta":
        meta["leak"] = value
    elif where == "part":
        parts["leak"] = data.draw(LEAVES)
    elif where == "part meta":
        parts[data.draw(st.sampled_from(["update", "metrics"]))].meta["leak"] = value
    elif where == "entry":
        parts["update"].data[data.draw(st.sampled_from(["x", "n"]))] = torch.full((3,), SECRET)
    elif where == "number":
        parts["metrics"].data["validation.leak"] = torch.full((3,), SECRET)
    else:
        parts["update"].data_kind = data.draw(st.sampled_from([k for k in DataKind if k != DataKind.WEIGHT_DIFF]))
    before = len(audited(house))
    left = leave(reply, context)
    code = left.get_return_code()
    assert code != ReturnCode.OK, where
    require_empty(left, house, before, code)


@pytest.mark.parametrize("code", [code for code in CODES if code != ReturnCode.OK])
def test_an_error_leaves_as_its_code_alone(house, code):
    context, _ = house.admit()
    reply = make_reply(code, headers={REASON_HEADER: "patient 4711 has a broken file", "leak": SECRET})
    reply["images"] = torch.ones(3)
    before = len(audited(house))
    left = leave(reply, context)
    assert left[ReservedHeaderKey.HEADERS] == {ReservedHeaderKey.RC: code}
    require_empty(left, house, before, code)
    assert audited(house)[-1]["outcome"] == "stripped"


def test_what_comes_in_must_be_a_task_that_can_be_read(house):
    for message in (Shareable(), make_reply(ReturnCode.OK), DXO(DataKind.WEIGHTS, data={}).to_shareable()):
        context, came_in = house.admit(message=message)
        assert came_in.keys() == {ReservedHeaderKey.HEADERS}
        assert context.get_prop(ADMISSION).refusal is Reason.FORM
        assert leave(good_reply(house), context).get_header(REASON_HEADER) == Reason.FORM
    context, _ = house.admit("tell_me_more")
    assert leave(good_reply(house), context).get_header(REASON_HEADER) == Reason.TASK


def test_without_the_gate_on_the_way_in_nothing_goes_out(house):
    context, _ = house.admit()
    context.set_prop(ADMISSION, None, private=True, sticky=False)
    assert leave(good_reply(house), context).get_header(REASON_HEADER) == Reason.UNSEEN
    context, _ = house.admit()
    context.set_prop(TRAINED, "very well protected", private=True, sticky=False)
    assert leave(good_reply(house), context).get_header(REASON_HEADER) == Reason.FORM


@pytest.mark.parametrize("props", [None, {}, {"grandrounds": {"unit": "site"}}, {"grandrounds": "allow everything"}])
def test_a_broken_policy_lets_nothing_in_and_nothing_out(house, monkeypatch, props):
    monkeypatch.setattr(house.scope, "props", props)
    context, came_in = house.admit()
    assert "DXO" not in came_in
    assert leave(good_reply(house), context).get_header(REASON_HEADER) == Reason.POLICY


def test_a_job_cannot_have_a_gate_of_its_own(house):
    gate = gated(FilterChainType.TASK_RESULT_CHAIN)
    gate.set_prop(FilterContextKey.SOURCE, FilterSource.JOB)
    with pytest.raises(ConfigurationError, match="belongs into a site's privacy"):
        gate.process(good_reply(house), house.admit()[0])


def test_the_jobs_filter_clips_and_noises_what_no_gate_has_treated_and_nothing_else(house):
    quiet = GaussianPrivacy(clip=1.0, noise_multiplier=1e-9)
    alone = quiet.process(good_reply(house), None)["DXO"]["data"]
    norm = float(torch.cat(list(alone["update"].data.values())).norm())
    assert norm == pytest.approx(1.0, abs=1e-6)
    assert alone["metrics"].data == {"validation.f1": 0.5}
    reply = leave(good_reply(house), house.admit()[0])
    treated = {name: value.clone() for name, value in reply["DXO"]["data"]["update"].data.items()}
    again = GaussianPrivacy(clip=1e-3, noise_multiplier=5.0).process(reply, None)["DXO"]["data"]["update"].data
    assert all(torch.equal(again[name], treated[name]) for name in treated)
    with pytest.raises(ValueError, match="must be a collection"):
        quiet.process(DXO(DataKind.WEIGHT_DIFF, data={"w": torch.ones(1)}).to_shareable(), None)
    with pytest.raises(ConfigurationError, match="unit must be one of record, presence, site"):
        GaussianPrivacy(1.0, 1.0, unit="hospital")
