"""The model card: what a model is, what it was trained on, how good it was on whom, and what it must not be used for.

Mitchell et al., "Model Cards for Model Reporting", FAT* 2019. It travels beside the weights, as JSON for machines.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from grandrounds import __version__
from grandrounds.models.registry import architecture_fingerprint
from grandrounds.protocol.problem import Problem
from grandrounds.reporting.model import Report
from grandrounds.reporting.run import Run

NOT_STATED = "not stated: ask the sites before the model is passed on"
INTENDED = (
    "Research on federated training. Not a medical device: it has not been tested on other hospitals, devices or patients "
    "than those named here."
)


def model_card(
    report: Report, run: Run, state: Mapping[str, Tensor], licence: str | None, digest: str
) -> dict[str, Any]:
    """Everything that must be known of a model, as plain values.

    Args:
        report: on the run, possibly among others.
        run: whose model it is.
        state: the model's ``state_dict``.
        licence: of the data that it was trained on.
        digest: SHA-256 of the weights' file, in hexadecimal.
    """
    problem = Problem.from_dict(run.problem)
    scores = report.scores[run.name].to_json(run.classes)
    return {
        "name": run.name,
        "intended_use": INTENDED,
        "weights": {
            "sha256": digest,
            "architecture_fingerprint": architecture_fingerprint(state),
            "parameters": sum(value.numel() for value in state.values() if value.is_floating_point()),
        },
        "architecture": {
            "backbone": problem.backbone,
            "norm": problem.norm,
            "dropout": problem.dropout,
            "dropout_at": problem.dropout_at,
        },
        "classes": list(run.classes),
        "preprocessing": preprocessing(problem),
        "training": {
            "method": run.method,
            "seed": run.seed,
            "rounds": run.rounds_done,
            "selected": dict(run.selected),
            "initial_weights": "imagenet"
            if problem.weights == "imagenet"
            else ("file" if problem.weights else "random"),
        },
        "data": {
            "data_set": problem.dataset,
            "licence": licence or NOT_STATED,
            "sites": len(run.sites),
            "communities": sorted(set(run.communities.values())),
            "rounds_by_site": dict(run.contributions),
        },
        "metrics": {"case": run.unit, "mean_over_sites": scores["mean"], "pooled": scores["pooled"]},
        "privacy": [
            {"site": spent.site, "protects": spent.unit, "epsilon": spent.epsilon, "delta": spent.delta}
            for spent in run.spent
        ],
        "distrust": list(report.doubts[run.name]),
        "versions": {**run.versions, "exported_by": __version__},
    }


def preprocessing(problem: Problem) -> dict[str, Any]:
    """What must be done to an image before the model sees it."""
    return {
        "channels": problem.channels,
        "size": [problem.image_size, problem.image_size],
        "resize": "bilinear with antialiasing, both sides, aspect not kept",
        "intensity": "8 bit, divided by 255; no mean and no deviation",
        "layout": "batch, channels, height, width; float32 in [0, 1]",
        "output": "logits; softmax gives probabilities in the order of the classes",
    }
