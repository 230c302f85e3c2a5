"""Parties in one process: who hears of an event, and what a message shares with its sender."""

from types import SimpleNamespace

import pytest
import torch
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.shareable import Shareable

from grandrounds.federation.engine import _with_own_tensors
from grandrounds.federation.parties import Party


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
