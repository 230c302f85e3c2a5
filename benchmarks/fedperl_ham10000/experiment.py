"""FedPerl on HAM10000: what is measured of a run beside its test scores."""

from __future__ import annotations

from typing import Any

from benchmarks.experiment import Experiment, Run, mean_of, read_predictions
from grandrounds.evaluation.confidence import confidence_metrics
from grandrounds.evaluation.confusion import confusion_matrix


class Custom(Experiment):
    """Peers and pseudo-labels round by round; confusion matrices by model and site."""

    def measures(self, run: Run) -> dict[str, Any]:
        """What the report needs."""
        sites = run.partition["sites"]
        return {
            **super().measures(run),
            "predictions": _predictions(run),
            "pseudo_labels": {
                name: [mean_of(sites, name, 4) for sites in run.metrics("accepted").values()]
                for name in ("accepted", "pseudo_label_accuracy")
            },
            **{name: _by_round(run, name) for name in ("peers", "candidates", "peer_validation")},
            "devices": {site: _device(sites[site]["sources"]) for site in run.sites},
            "manifests": {site: content["sha256"] for site, content in sites.items()},
        }


def _predictions(run: Run) -> dict[str, dict[str, Any]]:
    """Calibration error and confusion matrix of each site's test predictions, by model (``own``, ``common``) and site."""
    found: dict[str, dict[str, Any]] = {}
    classes = run.partition["classes"]
    for path in sorted((run.place / "state").glob("*/*/predictions_*.csv")):
        labels, probabilities, decided = read_predictions(path, classes)
        ece = round(confidence_metrics(labels, probabilities)["ece"], 6)
        confusion = confusion_matrix(labels, decided, len(classes)).tolist()
        model = path.stem.removeprefix("predictions_")
        found.setdefault(model, {})[path.parent.name] = {"ece": ece, "confusion": confusion}
    return found


def _by_round(run: Run, name: str) -> dict[int, Any]:
    return {entry["round"]: entry[name] for entry in run.summary["rounds"] if entry.get(name)}


def _device(sources: dict[str, int]) -> str:
    return max(sources, key=lambda name: sources[name]).removeprefix("HAM10000/")
