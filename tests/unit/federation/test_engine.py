"""Parties in one process: who hears of an event, and what a message shares with its sender."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.shareable import Shareable

from grandrounds.federation import engine
from grandrounds.federation.engine import InProcessCommunicator, Party, _with_own_tensors


class Overriding(FLComponent):
    def handle_event(self, event_type, fl_ctx):
        pass


def registered():
    component = FLComponent()
    component.register_event_handler("wanted", lambda event_type, fl_ctx: None)
    return component


@pytest.mark.parametrize(
    ("component", "heard"),
    [(FLComponent(), set()), (registered(), {"wanted"}), (Overriding(), {"wanted", "other"})],
)
def test_an_event_is_heard_by_those_that_can_do_something(component, heard):
    party = SimpleNamespace(handlers=[FLComponent(), component])
    assert {event for event in ("wanted", "other") if Party.has_handler(party, event)} == heard


def test_a_carried_message_shares_no_tensor_and_no_dictionary():
    sent = torch.tensor([1.0, 2.0])
    part = DXO(DataKind.WEIGHTS, data={"w": sent})
    message = DXO(DataKind.COLLECTION, data={"global": part}, meta={"values": {"seed": 3}}).to_shareable()
    carried = _with_own_tensors(message)
    assert type(carried) is Shareable
    found = from_shareable(carried)
    found.data["global"].data["w"].zero_()
    found.meta["values"]["seed"] = 4
    carried.set_header("new", 1)
    assert sent.tolist() == [1.0, 2.0]
    assert from_shareable(message).meta["values"] == {"seed": 3}
    assert message.get_header("new") is None


@pytest.mark.parametrize(("filters", "scope"), [({}, None), ({"train": ["rounding"]}, None), ({}, "public")])
def test_an_answer_is_copied_before_a_filter_of_the_server_sees_it(monkeypatch, filters, scope):
    """Without a filter the server's own copy is enough; what a site gets is a copy in any case."""
    monkeypatch.setattr(engine, "apply_filters", lambda name, message, *_: message)
    sent, kept, came = torch.ones(2), torch.ones(3), []
    site = SimpleNamespace(work=lambda task, message, server: came.append(message["w"]) or Shareable({"w": kept}))
    runner = SimpleNamespace(task_data_filters={}, task_result_filters=filters)
    server = SimpleNamespace(
        config=SimpleNamespace(runner_config=runner), scope=scope, new_context=lambda: nullcontext(SimpleNamespace())
    )
    received = lambda client_task, fl_ctx: came.append(client_task.result["w"])  # noqa: E731
    task = SimpleNamespace(
        name="train", data=Shareable({"w": sent}), result_received_cb=received, completion_status=None
    )
    communicator = InProcessCommunicator(server, {"site-1": site}, wire=False)
    communicator.send(task, SimpleNamespace(get_all_public_props=dict), targets=["site-1"])
    assert [one.tolist() for one in came] == [sent.tolist(), kept.tolist()]
    assert came[0] is not sent
    assert (came[1] is kept) is (not filters and scope is None)
