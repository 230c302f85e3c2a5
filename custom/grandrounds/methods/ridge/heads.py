"""The head that follows from sums of other sites than those it was solved for."""

from __future__ import annotations

from torch import Tensor

from grandrounds.models.closed_form.solve import standardised
from grandrounds.models.closed_form.sums import Sums
from grandrounds.models.depths import DepthHead
from grandrounds.protocol.messages import State
from grandrounds.protocol.task import Task


def head_of_sums(own: State, sums: Sums, solved: Tensor, kind: Task, correction: float) -> State:
    """The state of a head that was solved from other sums, at the temperature of a head.

    Args:
        own: state of the head.
        sums: of labelled images.
        solved: their solution.
        kind: what labels are.
        correction: how far the classes' shares are taken out of the scores, see :meth:`Task.centre_and_offset`.
    """
    classes, features = own["linear.weight"].shape
    head = DepthHead(features, classes, 0.0)
    head.load_state_dict(own)
    temperature = float(head.temperature)
    centre, offset = kind.centre_and_offset(sums.targets[-1] / sums.weight, correction)
    weights, bias, shift, scale = standardised(solved, sums)
    head.set_linear(weights, bias + offset / temperature - centre, shift, scale, temperature)
    return head.state_dict()
