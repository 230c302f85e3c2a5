"""FedIRM on HAM10000: sites without labels, and the measures of a run.

All rows of a seed and grouping have the same ten sites with the same images; they differ in which sites have labels,
which take part, and the method. Scores are of all ten sites' test images together. The ``selected`` round and its
threshold are chosen with the labels of all sites' validation images; for ``labelled_choice`` the validation images of the
labelled sites choose both.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.experiment import Experiment, Row, Run, mean_of, pooled, predictions
from benchmarks.fedirm_ham10000.one_vs_rest import choose_threshold, macro, one_vs_rest
from grandrounds.evaluation.metrics import site_metrics
from grandrounds.methods.fedirm.figures import mean_of_rows
from grandrounds.protocol.tasks import SINGLE

DIAGNOSTICS = (
    *("kept", "matched_rows", "pseudo_label_accuracy", "relation_distance", "empty_batches", "relation_loss"),
    "consistency",
)
SHOWN_ROUNDS = 5


class Custom(Experiment):
    """The first sites have labels; scores are one against rest."""

    def sites(self, row: Row) -> int:
        """The labelled sites and so many of the others."""
        setting = self.setting(row)
        return int(setting["labelled"] + setting["unlabelled"])

    def labelled(self, row: Row) -> int:
        """How many sites have labels."""
        return self.sites(row) if self.method(row).get("all_labelled") else int(self.setting(row)["labelled"])

    def partition_choices(self, row: Row) -> dict[str, Any]:
        """Which sites have labels changes no image's site."""
        labelled = [f"site-{number}" for number in range(1, self.labelled(row) + 1)]
        return {**super().partition_choices(row), "scenario": "few_labels", "labelled_sites": labelled}

    def measures(self, run: Run) -> dict[str, Any]:
        """Scores, what the filter keeps, and relation matrices."""
        labelled, rounds = run.sites[: self.labelled(run.row)], run.metrics("kept")
        return {
            "classes": run.job.options("problem")["classes"],
            "labelled": labelled,
            "sites": run.sites,
            "selected": run.summary["selected"],
            "labelled_choice": run.summary["rounds"][-1]["labelled_choice"],
            "scores": _scores(run, labelled),
            "unlabelled_support": _own_support(run),
            "unlabelled": {
                "round": list(map(float, rounds)),
                **{name: [mean_of(sites, name, 5) for sites in rounds.values()] for name in DIAGNOSTICS},
            },
            "relations": _relations(run),
            "unsupported": run.summary["rounds"][-1].get("unsupported", []),
        }


def _scores(run: Run, labelled: list[str]) -> dict[str, Any]:
    """Scores of three models, with a threshold chosen on validation images."""
    models = {name: run.place / "results" / f"{name}.pt" for name in ("last", "selected")}
    kept = sorted(run.place.glob("state/*/server/parts/labelled_choice@*.pt"))
    models |= {"labelled_choice": kept[-1]} if kept else {}
    found: dict[str, Any] = {}
    for name, weights in models.items():
        predicted = predictions(run, weights, ("val", "test"))
        choosing = pooled(predicted["val"], labelled if name == "labelled_choice" else None)
        threshold, test = choose_threshold(*choosing[:2]), pooled(predicted["test"])
        found[name] = {
            "threshold": threshold,
            "one_vs_rest": {"validation": macro(one_vs_rest(*test[:2], threshold))._asdict()},
            **site_metrics(SINGLE, *test),
        }
    return found


def _relations(run: Run) -> dict[int, Any]:
    """Every fifth round's matrices: of the labelled sites, and the mean of the released ones of unlabelled sites."""
    found: dict[int, Any] = {}
    for event in run.events("relation"):
        if event["round"] % SHOWN_ROUNDS == 0 and "matrix" in event:
            own = list(event["pseudo_relations"].values())
            unlabelled = _mean_matrix(own) if own else None
            found[event["round"]] = {
                "labelled": _mean_matrix([event]), "support": event["support"], "unlabelled": unlabelled,
            }  # fmt: skip
    return found


def _mean_matrix(relations: list[dict[str, Any]]) -> list[list[float] | None]:
    columns = [[np.array(relation[name]) for relation in relations] for name in ("matrix", "support")]
    return [None if np.isnan(row).any() else row.round(6).tolist() for row in mean_of_rows(*columns)]


def _own_support(run: Run) -> dict[int, list[int]]:
    """Patients predicted with certainty for each class, over all unlabelled sites; -1 where every site withholds it."""
    found: dict[int, list[int]] = {}
    for event in run.events("relation"):
        if event["pseudo_relations"]:
            supports = np.array([one["support"] for one in event["pseudo_relations"].values()])
            shown = supports.clip(min=0).sum(axis=0)
            found[event["round"]] = np.where((supports < 0).all(axis=0), -1, shown).tolist()
    return found
