"""Two attacks on a site's message: the reconstruction of its image, and the inference whether an image was trained on.

Gradient inversion: Zhu et al., "Deep Leakage from Gradients", NeurIPS 2019, with the cosine distance of Geiping et al.,
"Inverting Gradients", NeurIPS 2020, so that clipping alone is no defence. Membership inference by the loss: Yeom et al.,
"Privacy Risk in Machine Learning", CSF 2018. Both attackers know the model, and the first also knows the label.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn
from torch.nn import functional as F

CHANNELS = 12


def attacked_network(classes: int, size: int) -> nn.Sequential:
    """The small network of the first publication: without pooling, and smooth, so that its gradients tell most."""
    layers: list[nn.Module] = []
    for channels, stride in ((3, 2), (CHANNELS, 2), (CHANNELS, 1)):
        layers += [nn.Conv2d(channels, CHANNELS, 5, padding=2, stride=stride), nn.Sigmoid()]
    network = nn.Sequential(*layers, nn.Flatten(), nn.Linear(CHANNELS * math.ceil(size / 4) ** 2, classes))
    for parameter in network.parameters():
        nn.init.uniform_(parameter, -0.5, 0.5)
    return network


def one_step_update(network: nn.Module, image: Tensor, label: Tensor) -> dict[str, Tensor]:
    """The update of one step of gradient descent on one image, with learning rate 1."""
    loss = F.cross_entropy(network(image[None]), label[None])
    gradients = torch.autograd.grad(loss, list(network.parameters()))
    return {name: -gradient for (name, _), gradient in zip(network.named_parameters(), gradients, strict=True)}


def invert(
    network: nn.Module, update: Mapping[str, Tensor], label: Tensor, size: int, iterations: int, seed: int
) -> Tensor:
    """The image whose update has most nearly the direction of the one that was sent."""
    sent = F.normalize(torch.cat([-update[name].flatten() for name, _ in network.named_parameters()]), dim=0)
    guess = torch.rand(1, 3, size, size, generator=torch.Generator().manual_seed(seed)).requires_grad_(True)
    optimizer = torch.optim.LBFGS([guess], lr=1.0, max_iter=iterations, history_size=50, line_search_fn="strong_wolfe")

    def distance() -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(network(guess), label[None])
        gradients = torch.autograd.grad(loss, list(network.parameters()), create_graph=True)
        away = (F.normalize(torch.cat([g.flatten() for g in gradients]), dim=0) - sent).square().sum()
        away.backward()
        return away

    optimizer.step(distance)
    return guess.detach()[0].clamp(0, 1)


def similarity(image: Tensor, guess: Tensor) -> dict[str, float]:
    """Peak signal-to-noise ratio in dB, and correlation of the pixels."""
    error = float(F.mse_loss(guess, image))
    correlation = float(torch.corrcoef(torch.stack([image.flatten(), guess.flatten()]))[0, 1])
    return {
        "psnr_db": round(-10 * math.log10(max(error, 1e-10)), 2),
        "correlation": round(correlation if math.isfinite(correlation) else 0.0, 3),
    }


@torch.inference_mode()
def membership(network: nn.Module, members: tuple[Tensor, Tensor], others: tuple[Tensor, Tensor]) -> dict[str, float]:
    """Area under the ROC curve of minus the loss (0.5 is a guess), and the model's accuracy."""
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
