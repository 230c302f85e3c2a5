"""What a user writes around any of Flower, FLARE and a plain loop: a site's images, its training and the test."""

import csv
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from network import Network
from PIL import Image
from torch import Tensor
from torch.nn.functional import cross_entropy

CLASSES = ("round", "irregular", "ring", "clustered")


def load(folder: str, site: int, split: str) -> tuple[Tensor, Tensor]:
    with open(Path(folder) / "manifest.csv", newline="") as stream:
        records = [row for row in csv.DictReader(stream) if row["site"] == f"site-{site}" and row["split"] == split]
    pixels = np.stack([np.asarray(Image.open(Path(folder) / record["image"])) for record in records])
    labels = torch.tensor([CLASSES.index(record["label"]) for record in records])
    images = torch.from_numpy(pixels).permute(0, 3, 1, 2).div(255)
    return images.contiguous(memory_format=torch.channels_last), labels


def train(network: Network, images: Tensor, labels: Tensor, steps: int, batch: int = 16) -> float:
    network.train()
    optimizer = torch.optim.Adam(network.parameters(), lr=0.0003, fused=True)
    batches: list[Tensor] = []
    for _ in range(steps):
        batches = batches or list(torch.randperm(len(images)).split(batch))
        rows = batches.pop(0)
        loss = cross_entropy(network(images[rows]), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


@torch.no_grad()
def accuracy(network: Network, folder: str, sites: Iterable[int]) -> float:
    network.eval()
    right = []
    for site in sites:
        images, labels = load(folder, site, "test")
        right.append(network(images).argmax(1) == labels)
    return torch.cat(right).float().mean().item()
