"""FedPerl's proof of concept on CIFAR-10 and Fashion-MNIST: Table 1 of the paper."""

from __future__ import annotations

import hashlib
import resource
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.experiment import Experiment, Row, Run, mean_of, pooled, predictions, tests_of
from benchmarks.fedperl_cifar10.division import make_fedmatch_partition


class Custom(Experiment):
    """FedMatch's division of the images, and accuracy over all test images."""

    def labels(self, row: Row) -> dict[str, Any]:
        """Method, distribution, seed and size."""
        setting = {name: self.setting(row)[name] for name in ("distribution", "size")}
        return {"method": row.method, "seed": row.seed, **setting}

    def partition(self, row: Row) -> tuple[Path, dict[str, Any]]:
        """FedMatch's clients; the images of all partitions are unpacked once."""
        choices, distribution = self.partition_choices(row), self.setting(row)["distribution"]
        folder = self.workspace / f"sites_{row.setting}_{row.seed}"
        choices |= {"root": self.root, "out": folder, "images": self.workspace / "images"}
        return folder, make_fedmatch_partition(**choices, distribution=distribution, seed=row.seed)

    def measures(self, run: Run) -> dict[str, Any]:
        """Accuracy of the selected and of the last model, and the course of the run in steps of ten rounds."""
        test = tests_of(run.summary).values()
        images = sum(scores["common.n"] for scores in test)
        last = pooled(predictions(run, run.place / "results" / "last.pt")["test"])
        return {
            "selected": run.summary["selected"],
            "accuracy": {
                "selected": sum(scores["common.accuracy"] * scores["common.n"] for scores in test) / images,
                "last": float((last.decided == last.labels).mean()),
            },
            "test_images": round(images),
            "validation": {event["round"]: round(event["mean"], 4) for event in run.events("score")},
            **{name: _by_decade(run, name) for name in ("accepted", "pseudo_label_accuracy")},
            "used_up": run.partition["used_up"],
            "manifests": _digest(run.partition["sites"]),
            "peak_memory_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        }

    def circumstances(self, run: Run) -> dict[str, Any]:
        """Traffic is summed over the sites, of which there may be a hundred."""
        totals = Counter[str]()
        for parts in run.summary["bytes"].values():
            totals.update(parts)
        return {**super().circumstances(run), "bytes": dict(sorted(totals.items()))}


def _by_decade(run: Run, name: str) -> dict[int, float | None]:
    decades: dict[int, list[dict[str, float]]] = {}
    for number, metrics in run.metrics(name).items():
        decades.setdefault((number + 9) // 10 * 10, []).extend(found for found in metrics if name in found)
    return {end: mean_of(found, name, 4) for end, found in sorted(decades.items())}


def _digest(sites: dict[str, dict[str, Any]]) -> str:
    """SHA-256 over the manifests' digests: equal if every site had the same manifest."""
    return hashlib.sha256("".join(f"{site} {sites[site]['sha256']}\n" for site in sorted(sites)).encode()).hexdigest()
