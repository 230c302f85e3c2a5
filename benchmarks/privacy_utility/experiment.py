"""The cost of a privacy budget: FedAvg, FedPerl and FedIRM on HAM10000 at epsilon 2, 8 and without a limit.

Every site has a policy and a ledger of its own, and its gate treats its messages. The epsilon of the table is that of the
ledgers, not the target. Two guarantees are compared: ``record`` hides one image by noise in every step of training;
``site`` hides all data of a site by noise on its clipped updates. The model of the last round is scored, because validation
scores would be a release without noise.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.experiment import Experiment, Row, Run, install_policy, pooled, predictions
from benchmarks.noise import min_noise_multiplier
from grandrounds.data.manifest import read_manifest
from grandrounds.data.site import locate_dataset
from grandrounds.deployment.jobs import Job
from grandrounds.deployment.presets import with_options
from grandrounds.deployment.simulate import choose_sites, simulate
from grandrounds.evaluation.history import validation_curves
from grandrounds.evaluation.metrics import site_metrics
from grandrounds.privacy.ledger.ledger import Ledger
from grandrounds.protocol.spending import Unit
from grandrounds.protocol.tasks import SINGLE

SHOWN = ("auc_macro", "balanced_accuracy")
MIN_SUPPORT = {"kind": "class_statistics", "name": "relation", "treatment": "minimum_support", "minimum": 10}


class Custom(Experiment):
    """Rows are named ``setting_method_protection``."""

    def method(self, row: Row) -> dict[str, Any]:
        """The method without the protection."""
        content: dict[str, Any] = self.configuration["methods"][row.method.partition("_")[0]]
        return content

    def labels(self, row: Row) -> dict[str, Any]:
        """Method and protection apart."""
        method, _, protection = row.method.partition("_")
        return {"setting": row.setting, "method": method, "protection": protection, "seed": row.seed}

    def simulated(self, row: Row, sites_dir: Path, partition: dict[str, Any]) -> Run:
        """Simulate, with each site's policy and ledger in a private run, which is not resumed: it would spend more."""
        sites, problem = choose_sites(None, sites_dir)
        place = self.run_folder(row)
        if self.setting(row)["epsilon"] is not None:
            shutil.rmtree(place, ignore_errors=True)
        job, self._multiplier = self._protected(row, self.job(row, problem), sites, sites_dir, place)
        return Run(row, job, place, sites_dir, partition, sites, simulate(job, place, sites, sites_dir=sites_dir))

    def measures(self, run: Run) -> dict[str, Any]:
        """What the ledgers report, and the scores of the last model."""
        test = pooled(predictions(run, run.place / "results" / "last.pt")["test"])
        return {
            "sites": len(run.sites),
            "epsilon_aimed_at": self.setting(run.row)["epsilon"],
            "delta": self.configuration["delta"],
            "noise_multiplier": self._multiplier,
            "budget": self._budget(run),
            "contributions": run.summary["contributions"],
            "scores": site_metrics(SINGLE, *test),
            "validation": {name: _mean_curve(run, name) for name in SHOWN},
        }

    def _protected(
        self, row: Row, job: Job, sites: list[str], sites_dir: Path, place: Path
    ) -> tuple[Job, float | None]:
        """The job as the policies require it, and the noise multiplier."""
        epsilon, delta = self.setting(row)["epsilon"], self.configuration["delta"]
        if epsilon is None:
            return job, None
        protection = self.labels(row)["protection"]
        chosen, rounds = self.configuration["protections"][protection], job.options("controller")["rounds"]
        treatment: dict[str, Any]
        if protection == "record":
            # The smallest site draws each of its images most often, and spends most.
            executor = job.options("executor")
            rate = executor["batch_size"] / min(_labelled_images(site, job, sites_dir) for site in sites)
            multiplier = min_noise_multiplier(epsilon, delta, rounds * executor["steps"], rate)
            noise = [f"executor.record_noise_multiplier={multiplier}", f"executor.record_clip={chosen['clip']}"]
            job = with_options(job, noise)
            treatment = {"treatment": "record_level", "min_noise_multiplier": multiplier}
        else:
            multiplier = min_noise_multiplier(epsilon, delta, rounds)
            treatment = {"treatment": "clip_and_noise", "clip": chosen["clip"], "noise_multiplier": multiplier}
        for site in sites:
            _install(place / "flare" / site / "local", site, chosen["unit"], delta, treatment)
        return job, multiplier

    def _budget(self, run: Run) -> dict[str, Any] | None:
        """The largest epsilon of the sites' ledgers, by two methods, and the number of releases that it counts."""
        protection = self.labels(run.row)["protection"]
        if protection == "none":
            return None
        unit, delta = Unit(self.configuration["protections"][protection]["unit"]), self.configuration["delta"]
        ledgers = [Ledger(run.place / "flare" / site / "local" / "privacy", site).content() for site in run.sites]
        (dataset,) = {name for ledger in ledgers for name in ledger.datasets}
        return {
            "unit": unit.value,
            "epsilon": max(ledger.spent(dataset, delta, unit) for ledger in ledgers),
            "bound": max(ledger.spent_bound(dataset, delta, unit) for ledger in ledgers),
            "releases": max(len(ledger.bookings) for ledger in ledgers),
        }


def _mean_curve(run: Run, metric: str) -> dict[int, float]:
    """Mean validation score of the sites, by the round that made the model; empty if no model was scored."""
    curves = validation_curves(run.events("answer"), run.sites, metric).values()
    rounds = sorted(set().union(*curves))
    return {number: round(fmean(curve[number] for curve in curves if number in curve), 4) for number in rounds}


def _labelled_images(site: str, job: Job, sites_dir: Path) -> int:
    location = locate_dataset(site, job.options("problem")["dataset"], [sites_dir])
    return sum(record.split == "train" and record.labelled for record in read_manifest(location.manifest))


def _install(local: Path, site: str, unit: str, delta: float, treatment: dict[str, Any]) -> None:
    """A policy for updates so treated, counts of training images, and FedIRM's matrices, which are not in the budget."""
    releases = [{"kind": "model_update", "name": "update", **treatment}, {**MIN_SUPPORT, "outside_budget": True}]
    numbers = [{"name": name, "part": "train", "minimum_support": 2} for name in ("samples", "labelled")]
    install_policy(local, site, {"unit": unit, "delta": delta, "releases": releases, "scalars": numbers})
