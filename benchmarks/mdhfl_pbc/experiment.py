"""Four hospitals with different networks and noisy labels, on blood cells (PBC Barcelona).

Half of the data set is the public pool, without labels. The other half is divided between four sites of equal size with
different classes (Dirichlet, 0.5) and one common test set. At all noise rates of a seed the images are the same. No round
is chosen by scores: the report has the last round and the mean of the last five.

Methods with the same loss start from the same networks: one pre-training on the local labels for each loss, kind of noise
and seed. FedDF, whose networks come from the server, pre-trains in its first round. With ``heads`` in the configuration,
sites train different heads on one frozen network, and each run pre-trains for itself.
"""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.experiment import Experiment, Predicted, Row, Run, read_predictions, tests_of
from grandrounds.data.partition.schemes import make_partition
from grandrounds.data.site import CONFIG_NAME, PUBLIC_NAME
from grandrounds.deployment.jobs import Job, load_job
from grandrounds.deployment.presets import parsed, with_preset
from grandrounds.deployment.simulate import choose_sites, simulate
from grandrounds.evaluation.confusion import confusion_matrix
from grandrounds.evaluation.metrics import site_metrics
from grandrounds.federation.site.features import VARIABLE
from grandrounds.files import write_json
from grandrounds.protocol.names import SERVER
from grandrounds.protocol.tasks import SINGLE

LOSSES = ("pretrain_loss", "alignment_loss", "loss")


class Custom(Experiment):
    """Sites that start from pre-trained networks of their own; predictions of all sites on one test set."""

    def partition(self, row: Row) -> tuple[Path, dict[str, Any]]:
        """A folder for each row, because rows change what their sites start from."""
        folder = self.run_folder(row) / "sites"
        choices = self.partition_choices(row)
        return folder, make_partition(root=self.root, out=folder, seed=row.seed, overwrite=True, **choices)

    def simulated(self, row: Row, sites_dir: Path, partition: dict[str, Any]) -> Run:
        """Give the server its public images and the sites their networks, then simulate."""
        sites, problem = choose_sites(None, sites_dir)
        job = self.job(row, problem)
        _give_to_server(sites_dir)
        place, heads = sites_dir.with_name("run"), self.configuration.get("heads")
        if heads:
            os.environ.setdefault(VARIABLE, str(self.workspace / "features"))
            _set_models({site: {"head": head} for site, head in heads.items()}, sites_dir)
        elif "exchange" in self.method(row)["groups"]:
            networks = self._pretrained(row, job, sites, sites_dir).absolute()
            start = {site: {"weights": str(networks / site / "own.pt"), "intensities": "scaled"} for site in sites}
            _set_models(start, sites_dir)
        return Run(row, job, place, sites_dir, partition, sites, simulate(job, place, sites, sites_dir=sites_dir))

    def _pretrained(self, row: Row, job: Job, sites: list[str], sites_dir: Path) -> Path:
        """The folder of networks trained on the sites' labels with the job's loss; made once, also by parallel rows."""
        loss = job.options("executor")["loss"]
        place = self.workspace / "pretrained" / f"{row.setting}_{loss}_{row.seed}"
        place.mkdir(parents=True, exist_ok=True)
        alone = load_job("mdhfl")
        alone.options("problem").update(job.options("problem"))
        common = [*self.configuration["common"], *self.setting(row).get("options", [])]
        options = [*common, *self.configuration["groups"]["pretraining"], f"executor.loss={loss}"]
        with (place / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            alone = with_preset(alone, "local", parsed(alone, [*options, f"controller.seed={row.seed}"]))
            simulate(alone, place / "run", sites, sites_dir=sites_dir)
        return place / "run" / "state" / alone.run_name

    def measures(self, run: Run) -> dict[str, Any]:
        """Scores of the last rounds, of the sites' ensemble, confusion matrices and losses."""
        classes, rounds, answers = run.partition["classes"], run.summary["rounds"], _answers(run)
        files = {path.parent.name: path for path in sorted((run.place / "state").glob("*/*/predictions_own.csv"))}
        predicted = {site: read_predictions(path, classes) for site, path in files.items()}
        return {
            "classes": classes,
            "backbones": {site: entry["facts"]["backbone"] for site, entry in run.summary["registered"].items()},
            "test": tests_of(run.summary),
            "last_rounds": _scores(answers, "test."),
            "aligned_rounds": _scores(answers, "aligned."),
            "ensemble": ensemble(predicted),
            "confusion": {
                site: confusion_matrix(found.labels, found.decided, len(classes)).tolist()
                for site, found in predicted.items()
            },
            "losses": {
                site: {n: {name: round(found[name], 5) for name in LOSSES if name in found} for n, found in own.items()}
                for site, own in answers.items()
            },
            **{name: {e["round"]: e[name] for e in rounds if name in e} for name in ("soft_label_entropy", "weights")},
            "manifests": {site: content["sha256"] for site, content in run.partition["sites"].items()},
            "partition": self.partition_choices(run.row),
        }


def _set_models(models: dict[str, dict[str, str]], sites_dir: Path) -> None:
    """Let each site choose its network itself."""
    for site, model in models.items():
        path = sites_dir / site / CONFIG_NAME
        content = json.loads(path.read_text())
        [cells] = content["datasets"].keys() - {PUBLIC_NAME}
        write_json(path, content | {"models": {cells: model}})


def _give_to_server(sites_dir: Path) -> None:
    """Let the server have the public images that every site has; FedDF distils there."""
    site = min(sites_dir.glob(f"site-*/{CONFIG_NAME}"))
    public = json.loads(site.read_text())["datasets"][PUBLIC_NAME]
    location = {**public, "manifest": str((site.parent / public["manifest"]).absolute())}
    write_json(sites_dir / SERVER / CONFIG_NAME, {"datasets": {PUBLIC_NAME: location}})


def _answers(run: Run) -> dict[str, dict[int, dict[str, float]]]:
    """By site and round, the metrics of its answers."""
    found: dict[str, dict[int, dict[str, float]]] = {}
    for event in run.events("answer"):
        found.setdefault(event["site"], {})[event["round"]] = event["metrics"]
    return found


def _scores(answers: dict[str, dict[int, dict[str, float]]], prefix: str) -> dict[str, dict[int, dict[str, float]]]:
    """By site and round, the test scores at the round's end (``test.``) or right after alignment (``aligned.``)."""
    found: dict[str, dict[int, dict[str, float]]] = {}
    for site, rounds in answers.items():
        for number, metrics in rounds.items():
            scores = {name.removeprefix(prefix): value for name, value in metrics.items() if name.startswith(prefix)}
            if scores:
                found.setdefault(site, {})[number] = scores
    return found


def ensemble(predicted: dict[str, Predicted]) -> dict[str, float]:
    """Scores of the mean of all sites' predictions, which no site has."""
    labels = next(iter(predicted.values())).labels
    if any(not np.array_equal(labels, others) for others, *_ in predicted.values()):
        raise ValueError("the sites have different test images, and an ensemble needs the same")
    return site_metrics(SINGLE, labels, np.mean([found.probabilities for found in predicted.values()], axis=0))
