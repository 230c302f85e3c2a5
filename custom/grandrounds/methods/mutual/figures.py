"""The figure of mutual learning: the entropy of the mean soft labels over the rounds."""

from __future__ import annotations

import math

from grandrounds.evaluation.history import RunHistory, round_curve
from grandrounds.plotting import Drawing, rounds_figure


def figures(history: RunHistory) -> list[Drawing]:
    """The entropy of the soft labels, if the run's server records it."""
    entropy = {"mean over public images": round_curve(history.events, "soft_label_entropy")}
    picture = rounds_figure(entropy, list(entropy), "entropy, nats", "Soft labels")
    if picture is None:
        return []
    if history.classes:
        picture.axes[0].axhline(math.log(len(history.classes)), color="black", linewidth=1, linestyle=":")
    caption = (
        "Mean entropy of the sites' average prediction for the public images. At the dotted line predictions are uniform "
        "and carry no information."
    )
    return [Drawing("soft_labels", picture, "Entropy of the soft labels over rounds", caption)]
