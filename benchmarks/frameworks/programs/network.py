"""The network of all programs."""

from torch import Tensor, nn


class Network(nn.Module):
    """Three convolutions and a linear layer: logits of four classes."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for before, after in ((3, 32), (32, 64), (64, 128)):
            layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(), nn.MaxPool2d(2)]
        self.layers = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 4))

    def forward(self, images: Tensor) -> Tensor:
        """Logits of images."""
        return self.layers(images)
