"""Fed-Align-CL between devices, malignant against benign, beside its baselines and ablations.

All rows of a seed have the same images at the same sites and start from the same weights. ``single`` trains one model per
site on that site's images (tested at the other sites it is the row Cross), ``mix`` trains one model on all images, the
other rows are federations. All rows have the same number of iterations on the same number of images. Two models of a run
are tested: that of the last round, and that with the lowest validation loss, as in the paper.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.experiment import Experiment, Row, Run, mean_of, site_data
from benchmarks.fed_align_cl_ham10000.measures import curve_areas, embed, separability
from benchmarks.plug_in import published_data
from grandrounds.data.families import OF_PLUGIN
from grandrounds.data.manifest import Record, read_manifest
from grandrounds.data.partition.files import read_partition, write_partition
from grandrounds.data.partition.schemes import make_partition
from grandrounds.data.site import locate_dataset
from grandrounds.deployment.simulate import choose_sites, simulate
from grandrounds.models.trained import trained_models
from grandrounds.protocol.problem import Problem
from grandrounds.seeding import numpy_generator

POOLED, MODELS = "pooled", ("last", "selected")
CURRICULUM = ("forgotten", "moved_forward")
LOSSES = ("loss", "loss_alignment", "loss_discriminator", "validation.log_loss")


class Custom(Experiment):
    """A row has a model per site, one of all images, or a federation."""

    def record(self, row: Row) -> dict[str, Any]:
        """The models of a row, each with its scores at all sites."""
        sites_dir, together = self._partitions(row)
        names = self.setting(row).get("sites") or choose_sites(None, sites_dir)[0]
        training = self.method(row)["training"]
        alone, everything = {site: [site] for site in names}, {POOLED: [POOLED]}
        groups = {"alone": alone, "pooled": everything, "federated": {"federation": names}}[training]
        folder = together if training == "pooled" else sites_dir
        runs = {name: self._trained(row, folder, group) for name, group in groups.items()}
        first = next(iter(runs.values()))
        circumstances = self.circumstances(first)
        return {
            **self.labels(row),
            "sites": names,
            "models": {name: self._model(run, sites_dir, names) for name, run in runs.items()},
            "options": {"problem": first.job.options("problem"), **circumstances["options"]},
            "start": circumstances["options"].get("weights"),
            "versions": circumstances["versions"],
            "machine": circumstances["machine"],
        }

    def _trained(self, row: Row, sites_dir: Path, group: list[str]) -> Run:
        """One federation, or one site alone."""
        job = self.job(row, choose_sites(None, sites_dir)[1])
        place = self._place(row, group)
        return Run(row, job, place, sites_dir, {}, group, simulate(job, place, group, sites_dir=sites_dir))

    def _place(self, row: Row, group: list[str]) -> Path:
        return self.run_folder(row) / "-".join(group)

    def _model(self, run: Run, sites_dir: Path, names: list[str]) -> dict[str, Any]:
        # With local normalisation each site has a model of its own, that of the last round.
        local = run.job.options("executor")["averaged"] != "all"
        models = MODELS[:1] if local else self.configuration.get("models", MODELS)
        tested = run.sites if local else names
        scores = {model: self._measured(run, model, sites_dir, tested, local) for model in models}
        rounds = run.metrics()
        return {
            "scores": scores,
            "selected": run.summary["selected"],
            "losses": {name: [mean_of(found, name, 5) for found in rounds.values()] for name in LOSSES},
            "curriculum": {name: [mean_of(found, name, 1) for found in rounds.values()] for name in CURRICULUM},
            "bytes": run.summary["bytes"],
            "seconds": run.summary["seconds"],
        }

    def _measured(self, run: Run, model: str, sites_dir: Path, names: list[str], local: bool) -> dict[str, Any]:
        """Areas under the curves at each site, and the separation of the sites in the model's embeddings."""
        spec = Problem.from_dict(run.job.options("problem")).model_spec(pretrained=False)
        model_of = trained_models(spec, run.place / "results" / f"{model}.pt", run.row.seed)
        parts, truth, groups, by_site = [], [], [], {}
        for site in names:
            data = site_data(run.job, site, sites_dir)
            network = model_of((data.images, data.rows("train")))
            if local:
                network.load_state_dict({**network.state_dict(), **_own_entries(run, site)})
            rows = data.rows("test")
            found, scores = embed(network, data.images, rows)
            by_site[site] = _areas(data.labels[rows], scores)
            parts.append(found)
            truth.append(data.labels[rows])
            groups += [data.groups[row] for row in rows]
        where, labels = np.repeat(names, list(map(len, truth))), np.concatenate(truth)
        embeddings = np.concatenate(parts)
        separation = separability(embeddings, where, labels, np.array(groups))
        norms = np.linalg.norm(embeddings, axis=1)
        return {
            "sites": by_site,
            "layers": {"embedding": separation},
            "norm": [float(norms.mean()), float(norms.max())],
        }

    def _partitions(self, row: Row) -> tuple[Path, Path]:
        """The sites' images, and the same images at one site; where the setting asks for it, some are left out."""
        choices = self.partition_choices(row)
        if choices["dataset"] in OF_PLUGIN:
            published_data()
        if choices.get("simulated_vendors"):
            choices["simulated_vendors"] = self.workspace / f"vendors_{row.seed}"
        folder = self.workspace / f"sites_{row.seed}"
        made = make_partition(root=self.root, out=folder, seed=row.seed, **choices)
        names = choose_sites(None, folder)[0]
        shared = {
            "images_root": locate_dataset(names[0], made["dataset_name"], [folder]).root,
            "classes": made["classes"],
            "description": {"seed": row.seed},
            **({"preprocess": made["preprocess"]} if "preprocess" in made else {}),
        }
        records = {site: list(read_manifest(folder / site / "manifest.csv")) for site in names}
        share = self.setting(row).get("malignant_share")
        if share is not None:
            records = {site: _thinned(own, share, row.seed, site) for site, own in records.items()}
            folder = self.workspace / f"sites_{row.setting}_{row.seed}"
            write_partition(records, folder, made["dataset_name"], **shared)
        together = self.workspace / f"pooled_{row.setting}_{row.seed}"
        kept = self.setting(row).get("sites") or list(records)
        pooled = {POOLED: [record for site in kept for record in records[site]]}
        write_partition(pooled, together, made["dataset_name"], **shared)
        read_partition(folder)
        return folder, together


def _areas(labels: np.ndarray, scores: Sequence[float] | np.ndarray) -> dict[str, float]:
    return {**curve_areas(labels, scores), "images": len(labels), "malignant": int((labels == 1).sum())}


def _own_entries(run: Run, site: str) -> dict[str, Tensor]:
    """The entries of the last round's model that a site has not sent."""
    path = max(run.place.glob(f"state/*/{site}/state/round_*.pt"))
    kept: dict[str, Tensor] = torch.load(path, map_location="cpu", weights_only=True)["content"]["local"]
    return kept


def _thinned(records: list[Record], share: float, seed: int, site: str) -> list[Record]:
    """Leave out training images of a class, drawn at random, until this share is malignant."""
    train = [record for record in records if record.split == "train"]
    malignant, benign = ([r for r in train if (r.label == "malignant") == wanted] for wanted in (True, False))
    most = min(len(malignant), round(len(benign) * share / (1 - share)))
    least = min(len(benign), round(most * (1 - share) / share))
    generator = numpy_generator(seed, "thinned", site)
    kept: set[str] = set()
    for own, count in ((malignant, most), (benign, least)):
        kept |= {own[index].image for index in generator.permutation(len(own))[:count]}
    return [record for record in records if record.split != "train" or record.image in kept]
