"""The mean teacher: a slow average of a site's own models, whose predictions the student stays close to.

Tarvainen & Valpola, "Mean teachers are better role models", NeurIPS 2017. FedIRM's text compares two passes of one
network; the authors' code has a mean teacher that stays at its site from round to round.
"""

from __future__ import annotations

import copy
from typing import TypeVar

import torch
from torch import nn

from grandrounds.checks import require_at_least, require_fraction

ALPHA = 0.99

Network = TypeVar("Network", bound=nn.Module)


def ema_alpha(step: int, limit: float = ALPHA) -> float:
    r"""How much of itself the teacher keeps in a step: first a plain mean of the students, then an exponential one.

    .. math:: \alpha_k = \min\big(1 - 1 / (k + 1), \alpha\big)

    Args:
        step: :math:`k`, the site's steps before this one, at least zero. In step 0 the teacher becomes the student.
        limit: :math:`\alpha`, in [0, 1].

    Returns:
        In [0, ``limit``].

    Raises:
        ValueError: if an argument is out of range.

    Example:
        >>> [ema_alpha(step) for step in (0, 1, 9, 99, 500)]
        [0.0, 0.5, 0.9, 0.99, 0.99]
    """
    require_at_least(step, 0, "step")
    require_fraction(limit, "limit")
    return min(1 - 1 / (step + 1), limit)


def make_teacher(student: Network) -> Network:
    """A copy of the student that no optimizer changes, in the same mode: its dropout is on while the student trains."""
    return copy.deepcopy(student).requires_grad_(False)


@torch.no_grad()
def update_teacher(teacher: nn.Module, student: nn.Module, alpha: float) -> None:
    r"""Move the teacher towards the student, in place.

    .. math:: \theta' \leftarrow \alpha \, \theta' + (1 - \alpha) \, \theta

    Parameters only: in training mode the teacher normalises by the batch, and its running statistics are read by nobody.

    Args:
        teacher: as made by :func:`make_teacher`.
        student: the network that has just been trained for a step; it is not changed.
        alpha: :math:`\alpha`, in [0, 1]; 0 copies the student bit for bit, 1 keeps the teacher.

    Raises:
        ValueError: if ``alpha`` is out of range, or the two differ in a parameter's name or shape.

    Example:
        >>> student = nn.Linear(1, 1)
        >>> teacher = make_teacher(student)
        >>> _ = teacher.weight.fill_(1.0), student.weight.data.fill_(3.0)
        >>> update_teacher(teacher, student, alpha=0.75)
        >>> teacher.weight.item()
        1.5
    """
    require_fraction(alpha, "alpha")
    theirs, ours = dict(student.named_parameters()), dict(teacher.named_parameters())
    different = [name for name in (*ours, *theirs) if name not in ours or name not in theirs]
    different += [name for name in ours if name in theirs and ours[name].shape != theirs[name].shape]
    if different:
        raise ValueError(f"teacher and student differ in parameter {different[0]}")
    for name, parameter in ours.items():
        parameter.lerp_(theirs[name], 1 - alpha)
