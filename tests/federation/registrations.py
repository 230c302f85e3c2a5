"""Parties that register themselves, listen, or go wrong on purpose; jobs name them by their class paths."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn

from grandrounds.errors import MessageError
from grandrounds.federation.site.context import SiteContext
from grandrounds.methods.fedirm.executor import FedIRMExecutor
from grandrounds.methods.supervised.controller import FedAvgController
from grandrounds.methods.supervised.executor import SupervisedExecutor
from grandrounds.protocol.messages import Payload, Registration, Release, ReleaseKind, Result


class AskingController(FedAvgController):
    """Federated averaging of the sites that call themselves even."""

    registrations: ClassVar[bool] = True

    def participants(self, well: list[str]) -> list[str]:
        """Those that are even."""
        return [site for site in well if self.registered[site].scalars["even"]]


class RegistersItself(SupervisedExecutor):
    """Says whether its number is even, and writes down that it was asked.

    Args:
        diary: file to write to.
        silent_until: rounds before this one in which site-4 fails to answer.
        options: of supervised training.
    """

    def __init__(self, *, diary: str, silent_until: int = 0, **options: Any) -> None:
        super().__init__(**options)
        self.diary = diary
        self.silent_until = silent_until

    def register(self, payload: Payload, context: SiteContext) -> Registration:
        """Even or odd."""
        if context.site == "site-4" and context.round_number < self.silent_until:
            raise RuntimeError("registration fails")
        with Path(self.diary).open("a") as stream:
            stream.write(f"{context.round_number} {context.site}\n")
        return Registration({"even": float(int(context.site[-1]) % 2 == 0)})


class ChoosyController(FedAvgController):
    """Sends each site its place, and refuses a site that returns another.

    Args:
        unwanted: the site.
        options: of federated averaging.
    """

    registrations: ClassVar[bool] = True

    def __init__(self, *, unwanted: str = "", **options: Any) -> None:
        super().__init__(**options)
        self.unwanted = unwanted

    def registration_for(self, site: str) -> Payload:
        """The site's name, as the server knows it."""
        return self.payload(place=f"of {site}")

    def check_registration(self, site: str, registration: Registration) -> None:
        """Refuse the unwanted site."""
        if registration.facts["digest"] != f"of {site}" or site == self.unwanted:
            raise MessageError(f"{site} has other public images")


class ReturnsItsPlace(SupervisedExecutor):
    """Answers with the place that the server has sent.

    Args:
        undeclared: the site that sends a fact that is not declared.
        options: of supervised training.
    """

    registration_facts: ClassVar[tuple[str, ...]] = ("digest",)

    def __init__(self, *, undeclared: str = "", **options: Any) -> None:
        super().__init__(**options)
        self.undeclared = undeclared

    def register(self, payload: Payload, context: SiteContext) -> Registration:
        """The place that the server has sent, and the number of public images."""
        secret = {"patient": "4711"} if context.site == self.undeclared else {}
        return Registration({"size": 3.0}, {"digest": payload.values["place"], **secret})


class ReadsPublicImages(SupervisedExecutor):
    """Trains, and reports how many images another data set has and how many of them have a known label."""

    def train(self, payload: Payload, context: SiteContext) -> Result:
        """Train, and look at the public images."""
        public = context.dataset("public")
        counts = {"public": float(len(public.names)), "public_known": float((public.labels >= 0).sum())}
        same = float(public is context.dataset("public"))
        result = super().train(payload, context)
        return replace(result, metrics={**result.metrics, **counts, "public_cached": same})


class Listener(FedIRMExecutor):
    """FedIRM that writes down what each site gets and the step size it takes.

    Args:
        diary: file to write to.
        options: of FedIRM.
    """

    def __init__(self, *, diary: str, **options: Any) -> None:
        super().__init__(**options)
        self.diary = diary

    def train(self, payload: Payload, context: SiteContext) -> Result:
        """Train, and write."""
        self._entry = {"round": context.round_number, "site": context.site}
        if "relation" in payload.parts:
            self._entry["target"] = payload.parts["relation"]["matrix"].tolist()
        result = super().train(payload, context)
        if "relation" in result.releases:
            self._entry |= {name: value.tolist() for name, value in result.releases["relation"].tensors.items()}
        with Path(self.diary).open("a") as stream:
            stream.write(json.dumps({**self._entry, "releases": sorted(result.releases)}) + "\n")
        return result

    def make_optimizer(self, network: nn.Module, learning_rate: float, *arguments: Any, **options: Any) -> Any:
        """Note the step size, and how many steps the optimizer has behind it."""
        optimizer = super().make_optimizer(network, learning_rate, *arguments, **options)
        states = [state["step"] for state in optimizer.state.values()]
        self._entry |= {"learning_rate": optimizer.param_groups[0]["lr"], "steps": float(states[0]) if states else 0.0}
        self._entry |= {name: optimizer.param_groups[0][name] for name in ("betas", "weight_decay")}
        return optimizer


class SpoiltRelation(FedIRMExecutor):
    """FedIRM of which one site's relation matrix is none.

    Args:
        at: the site.
        how: ``nan``, ``rows`` (they do not sum to one), ``classes`` (one more than there are), ``parts`` (no support),
            ``unasked`` (a site without labels sends one), ``fractions``.
        options: of FedIRM.
    """

    def __init__(self, *, at: str, how: str, **options: Any) -> None:
        super().__init__(**options)
        self.at = at
        self.how = how

    def train(self, payload: Payload, context: SiteContext) -> Result:
        """Train, and spoil the matrix."""
        result = super().train(payload, context)
        if context.site != self.at:
            return result
        matrix = torch.full((4, 4), 0.25)
        tensors = {"matrix": matrix, "support": torch.full((4,), 9)}
        if self.how == "nan":
            matrix[1, 1] = float("nan")
        elif self.how == "rows":
            matrix[1, 1] = 0.5
        elif self.how == "classes":
            tensors = {"matrix": torch.full((5, 5), 0.2), "support": torch.full((5,), 9)}
        elif self.how == "fractions":
            tensors["support"] = torch.full((4,), 9.5)
        elif self.how == "parts":
            del tensors["support"]
        return replace(result, releases={**result.releases, "relation": Release(ReleaseKind.CLASS_STATISTICS, tensors)})
