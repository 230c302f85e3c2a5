"""What a site does to a task before its filters, to an answer after them, and its answers to a task that has failed."""

from __future__ import annotations

import os

import torch
from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply

from grandrounds.errors import GrandRoundsError, MessageError
from grandrounds.federation.encrypted import find_key
from grandrounds.federation.encrypted_model import ENCRYPTION, decrypt_task, encrypt_update, is_encrypted
from grandrounds.federation.site.isolation import WorkerLost, WorkerStopped
from grandrounds.protocol.messages import GLOBAL, REASON_HEADER, TRAIN, Payload, Result, floating_entries, model_update
from grandrounds.protocol.paths import DETAILS_VARIABLE, key_folders
from grandrounds.protocol.precision import round_updates

UNREADABLE = "__grandrounds_unreadable__"
"""In a context of FLARE's: why the task's models could not be decrypted."""


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


def decrypt_models(event_type: str, fl_ctx: FLContext) -> None:
    """A handler of FLARE's events that decrypts the models of a task, before any filter looks at them."""
    task, unreadable = fl_ctx.get_prop(FLContextKey.TASK_DATA), None
    if isinstance(task, Shareable) and is_encrypted(task):
        try:
            decrypt_task(task, find_key(key_folders(fl_ctx), fl_ctx.get_identity_name()))
        except Exception as error:
            unreadable = error
    fl_ctx.set_prop(UNREADABLE, unreadable, private=True, sticky=False)


def require_readable(fl_ctx: FLContext) -> None:
    """Raise what prevented :func:`decrypt_models`, if anything did."""
    error: Exception | None = fl_ctx.get_prop(UNREADABLE)
    if error is not None:
        raise error


def prepare_update(reply: Shareable, payload: Payload, fl_ctx: FLContext) -> Exception | None:
    """Round or encrypt the update of an answer as the task asks, after all filters.

    Returns:
        What prevented it; the answer has then become a refusal, so that nothing leaves unencrypted.
    """
    try:
        round_updates(reply, payload.values)
        if ENCRYPTION in payload.values:
            site = fl_ctx.get_identity_name()
            encrypt_update(reply, payload, site, find_key(key_folders(fl_ctx), site))
    except Exception as error:
        reply.clear()
        reply.update(refusal(TRAIN, error))
        return error
    return None
