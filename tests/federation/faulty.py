"""Parties that go wrong on purpose; jobs name them by their class paths."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from nvflare.apis.dxo import DataKind, from_shareable
from nvflare.apis.event_type import EventType
from nvflare.apis.filter import Filter
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.app_common.app_constant import AppConstants
from torch import Tensor

from grandrounds.federation.site.context import SiteContext
from grandrounds.federation.site.store import SiteStore
from grandrounds.methods.fedperl.executor import FedPerlExecutor
from grandrounds.methods.fixmatch.executor import FixMatchExecutor
from grandrounds.protocol.messages import Payload, Release, ReleaseKind, Result, model_update
from grandrounds.protocol.wire import decode_payload


class FaultyExecutor(FedPerlExecutor):
    """FedPerl that goes wrong at one site in some rounds.

    Args:
        at: the site.
        rounds: in which.
        how: ``nan`` and ``infinite`` spoil the update, ``absurd`` multiplies it by 1e30, ``undeclared`` adds a release,
            ``boast`` claims a score beyond a perfect one, ``raise`` fails.
        options: of FedPerl.
    """

    def __init__(self, *, at: str, rounds: list[int], how: str, **options: Any) -> None:
        super().__init__(**options)
        self.at = at
        self.faulty_rounds = rounds
        self.how = how

    def train(self, payload: Payload, context: SiteContext) -> Result:
        """Train, and spoil the result."""
        if context.site != self.at or context.round_number not in self.faulty_rounds:
            return super().train(payload, context)
        if self.how == "raise":
            raise RuntimeError("patient 4711 has a broken file")
        result = super().train(payload, context)
        if self.how == "undeclared":
            images = Release(ReleaseKind.EMBEDDINGS, {"x": torch.zeros(2)})
            return replace(result, releases={**result.releases, "images": images})
        if self.how == "boast":
            return result
        assert result.update is not None
        if self.how == "absurd":
            return replace(result, releases=model_update({name: value * 1e30 for name, value in result.update.items()}))
        spoilt = {name: value.clone() for name, value in result.update.items()}
        spoilt["head.weight"][0, 0] = float("nan") if self.how == "nan" else float("inf")
        return replace(result, releases=model_update(spoilt))

    def _score(self, payload: Payload, context: SiteContext, store: SiteStore) -> Result:
        scored = super()._score(payload, context, store)
        if self.how != "boast" or context.site != self.at or context.round_number not in self.faulty_rounds:
            return scored
        return replace(scored, metrics={**scored.metrics, "validation.log_likelihood": 1.0})


class Unusable(FedPerlExecutor):
    """Every site fails in some rounds, as with a model whose values are absurd.

    Args:
        trigger: the file whose presence makes them fail.
        rounds: in which.
        options: of FedPerl.
    """

    def __init__(self, *, trigger: str, rounds: list[int], **options: Any) -> None:
        super().__init__(**options)
        self.trigger = trigger
        self.faulty_rounds = rounds

    def train(self, payload: Payload, context: SiteContext) -> Result:
        """Train, or fail."""
        if context.round_number in self.faulty_rounds and Path(self.trigger).exists():
            raise RuntimeError("the loss is not finite")
        return super().train(payload, context)


class ShapeShifter(FedPerlExecutor):
    """One site drops an entry of its update, as a site with another model would."""

    def train(self, payload: Payload, context: SiteContext) -> Result:
        """Train, and lose an entry."""
        result = super().train(payload, context)
        if context.site != "site-2" or result.update is None:
            return result
        fewer = {name: value for name, value in result.update.items() if name != "head.bias"}
        return replace(result, releases=model_update(fewer))


class SpoilsWhatItGot(FixMatchExecutor):
    """Changes the tensors of its task in place once it has answered."""

    def train(self, payload: Payload, context: SiteContext) -> Result:
        """Train, then spoil."""
        result = super().train(payload, context)
        for value in payload.parts["global"].values():
            value.zero_()
        return result


class ChangeUpdate(Filter):
    """Changes every entry of the update, in fresh tensors; subclasses say how."""

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """FLARE's hook."""
        if shareable.get_return_code() != ReturnCode.OK:
            return shareable
        dxo = from_shareable(shareable)
        for part in dxo.data.values():
            if part.data_kind == DataKind.WEIGHT_DIFF:
                part.data = {name: self.changed(value) for name, value in part.data.items()}
        return dxo.update_shareable(shareable)

    def changed(self, value: Tensor) -> Tensor:
        """What becomes of an entry."""
        raise NotImplementedError


class ScaleUpdate(ChangeUpdate):
    """Multiplies every floating entry of the update.

    Args:
        factor: by this; NaN spoils it on the way.
    """

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def changed(self, value: Tensor) -> Tensor:
        """Scaled, where it has fractions."""
        return value * self.factor if value.is_floating_point() else value


class CoarseUpdate(ChangeUpdate):
    """Makes every entry a multiple of 1/128 between -1 and 1, which every half precision can hold."""

    def changed(self, value: Tensor) -> Tensor:
        """Rounded."""
        return (value * 128).round().clamp(-128, 128) / 128


class RefuseFrom(Filter):
    """Lets nothing pass from a round on.

    Args:
        round_number: the first one.
    """

    def __init__(self, round_number: int) -> None:
        super().__init__()
        self.round_number = round_number

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """Raise."""
        if decode_payload(fl_ctx.get_prop(FLContextKey.TASK_DATA)).round_number >= self.round_number:
            raise RuntimeError("nothing leaves this house")
        return shareable


class FailsOnce(FLComponent):
    """One site's training fails in one round.

    Args:
        at: the site.
        round_number: the round.
    """

    def __init__(self, at: str, round_number: int) -> None:
        super().__init__()
        self.at, self.round_number = at, round_number

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Spoil the answer of the round."""
        if event_type != EventType.AFTER_TASK_EXECUTION or fl_ctx.get_identity_name() != self.at:
            return
        if decode_payload(fl_ctx.get_prop(FLContextKey.TASK_DATA)).round_number == self.round_number:
            fl_ctx.get_prop(FLContextKey.TASK_RESULT).set_return_code(ReturnCode.EXECUTION_EXCEPTION)


class Refuse(Filter):
    """Lets nothing pass."""

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """Raise."""
        raise RuntimeError("nothing leaves this house")


class Diary(FLComponent):
    """Writes down who heard of which event.

    Args:
        path: of the file.
    """

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Append a line."""
        with open(self.path, "a", encoding="utf-8") as stream:
            stream.write(f"{fl_ctx.get_identity_name()} {event_type}\n")


class Interrupt(FLComponent):
    """Stops the process at an event of a round, as a power cut would.

    Args:
        event: FLARE's name of the event.
        round_number: the round.
        party: the site, or ``server``.
        hard: leave without any farewell.
    """

    def __init__(self, event: str, round_number: int, party: str = "server", hard: bool = False) -> None:
        super().__init__()
        self.event = event
        self.round_number = round_number
        self.party = party
        self.hard = hard

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Stop."""
        if event_type != self.event or fl_ctx.get_identity_name() != self.party:
            return
        if self._round(fl_ctx) != self.round_number:
            return
        if self.hard:
            import os

            os._exit(9)
        raise KeyboardInterrupt

    def _round(self, fl_ctx: FLContext) -> int:
        if self.party == "server":
            return int(fl_ctx.get_prop(AppConstants.CURRENT_ROUND))
        return decode_payload(fl_ctx.get_prop(FLContextKey.TASK_DATA)).round_number
