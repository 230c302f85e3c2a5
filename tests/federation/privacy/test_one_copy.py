"""A message is read once: what was checked is what leaves."""

import pytest
import torch
from gated_site import SECRET, good_reply, leave
from nvflare.apis.fl_constant import ReturnCode
from stateful import OtherMapping, StatefulDict, StatefulText

from grandrounds.errors import MessageError
from grandrounds.privacy.ledger.ledger import LEDGER_NAME, read_ledger
from grandrounds.protocol.messages import Result
from grandrounds.protocol.plain import MAX_DEPTH, plain
from grandrounds.protocol.wire import decode_result, encode_result


def facts_reply(site):
    return encode_result(
        Result(metrics={"validation.f1": 0.5}, facts={"backbone": "resnet10"}), {}, site.asked, ["backbone"]
    )


def left_with(site, reply, task="train"):
    context, _ = site.admit(task)
    return leave(reply, context)


@pytest.mark.parametrize("readings", range(1, 6))
def test_facts_that_change_when_read_again_do_not_leave(site, readings):
    reply = facts_reply(site)
    reply["DXO"]["data"]["facts"].data = StatefulDict({"backbone": "resnet10"}, {"backbone": "x" * 5000}, readings)
    left = left_with(site, reply, "join")
    assert left.get_return_code() == ReturnCode.OK
    data = left["DXO"]["data"]["facts"].data
    assert (type(data), data) == (dict, {"backbone": "resnet10"})


@pytest.mark.parametrize("readings", range(1, 6))
@pytest.mark.parametrize("place", ["samples", "metrics", "part", "meta", "all"])
def test_nothing_that_changes_when_read_again_leaves(site, place, readings):
    reply = good_reply(site)
    content = reply["DXO"]
    leak = torch.full((3,), SECRET)
    if place == "samples":
        content["meta"] = StatefulDict(content["meta"], {**content["meta"], "samples": leak}, readings)
    elif place == "metrics":
        content["data"]["metrics"].data = StatefulDict({"validation.f1": 0.5}, {"patient\0 4711": SECRET}, readings)
    elif place == "part":
        update = content["data"]["update"]
        update.data = StatefulDict(update.data, {**update.data, "x": leak}, readings)
    elif place == "meta":
        update = content["data"]["update"]
        update.meta = StatefulDict(update.meta, {**update.meta, "leak": leak}, readings)
    else:
        reply["DXO"] = StatefulDict(content, {**content, "meta": {**content["meta"], "leak": leak}}, readings)
    left = left_with(site, reply)
    assert left.get_return_code() == ReturnCode.OK
    head = read_ledger(site.folder / LEDGER_NAME).chain.head
    assert left["DXO"]["meta"] == {**good_reply(site)["DXO"]["meta"], "samples": 1, "ledger_head": head}
    parts = left["DXO"]["data"]
    assert parts["metrics"].data == {"validation.f1": 0.5}
    assert sorted(parts["update"].data) == ["b", "w"]
    assert {type(found) for found in (parts, parts["update"].data, parts["update"].meta, left["DXO"]["meta"])} == {dict}
    assert str(SECRET) not in repr(left)


def test_a_copy_is_of_exact_types_and_shares_nothing():
    inner = torch.arange(6.0).reshape(2, 3).t()
    made = plain({StatefulText("a", "leak"): [True, 1, 0.5, None, b"x", (inner,)]}, "values")
    (key,) = made
    assert (type(key), key) == (str, "a")
    (copied,) = made["a"][-1]
    assert torch.equal(copied, inner)
    assert copied.is_contiguous()
    assert copied.data_ptr() != inner.data_ptr()
    assert plain([torch.nn.Parameter(torch.ones(2))], "x")[0].requires_grad is False
    attributed = torch.ones(2)
    attributed.clone = attributed.detach = lambda: torch.full((2,), SECRET)
    assert plain(attributed, "x").tolist() == [1.0, 1.0]


class Liar(type):
    """Classes that claim to be the class of texts."""

    def __eq__(cls, other):
        return other is str

    def __hash__(cls):
        return hash(str)


class TensorLiar(type(torch.Tensor)):
    """Classes of tensors that claim to be the class of tensors."""

    def __eq__(cls, other):
        return other is torch.Tensor

    def __hash__(cls):
        return hash(torch.Tensor)


class Nameless(type):
    """Classes that fail when their name is read."""

    __name__ = property(lambda cls: 1 / 0)


def claiming(kind):
    """An object that tells ``isinstance`` that it is of another class."""
    return type(f"Claims{kind.__name__}", (), {"__class__": property(lambda self: kind)})()


@pytest.mark.parametrize(
    "value",
    [
        object(),
        *(claiming(kind) for kind in (dict, list, str, int, float, torch.Tensor)),
        {claiming(str): 1},
        Liar("Text", (), {})(),
        {"a": Liar("Entry", (), {})()},
        torch.ones(2).as_subclass(TensorLiar("Dense", (torch.Tensor,), {})),
        {7: 1},
        {"a": OtherMapping({"b": 1})},
        {"a": {1, 2}},
        torch.ones(2).to_sparse(),
        torch.ones(2, device="meta"),
        torch.ones(2).as_subclass(type("Odd", (torch.Tensor,), {})),
    ],
    ids=lambda value: type(value).__name__,
)
def test_other_types_are_refused(value):
    with pytest.raises(MessageError):
        plain(value, "the message")


def test_all_values_lie_equally_deep():
    def within(value, collections):
        for number in range(collections):
            value = {"a": value} if number % 2 else [value]
        return value

    for value in (1, StatefulText("a", "b"), torch.ones(2)):
        plain(within(value, MAX_DEPTH - 1), "the message")
        with pytest.raises(MessageError, match="nested too deeply"):
            plain(within(value, MAX_DEPTH), "the message")


def test_a_tensor_without_the_memory_of_its_shape_is_refused():
    hollow = torch.ones(1000)
    hollow.untyped_storage().resize_(0)
    with pytest.raises(MessageError, match="less memory than its shape needs"):
        plain(hollow, "the message")
    for whole in (torch.ones(3, 4).t(), torch.ones(5)[2:], torch.ones(1).expand(4), torch.ones(0), torch.tensor(1.0)):
        assert torch.equal(plain(whole, "the message"), whole)


def test_a_class_that_hides_its_name_is_refused():
    nameless = Nameless("Odd", (), {})()
    for value in (nameless, {nameless: 1}):
        with pytest.raises(MessageError, match="Odd"):
            plain(value, "the message")


def test_what_contains_itself_is_refused():
    endless = {}
    endless["a"] = endless
    with pytest.raises(MessageError, match="nested too deeply"):
        plain(endless, "the message")


def test_the_server_reads_once_as_well(site):
    reply = good_reply(site)
    metrics = StatefulDict({"validation.f1": 0.5}, {"validation.f1": 1e300})
    reply["DXO"]["data"]["metrics"].data = metrics
    assert decode_result(reply, site.asked).metrics == {"validation.f1": 0.5}
