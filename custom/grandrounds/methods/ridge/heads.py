"""The head that follows from sums of other sites than those it was solved for."""

from __future__ import annotations

from grandrounds.models.closed_form.solve import solve, standardised
from grandrounds.models.closed_form.sums import Sums
from grandrounds.models.depths import DepthHead
from grandrounds.protocol.messages import State
from grandrounds.protocol.task import Task


def head_of_sums(own: State, sums: Sums, penalty: float, kind: Task, correction: float) -> State:
    """The state of a head that is solved from other sums, at the temperature of a head.

    Args:
        own: state of the head.
        sums: of labelled images.
        penalty: of ridge regression.
        kind: what labels are.
        correction: how far the classes' shares are taken out of the scores, see :meth:`Task.centre_and_offset`.
    """
    classes, features = own["linear.weight"].shape
    head = DepthHead(features, classes, 0.0)
    head.load_state_dict(own)
    temperature = float(head.temperature)
    centre, offset = kind.centre_and_offset(sums.targets[-1] / sums.weight, correction)
    weights, bias, shift, scale = standardised(solve(sums, penalty), sums)
    head.set_linear(weights, bias + offset / temperature - centre, shift, scale, temperature)
    return head.state_dict()
