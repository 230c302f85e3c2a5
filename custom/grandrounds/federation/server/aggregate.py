"""What becomes of the contributions of a round: the types behind the option ``aggregation``.

An aggregator lives as long as the run. In each round it is opened for the sites that are asked, checks and takes in what
they answer, and is closed to the aggregate, from which the next model follows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from grandrounds.errors import ConfigurationError, MessageError
from grandrounds.options import ABOVE_ZERO, Options, Range
from grandrounds.protocol.messages import Result, State, floating_entries, require_like
from grandrounds.protocol.tensors import UpdatePrecision, apply_update, require_finite_tensors


@dataclass(frozen=True)
class Demands:
    """What a run asks of its aggregator.

    Attributes:
        precision: in which sites send updates.
        readers: what at the server reads single updates, each as a sentence such as "peers are single models".
    """

    precision: UpdatePrecision
    readers: Sequence[str] = ()


class UnmetDemands(ConfigurationError):
    """An aggregator cannot give what a run reads, so that another attempt of the same job ends in the same way."""


class Aggregator(ABC):
    """Takes in the contributions of a round's sites."""

    def require_possible(self, demands: Demands) -> None:
        """Refuse a run whose demands this aggregator cannot meet.

        Raises:
            UnmetDemands: naming the option.
        """

    @abstractmethod
    def open(self, sites: Iterable[str]) -> None:
        """Begin a round with these sites and discard what is left of the last round."""

    def check(self, site: str, result: Result, model: State) -> None:
        """Refuse a contribution that does not fit, without any other effect.

        Args:
            site: whose it is.
            result: its answer.
            model: the current one.

        Raises:
            MessageError: naming what is wrong.
        """
        if result.update is None:
            raise MessageError("the result has no update")
        require_like(result.update, floating_entries(model), "update")

    @abstractmethod
    def add(self, site: str, update: State, weight: float = 1.0) -> None:
        """Take one site's contribution, which has passed the check."""

    @abstractmethod
    def skip(self, site: str) -> None:
        """Note that a site will not contribute to this round."""

    @abstractmethod
    def close(self) -> dict[str, Tensor] | None:
        """The aggregate of what came, or None when nothing did; sites that are still awaited count as missing."""

    def shares(self) -> Mapping[str, float]:
        """How much of their updates was used, of the sites whose update had to be shortened in the round that was closed."""
        return {}

    def moved(self, start: State, aggregate: State) -> dict[str, Tensor]:
        """The model that an aggregate leads to from the one that the sites started from.

        Raises:
            MessageError: if it is not finite.
        """
        model = apply_update(start, aggregate)
        require_finite_tensors(model, "the model")
        return model

    def notes(self) -> dict[str, Any]:
        """What the record of the round says about contributions (plain JSON values)."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """What must survive from one round to the next."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore :meth:`state_dict`."""


@dataclass(frozen=True)
class ServerOptimizerOptions(Options):
    """How far the mean of the updates moves the model."""

    server_optimizer: Annotated[
        Literal["none", "momentum", "adam", "yogi"],
        "makes a step of a round's mean update: none takes it as it is; momentum is FedAvgM, adam FedAdam, yogi FedYogi",
    ] = "none"
    server_learning_rate: Annotated[float, "eta, of momentum, adam and yogi", ABOVE_ZERO] = 1.0
    server_momentum: Annotated[float, "beta_1, of momentum, adam and yogi", Range(0, 1, False, True)] = 0.9
    server_beta2: Annotated[float, "beta_2, of adam and yogi", Range(0, 1, False, True)] = 0.99
    server_adaptivity: Annotated[float, "tau, of adam and yogi: larger values adapt less", ABOVE_ZERO] = 1e-3
    average_decay: Annotated[
        float | None,
        "d, of a moving average of the global models, which is scored, selected and kept in their place; sites go on "
        "from the global model. null: no average",
        Range(0, 1, False, True),
    ] = None


class ServerOptimizer:
    r"""Makes the step of the global model from the mean update :math:`\Delta` of a round.

    .. math:: m \leftarrow \beta_1 m + \Delta, \quad x \leftarrow x + \eta m

    is momentum (Hsu et al., "Measuring the effects of non-identical data distribution for federated visual classification",
    2019, section 4). Adam and Yogi (Reddi et al., "Adaptive federated optimization", ICLR 2021, Algorithm 2, without bias
    correction, from :math:`m = 0, v = \tau^2`) are

    .. math::
        m \leftarrow \beta_1 m + (1 - \beta_1) \Delta, \quad x \leftarrow x + \eta \frac{m}{\sqrt{v} + \tau}, \\
        v \leftarrow \beta_2 v + (1 - \beta_2) \Delta^2 \quad\text{or}\quad
        v \leftarrow v - (1 - \beta_2) \Delta^2 \operatorname{sign}(v - \Delta^2)

    Args:
        options: which one.
        parameters: the names of what is trained; other entries, such as the statistics of batch norm, move by their mean.
    """

    def __init__(self, options: ServerOptimizerOptions, parameters: Iterable[str]) -> None:
        self._options = options
        self._parameters = frozenset(parameters)
        self._moments: dict[str, dict[str, Tensor]] = {"first": {}, "second": {}}

    def step(self, mean: State) -> dict[str, Tensor]:
        """What is added to the model, by name: shapes and types are those of the mean update."""
        if self._options.server_optimizer == "none":
            return dict(mean)
        return {name: self._step(name, delta) if name in self._parameters else delta for name, delta in mean.items()}

    def _step(self, name: str, delta: Tensor) -> Tensor:
        chosen, firsts = self._options, self._moments["first"]
        adaptive = chosen.server_optimizer != "momentum"
        share = 1 - chosen.server_momentum if adaptive else 1.0
        firsts[name] = chosen.server_momentum * firsts.get(name, torch.zeros_like(delta)) + share * delta
        move = firsts[name] / self._scale(name, delta.square()) if adaptive else firsts[name]
        return chosen.server_learning_rate * move

    def _scale(self, name: str, square: Tensor) -> Tensor:
        chosen, seconds = self._options, self._moments["second"]
        before = seconds.get(name, torch.full_like(square, chosen.server_adaptivity**2))
        towards = square - before if chosen.server_optimizer == "adam" else square * (square - before).sign()
        seconds[name] = before + (1 - chosen.server_beta2) * towards
        return seconds[name].sqrt() + chosen.server_adaptivity

    def state_dict(self) -> dict[str, Any]:
        """The moments."""
        return {kind: dict(values) for kind, values in self._moments.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore :meth:`state_dict`."""
        self._moments = {kind: dict(state[kind]) for kind in self._moments}


class ModelAverage:
    r"""A moving average of global models (Polyak and Juditsky, 1992; Tarvainen and Valpola, NeurIPS 2017).

    .. math:: \bar x_r = d_r \bar x_{r-1} + (1 - d_r) x_r, \quad d_r = \min(d, (r - 1) / r)

    so that it is the plain mean of the first models, and what they started from has no part in it.

    Args:
        decay: d, in [0, 1).

    Attributes:
        model: the average, with the entries and types of the models; empty before the first.

    Example:
        >>> average = ModelAverage(0.5)
        >>> for value in (1.0, 3.0, 6.0):
        ...     average.add({"weight": torch.tensor(value)})
        ...     print(float(average.model["weight"]))
        1.0
        2.0
        4.0
    """

    def __init__(self, decay: float) -> None:
        self._decay = decay
        self._models = 0
        self.model: State = {}

    def add(self, model: State) -> None:
        """Take in the model of a round; of entries that are not floating, such as counters, the newest stays."""
        self._models += 1
        share = max(1 / self._models, 1 - self._decay)
        self.model = {
            name: self.model[name].lerp(value, share) if self.model and value.is_floating_point() else value
            for name, value in model.items()
        }

    def state_dict(self) -> dict[str, Any]:
        """The average, and how many models are in it."""
        return {"models": self._models, "average": self.model}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore :meth:`state_dict`."""
        self._models, self.model = state["models"], state["average"]
