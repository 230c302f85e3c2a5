"""What an import found, used and left out, in lines for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from grandrounds.data.importing import account
from grandrounds.deployment.jobs import Job
from grandrounds.protocol.problem import TRAIN_ALL

SAVED_BY_FAST = "up to a quarter of the CPU time"
"""Of the README's first command, see benchmarks/inference."""


def account_lines(description: Mapping[str, Any]) -> list[str]:
    """The account of a partition of images of one's own; nothing for other partitions.

    Example:
        >>> imported = {"things": "files", "found": 9, "used": 9, "left_out": {}, "sizes": [[200, 150], [4000, 3000]]}
        >>> sites = {"A": {"images": {"train": 9}}}
        >>> for line in account_lines({"import": imported, "classes": ["x", "y"], "sites": sites}):
        ...     print(line)
        9 files found = 9 used + 0 left out
        2 classes (x, y) at 1 site (A); images of 200 x 150 to 4000 x 3000 pixels
    """
    content = description.get("import")
    if content is None:
        return []
    names = description.get("site_names", {})
    sites = [names.get(site, site) for site in description["sites"]]
    classes = description["classes"]
    first, last = ("x".join(map(str, size)).replace("x", " x ") for size in content.get("sizes", [[], []]))
    sizes = f"; images of {first} to {last} pixels" if first else ""
    return [
        account(content),
        *content.get("named", ()),
        *(f"{note[0].upper()}{note[1:]}" for note in content.get("notes", ())),
        f"{len(classes)} classes ({', '.join(classes)}) at {len(sites)} site{'' if len(sites) == 1 else 's'} "
        f"({', '.join(sites)}){sizes}",
    ]


def start_line(job: Job, description: Mapping[str, Any], sites: Sequence[str], device: str) -> str:
    """What a run starts with: images, size, network, weights, labels, device, engine; the first line that it prints."""
    counts = [description["sites"][site] for site in sites] if description else []
    train = sum(count["images"]["train"] for count in counts)
    labelled = sum(count["labelled"] for count in counts)
    labels = "all of them labelled" if labelled == train else f"{labelled} of them labelled"
    images = f"{sum(sum(count['images'].values()) for count in counts)} images at" if counts else "synthetic images at"
    training = f" ({train} for training, {labels})" if counts else ""
    preset = job.options("controller").get("preset")
    preset = f"; preset {preset}" if preset else ""
    return (
        f"{images} {len(sites)} site{'' if len(sites) == 1 else 's'}{training}; {job.network}{preset}; device {device}"
        f"{_quicker(job, device)}"
    )


def _quicker(job: Job, device: str) -> str:
    """What another engine of frozen layers would save, where it computes this network."""
    from grandrounds.models.inference.forward import EXACT, FORMS, form_named

    problem, engine = job.options("problem"), FORMS["fast"]
    frozen = problem["trainable"] != TRAIN_ALL and problem["backbone"] in engine.networks and device == "cpu"
    exact = form_named(job.options("executor").get("inference", EXACT)).equal_bits
    return f"; executor.inference=fast (extra fast) would save {SAVED_BY_FAST}" if frozen and exact else ""
