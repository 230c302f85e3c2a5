"""Train the network ``compact`` on CIFAR-10; runs start from its weights, as the papers' start from those of ImageNet.

python -m benchmarks.pretrain --out runs/fedperl_ham10000/start.pt
"""

from __future__ import annotations

import argparse
import io
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch.nn import functional as F

from benchmarks.experiment import DATA
from grandrounds.files import replacing
from grandrounds.models.registry import build_model
from grandrounds.protocol.problem import ModelSpec

BATCH, RATE = 128, 3e-3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cifar10", type=Path, default=DATA / "cifar10" / "cifar10_jpeg.npz")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--norm", choices=("batch", "group"), default="batch")
    parser.add_argument("--side", type=int, default=64, help="pixels that images are enlarged to")
    parser.add_argument("--epochs", type=int, default=8)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    train, train_labels = _read(arguments.cifar10, "train")
    test, test_labels = _read(arguments.cifar10, "test")
    network = build_model(ModelSpec("compact", 10, norm=arguments.norm), seed=0)
    optimizer = torch.optim.AdamW(network.parameters(), lr=RATE, weight_decay=1e-2)
    epochs = arguments.epochs
    steps, side = len(train) // BATCH, arguments.side
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=steps * epochs)
    for epoch in range(epochs):
        order = torch.randperm(len(train))
        for step in range(steps):
            rows = order[step * BATCH : (step + 1) * BATCH]
            loss = F.cross_entropy(network(_augmented(train[rows], side)), train_labels[rows], label_smoothing=0.1)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            schedule.step()
        print(f"epoch {epoch + 1}: test accuracy {_accuracy(network, test, test_labels, side):.3f}", flush=True)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    with replacing(arguments.out) as temporary:
        torch.save({"state_dict": network.state_dict(), "intensities": "scaled"}, temporary)


def _read(path: Path, split: str) -> tuple[torch.Tensor, torch.Tensor]:
    content = np.load(path)
    stream, offsets = content[f"{split}_jpeg"].tobytes(), content[f"{split}_offsets"]
    images = [np.asarray(Image.open(io.BytesIO(stream[begin:end]))) for begin, end in pairwise(offsets)]
    return torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2), torch.from_numpy(content[f"{split}_labels"]).long()


def _augmented(images: torch.Tensor, side: int) -> torch.Tensor:
    if torch.rand(()) < 0.5:
        images = images.flip(3)
    top, left = torch.randint(0, 9, (2,)).tolist()
    padded = F.pad(images.float() / 255, (4, 4, 4, 4), mode="reflect")
    return _enlarged(padded[:, :, top : top + 32, left : left + 32], side)


def _enlarged(images: torch.Tensor, side: int) -> torch.Tensor:
    larger = F.interpolate(images, size=(side, side), mode="bilinear", align_corners=False)
    return larger.contiguous(memory_format=torch.channels_last)


@torch.inference_mode()
def _accuracy(network: torch.nn.Module, images: torch.Tensor, labels: torch.Tensor, side: int) -> float:
    network.eval()
    found = [network(_enlarged(batch.float() / 255, side)).argmax(1) for batch in images.split(500)]
    network.train()
    return float((torch.cat(found) == labels).float().mean())


if __name__ == "__main__":
    main()
