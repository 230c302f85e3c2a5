r"""FedALA: each site learns how much of the global model it takes over (Zhang et al., AAAI 2023).

Before it trains, a site moves its own model of the round before, :math:`\Theta_i`, towards the global model :math:`\Theta`:

.. math:: \hat\Theta_i = \Theta_i + (\Theta - \Theta_i) \odot W_i

:math:`W_i` is one for the lower layers. For the last ``adapted_layers`` it is learnt on a share of the site's images:

.. math:: W_i \leftarrow \mathrm{clip}_{[0, 1]}(W_i - \eta \, \nabla_{\hat\Theta_i} L \odot (\Theta - \Theta_i))

The site sends what it has trained from :math:`\hat\Theta_i`, and the server averages as FedAvg does. Where the paper's code
learns the weights until they converge, ``first_epochs`` bounds the passes of the first time; batch norm keeps the
statistics that were received meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from torch import Tensor, nn

import grandrounds as gr
from grandrounds.evaluation.history import RunHistory, training_curves
from grandrounds.federation.site.context import SiteContext
from grandrounds.federation.site.store import SiteStore, copy_to_cpu
from grandrounds.methods.supervised.controller import FedAvgController
from grandrounds.methods.supervised.executor import SupervisedExecutor
from grandrounds.methods.supervised.training import rows_to_learn, train_supervised
from grandrounds.options import ABOVE_ZERO, Min, Options, Range
from grandrounds.plotting import Drawing, rounds_figure
from grandrounds.protocol.messages import Payload, Result, State

OWN, WEIGHTS, SHARE = "own_model", "global_weights", "global_share"


@dataclass(frozen=True)
class AdaptiveOptions(Options):
    """How a site learns what to take over from the global model."""

    adapted_layers: Annotated[int, "p, the number of last layers whose weights are learnt", Min(1)] = 1
    weight_rate: Annotated[float, "eta, the learning rate of the weights", ABOVE_ZERO] = 1.0
    weight_images: Annotated[
        float, "s, the share of the labelled images that the weights are learnt on", Range(0, 1, open_minimum=True)
    ] = 0.8
    first_epochs: Annotated[int, "passes over these images the first time; later there is one", Min(1)] = 5


def aggregate(own: Tensor, received: Tensor, weight: Tensor) -> Tensor:
    """Move a site's own values towards the received ones, ``own + (received - own) * weight``; all of one shape."""
    return own + (received - own) * weight


def learnt_weight(weight: Tensor, gradient: Tensor, own: Tensor, received: Tensor, rate: float) -> Tensor:
    """One step of the weights; the gradient is that of the loss in the aggregated values. All of one shape."""
    return (weight - rate * gradient * (received - own)).clamp(0, 1)


def last_layers(network: nn.Module, count: int) -> list[str]:
    """Names of the parameters of the last layers that have some and are trained."""
    layers = [
        [
            f"{layer}.{name}" if layer else name
            for name, value in one.named_parameters(recurse=False)
            if value.requires_grad
        ]
        for layer, one in network.named_modules()
    ]
    return [name for names in [names for names in layers if names][-count:] for name in names]


def figures(history: RunHistory) -> list[Drawing]:
    """The mean weight of the global model at each site, over the rounds."""
    picture = rounds_figure(
        training_curves(history.events, history.sites, SHARE),
        history.sites,
        "mean weight of the global model",
        "What the sites take over",
        top=1.02,
    )
    caption = "1: the site takes the last layers of the global model; 0: it keeps its own."
    return [Drawing("global_share", picture, "What the sites take over", caption)] if picture else []


@gr.register_method(
    "fedala",
    controller=FedAvgController,
    summary="each site learns how much of the global model it takes over (personalised)",
    paper="Zhang et al., AAAI 2023",
    presets={"all_layers": {"executor": {"adapted_layers": 1000}}},
    figures=figures,
)
class FedAlaExecutor(SupervisedExecutor):
    """Supervised training that starts from a learnt mixture of the site's own and the global model."""

    adaptive: AdaptiveOptions
    models = ("shared",)

    def train(self, payload: Payload, context: SiteContext) -> Result:
        """Mix, train, and keep the trained model for the next round."""
        network = self.starting_model(payload, context)
        shares = self._mix(network, context) if OWN in self.kept else {}
        optimizer = self.make_optimizer(network, self.training.learning_rate, self.training.algorithm)
        metrics = train_supervised(network, optimizer, context, self.training)
        self.kept[OWN] = copy_to_cpu(network.state_dict())
        return self.finish(payload, network, optimizer, {**metrics, **shares})

    def tested_models(self, payload: Payload, context: SiteContext, store: SiteStore) -> dict[str, State]:
        """The selected global model, and the site's own one of the last round."""
        models = {"common": self.starting_state(payload, context)}
        return models | ({"own_last": self.kept[OWN]} if OWN in self.kept else {})

    def _mix(self, network: nn.Module, context: SiteContext) -> dict[str, float]:
        """Learn the weights and load the mixture into the network, which has the global model."""
        names, options = last_layers(network, self.adaptive.adapted_layers), self.adaptive
        parameters = {name: network.get_parameter(name) for name in names}
        received = {name: value.detach().clone() for name, value in parameters.items()}
        own = {name: self.kept[OWN][name].to(context.device) for name in names}
        first = WEIGHTS not in self.kept
        kept: Mapping[str, Tensor] = {} if first else self.kept[WEIGHTS]
        weights = {
            name: kept[name].to(context.device) if name in kept else torch.ones_like(own[name]) for name in names
        }
        generator = context.generator("FedALA's weights")
        rows = rows_to_learn(context, self.training)
        rows = generator.permutation(rows)[: max(1, round(options.weight_images * len(rows)))]
        network.eval()
        for _ in range(options.first_epochs if first else 1):
            for batch in np.array_split(generator.permutation(rows), -(-len(rows) // self.training.batch_size)):
                context.check_abort()
                _load(parameters, own, received, weights)
                labels = context.labels(batch)
                with context.autocast():
                    loss = context.problem.kind.loss(network(context.views(batch, "none")), labels)
                gradients = torch.autograd.grad(loss, list(parameters.values()))
                for name, gradient in zip(names, gradients, strict=True):
                    weights[name] = learnt_weight(
                        weights[name], gradient, own[name], received[name], options.weight_rate
                    )
        _load(parameters, own, received, weights)
        network.train()
        self.kept[WEIGHTS] = {name: weight.cpu() for name, weight in weights.items()}
        return {SHARE: float(torch.cat([weight.flatten() for weight in weights.values()]).mean())}


@torch.no_grad()
def _load(
    parameters: Mapping[str, nn.Parameter],
    own: Mapping[str, Tensor],
    received: Mapping[str, Tensor],
    weights: Mapping[str, Tensor],
) -> None:
    for name, parameter in parameters.items():
        parameter.copy_(aggregate(own[name], received[name], weights[name]))
