"""Messages through the gate as FLARE would pass them, and what has become of them."""

import json

import torch
from nvflare.apis.filter import FilterChainType, FilterContextKey, FilterSource
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import ReservedHeaderKey

from grandrounds.privacy.gate.audit import Reason
from grandrounds.privacy.gate.filters import SitePrivacyGate
from grandrounds.protocol.messages import REASON_HEADER, ReleaseKind, Result, model_update
from grandrounds.protocol.wire import encode_result

SECRET = 0.31415926
CODES = [value for name, value in vars(ReturnCode).items() if name.isupper()]
HEADERS = [value for name, value in vars(ReservedHeaderKey).items() if name.isupper()]


def gated(chain):
    gate = SitePrivacyGate()
    gate.set_prop(FilterContextKey.CHAIN_TYPE, chain)
    gate.set_prop(FilterContextKey.SOURCE, FilterSource.SITE)
    return gate


def good_reply(site):
    result = Result(model_update({"w": torch.full((3,), SECRET), "b": torch.ones(2)}), {"validation.f1": 0.5}, 44)
    return encode_result(result, {"update": ReleaseKind.MODEL_UPDATE}, site.asked)


def leave(reply, context):
    return gated(FilterChainType.TASK_RESULT_CHAIN).process(reply, context)


def audited(site):
    path = site.folder / "audit.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def assert_empty(left, site, before, code=ReturnCode.TASK_RESULT_FILTER_ERROR):
    """Nothing but a code and a fixed sentence, and a line in the trail."""
    headers = {ReservedHeaderKey.RC} | ({REASON_HEADER} if code == ReturnCode.TASK_RESULT_FILTER_ERROR else set())
    assert left.keys() == {ReservedHeaderKey.HEADERS}
    assert left[ReservedHeaderKey.HEADERS].keys() <= headers
    assert left.get_return_code() == code
    assert left.get_header(REASON_HEADER, Reason.FAILED) in set(Reason)
    assert len(audited(site)) == before + 1
    assert str(SECRET) not in repr(left)


def require_nothing_of_it(left, site, before):
    """An error of a training is replaced by noise; of anything else nothing but a code leaves."""
    if left.get_return_code() != ReturnCode.OK:
        assert_empty(left, site, before, left.get_return_code())
        return
    trail = audited(site)[before:]
    assert [line["outcome"] for line in trail] == ["released"]
    assert trail[0]["in_place_of"].startswith(("an error of the training", "no rule allows"))
    parts = left["DXO"]["data"]
    assert {name: part.data.keys() for name, part in parts.items()} == {"update": {"w", "b"}, "metrics": set()}
    assert "leak" not in repr(left)
    assert all(float(value.abs().min()) != SECRET for value in parts["update"].data.values())
