"""Of whatever message the gate is shown, nothing leaves that the policy does not name."""

import pytest
import torch
from gated_site import CODES, HEADERS, SECRET, assert_empty, audited, good_reply, leave, require_nothing_of_it
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import ReservedHeaderKey, Shareable

from grandrounds.protocol.messages import TREATED, ReleaseKind

# Without shrinking: a counterexample here is small already.
ANYTHING = settings(
    max_examples=150,
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
def test_from_any_reply_only_declared_values_leave_and_it_is_audited(site, reply):
    context, _ = site.admit()
    before = len(audited(site))
    left = leave(reply, context)
    require_nothing_of_it(left, site, before)


@ANYTHING
@given(data=st.data())
def test_a_good_answer_with_one_thing_more_does_not_leave(site, data):
    reply, (context, _) = good_reply(site), site.admit()
    value, parts, meta = data.draw(VALUES), reply["DXO"]["data"], reply["DXO"]["meta"]
    where = data.draw(
        st.sampled_from(["body", "header", "dxo", "meta", "part", "part meta", "entry", "number", "kind"])
    )
    if where == "body":
        reply["leak"] = value
    elif where == "header":
        reply.set_header(data.draw(st.sampled_from([*HEADERS, "leak"])), value)
        # A code that is no success turns it into an error reply, which also leaves without its content.
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
    before = len(audited(site))
    left = leave(reply, context)
    require_nothing_of_it(left, site, before)


def wrapped(reply):
    """The same answer inside another one."""
    inner = DXO(DataKind.COLLECTION, data=reply["DXO"]["data"], meta=reply["DXO"]["meta"])
    return DXO(DataKind.COLLECTION, data={"update": inner}, meta=reply["DXO"]["meta"]).to_shareable()


@pytest.mark.parametrize("kind", [*DataKind, "IMAGES", None, 7])
@pytest.mark.parametrize("place", ["reply", "update", "metrics"])
def test_no_data_kind_leaves_but_those_of_an_answer(site, kind, place):
    context, _ = site.admit()
    reply, before = good_reply(site), len(audited(site))
    right = {"reply": DataKind.COLLECTION, "update": DataKind.WEIGHT_DIFF, "metrics": DataKind.METRICS}[place]
    if place == "reply":
        reply["DXO"]["kind"] = kind
    else:
        reply["DXO"]["data"][place].data_kind = kind
    left = leave(reply, context)
    if kind == right:
        assert left.get_return_code() == ReturnCode.OK
    else:
        assert_empty(left, site, before)


@pytest.mark.parametrize("name", [*HEADERS, "leak"])
def test_no_header_leaves_but_the_code_and_the_type(site, name):
    context, _ = site.admit()
    reply, before = good_reply(site), len(audited(site))
    reply.set_header(name, {"leak": SECRET})
    left = leave(reply, context)
    require_nothing_of_it(left, site, before)


@pytest.mark.parametrize(
    "place",
    [
        lambda reply: reply,
        lambda reply: reply["DXO"],
        lambda reply: reply["DXO"]["meta"],
        lambda reply: reply["DXO"]["data"]["update"].meta,
        lambda reply: reply["DXO"]["data"]["metrics"].meta,
    ],
    ids=["reply", "exchange object", "its properties", "update's properties", "metrics' properties"],
)
def test_nothing_leaves_with_a_value_that_an_answer_has_not(site, place):
    context, _ = site.admit()
    reply, before = good_reply(site), len(audited(site))
    place(reply)["leak"] = SECRET
    assert_empty(leave(reply, context), site, before)


def test_an_answer_within_an_answer_does_not_leave(site):
    context, _ = site.admit()
    before = len(audited(site))
    assert_empty(leave(wrapped(good_reply(site)), context), site, before)


def test_cookies_that_the_method_has_made_do_not_leave(site):
    context, _ = site.admit()
    reply, before = good_reply(site), len(audited(site))
    reply.add_cookie("leak", SECRET)
    assert_empty(leave(reply, context), site, before)


def test_what_leaves_is_made_anew_and_shares_nothing_with_the_answer(site):
    context, _ = site.admit()
    reply = good_reply(site)
    left = leave(reply, context)
    reply.set_header("leak", SECRET)
    reply["DXO"]["meta"]["leak"] = SECRET
    reply["DXO"]["data"]["update"].meta["leak"] = SECRET
    reply["DXO"]["data"]["update"].data["leak"] = torch.ones(1)
    assert "leak" not in repr(left)
    assert "leak" not in repr({name: part.to_dict() for name, part in left["DXO"]["data"].items()})
