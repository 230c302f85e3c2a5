"""Answers of a site to a task that has failed."""

from __future__ import annotations

import os

import torch
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import Shareable, make_reply

from grandrounds.errors import GrandRoundsError, MessageError
from grandrounds.federation.paths import DETAILS_VARIABLE
from grandrounds.federation.site.isolation import WorkerLost, WorkerStopped
from grandrounds.protocol.messages import GLOBAL, REASON_HEADER, Payload, Result, floating_entries, model_update


def zero_update(payload: Payload) -> Result:
    """The result in place of a training that has failed where the site's gate hides failures."""
    received = floating_entries(payload.parts[GLOBAL])
    return Result(model_update({name: torch.zeros_like(value) for name, value in received.items()}), {}, 1)


def refusal(task: str, error: Exception) -> Shareable:
    """An error reply. Its reason leaves the site, and most messages may name files or patients of the site."""
    shared = isinstance(error, MessageError | WorkerLost | WorkerStopped) or (
        isinstance(error, GrandRoundsError) and DETAILS_VARIABLE in os.environ
    )
    reason = str(error) if shared else f"{type(error).__name__} in task {task}: see the site's log"
    return make_reply(ReturnCode.EXECUTION_EXCEPTION, headers={REASON_HEADER: reason})
