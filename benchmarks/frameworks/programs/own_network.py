"""The network under a name of this package."""

from network import Network

import grandrounds as gr

NAME = "three_convolutions"


@gr.register_backbone(NAME, stride=8)
def build(classes: int, channels: int) -> Network:
    return Network()
