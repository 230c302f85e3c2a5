"""A site without labels refuses an invalid relation matrix from the server."""

import math
import re

import pytest
import torch
from small_site import network_of

from grandrounds.errors import MessageError
from grandrounds.methods.fedirm.executor import FedIRMExecutor
from grandrounds.protocol.messages import GLOBAL, Payload

QUARTER, COUNTS = torch.full((4, 4), 0.25), torch.ones(4, dtype=torch.int64)


def with_row(*values):
    return torch.cat([QUARTER[:3], torch.tensor([values])])


@pytest.mark.parametrize(
    ("relation", "message"),
    [
        ({"matrix": with_row(math.nan, 0.5, 0.25, 0.25), "support": COUNTS}, "row 3 of the relation matrix"),
        ({"matrix": with_row(0.5, 0.5, 0.25, 0.25), "support": COUNTS}, "row 3 .* sums to 1.5, expected 1"),
        ({"matrix": torch.full((5, 5), 0.2), "support": torch.ones(5)}, re.escape("must have shape (4, 4)")),
        ({"matrix": QUARTER}, "support"),
    ],
)
def test_an_invalid_matrix_from_the_server_is_refused(context, relation, message):
    payload = Payload(4, {"labelled": False}, {GLOBAL: network_of().state_dict(), "relation": relation})
    with pytest.raises(MessageError, match=f"the server's relation matrix cannot be used: .*{message}"):
        FedIRMExecutor(device="cpu").train(payload, context)
