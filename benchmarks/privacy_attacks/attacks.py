"""Two attacks on what a site sends: drawing its image again, and telling whether an image was trained on.

Gradient inversion is from Zhu et al., "Deep Leakage from Gradients", NeurIPS 2019, with the cosine distance of Geiping et
al., "Inverting Gradients", NeurIPS 2020, so that clipping alone is no defence. Membership inference is by the loss (Yeom
et al., "Privacy Risk in Machine Learning", CSF 2018). Both attackers know the model, and the first even the label.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn
from torch.nn import functional as F

CHANNELS = 12


class AttackedNetwork(nn.Module):
    """The small network of the first publication: without pooling, and smooth, so that its gradients tell most."""

    def __init__(self, classes: int, size: int) -> None:
        super().__init__()
        layers = [nn.Conv2d(3, CHANNELS, 5, padding=2, stride=2), nn.Sigmoid()]
        layers += [nn.Conv2d(CHANNELS, CHANNELS, 5, padding=2, stride=2), nn.Sigmoid()]
        layers += [nn.Conv2d(CHANNELS, CHANNELS, 5, padding=2), nn.Sigmoid()]
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Linear(CHANNELS * math.ceil(size / 4) ** 2, classes)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -0.5, 0.5)

    def forward(self, images: Tensor) -> Tensor:
        """Map images to logits."""
        logits: Tensor = self.classifier(self.features(images).flatten(1))
        return logits


def one_step_update(network: nn.Module, image: Tensor, label: Tensor) -> dict[str, Tensor]:
    """The update of one step of gradient descent on one image, with learning rate 1."""
    loss = F.cross_entropy(network(image[None]), label[None])
    gradients = torch.autograd.grad(loss, list(network.parameters()))
    return {name: -gradient for (name, _), gradient in zip(network.named_parameters(), gradients, strict=True)}


def invert(
    network: nn.Module, update: Mapping[str, Tensor], label: Tensor, size: int, iterations: int, seed: int
) -> Tensor:
    """The image whose update points most nearly into the direction of the one that was sent."""
    sent = torch.cat([-update[name].flatten() for name, _ in network.named_parameters()])
    sent = sent / sent.norm()
    guess = torch.rand(1, 3, size, size, generator=torch.Generator().manual_seed(seed)).requires_grad_(True)
    optimizer = torch.optim.LBFGS([guess], lr=1.0, max_iter=iterations, history_size=50, line_search_fn="strong_wolfe")

    def distance() -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(network(guess), label[None])
        flat = torch.cat(
            [g.flatten() for g in torch.autograd.grad(loss, list(network.parameters()), create_graph=True)]
        )
        away = (flat / flat.norm().clamp(min=1e-12) - sent).square().sum()
        away.backward()
        return away

    optimizer.step(distance)
    return guess.detach()[0].clamp(0, 1)


def similarity(image: Tensor, guess: Tensor) -> dict[str, float]:
    """How much of an image was found: the signal-to-noise ratio in dB, and the correlation of the pixels."""
    error = float((image - guess).square().mean())
    pair = torch.stack([image.flatten(), guess.flatten()])
    correlation = float(torch.corrcoef(pair)[0, 1])
    return {
        "psnr_db": round(-10 * math.log10(max(error, 1e-10)), 2),
        "correlation": round(correlation if math.isfinite(correlation) else 0.0, 3),
    }


@torch.inference_mode()
def membership(network: nn.Module, members: tuple[Tensor, Tensor], others: tuple[Tensor, Tensor]) -> dict[str, float]:
    """What the attacker gains: the area under the curve of minus the loss (0.5 is a guess), and the model's accuracy."""
    network.eval()
    losses, right = [], []
    for images, labels in (members, others):
        logits = network(images)
        losses.append(F.cross_entropy(logits, labels, reduction="none"))
        right.append(float((logits.argmax(dim=1) == labels).float().mean()))
    truth = [1] * len(losses[0]) + [0] * len(losses[1])
    return {
        "attack_auc": round(float(roc_auc_score(truth, (-torch.cat(losses)).tolist())), 3),
        "accuracy_members": round(right[0], 3),
        "accuracy_others": round(right[1], 3),
    }
