"""Experiments: the rows of a ``configuration.json`` are simulated in this process; each writes a JSON file.

A configuration lists ``settings`` (data, seeds, methods) and ``methods`` (job and options). A *row* is a method in a
setting with a seed. If a benchmark has a partition or measures of its own, its ``experiment.py`` has a class ``Custom``
that derives from :class:`Experiment`.

A row's options come from these sources, and a later one overrides an earlier one: ``common``, the setting's ``options``,
the groups that the method names (``groups`` of the configuration, then of the setting), the method's ``options``, the
seed, and the command line.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch

from benchmarks.origins import code, strangers
from benchmarks.plug_in import published_data
from benchmarks.processes import cpu_seconds, machine
from grandrounds.data.families import OF_PLUGIN
from grandrounds.data.partition.schemes import make_partition
from grandrounds.data.site import SiteData, load_site_data, locate_dataset
from grandrounds.deployment.jobs import Job, load_job
from grandrounds.deployment.presets import parsed, with_preset
from grandrounds.deployment.reference import computed_start, ridge_row, starts_from_ridge
from grandrounds.deployment.simulate import Execution, choose_sites, simulate
from grandrounds.errors import ConfigurationError
from grandrounds.evaluation.prediction import predict, tensors_of
from grandrounds.federation.server.record import read_events
from grandrounds.federation.site.features import VARIABLE as FEATURES
from grandrounds.files import read_json_object, write_json
from grandrounds.models.trained import trained_models
from grandrounds.privacy.gate.policy import GATE
from grandrounds.privacy.ledger.ledger import Ledger
from grandrounds.protocol.problem import Problem

BENCHMARKS = Path(__file__).resolve().parent
DATA = Path(os.environ.get("GRANDROUNDS_DATA", BENCHMARKS.parents[1] / "shared" / "data"))
PARTITION = "partition."


class Predicted(NamedTuple):
    """Predictions of images, in the order that ``site_metrics`` takes them."""

    labels: np.ndarray
    """Shape ``(images,)``."""
    probabilities: np.ndarray
    """Shape ``(images, classes)``: risks, where a run wrote them."""
    decided: np.ndarray
    """The predicted labels, which are not always those of the largest risk."""


"""Labels and probabilities."""


class Row(NamedTuple):
    """A method in a setting with a seed."""

    setting: str
    method: str
    seed: int


@dataclass(frozen=True)
class Run:
    """A finished run: its job with all options, its workspace, the partition and its folder, the sites, the summary."""

    row: Row
    job: Job
    place: Path
    sites_dir: Path
    partition: Mapping[str, Any]
    sites: list[str]
    summary: Mapping[str, Any]

    def events(self, kind: str) -> list[dict[str, Any]]:
        """The run's events of one kind; of the answers, those to training tasks."""
        events = read_events(self.place / "results")
        return [e for e in events if e["event"] == kind and (kind != "answer" or e["task"] == "train")]

    def metrics(self, name: str = "") -> dict[int, list[dict[str, float]]]:
        """By round, the metrics of the sites' answers; with a name, only of answers that have this metric."""
        rounds: dict[int, list[dict[str, float]]] = {}
        for event in self.events("answer"):
            if not name or name in event["metrics"]:
                rounds.setdefault(event["round"], []).append(event["metrics"])
        return dict(sorted(rounds.items()))


def load_job_of_examples(name: str) -> Job:
    """The job of this name; of one in ``examples`` the package of its classes is found, too."""
    folder = str((BENCHMARKS.parent / name).parent)
    if name.startswith("examples/") and folder not in sys.path:
        sys.path.append(folder)
    return load_job(name)


@dataclass
class Experiment:
    """The rows of the configuration in the folder ``name``.

    The data set is in ``root``, the runs are in ``workspace``, the results in ``results``. ``assignments`` replace the
    configuration's options in a trial; ``partition.NAME=VALUE`` is for the partition. ``mixed``: a row may be added to
    results of its setting and seed that other code or another processor has computed; it says so.
    """

    name: str
    root: Path = Path()
    workspace: Path = Path("runs")
    results: Path = Path()
    assignments: Sequence[str] = ()
    mixed: bool = False
    configuration: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        self.configuration = read_configuration(self.name)
        self.workspace = self.workspace.absolute()

    def rows(self, only: Sequence[str] = (), seeds: Sequence[int] = ()) -> Iterator[Row]:
        """Rows in the order of settings, seeds and methods; ``only`` has patterns of names such as ``lesion_*``."""
        for setting, content in self.configuration["settings"].items():
            for seed in content["seeds"]:
                for method in content["methods"]:
                    row = Row(setting, method, seed)
                    wanted = not only or any(fnmatch(self.row_name(row), pattern) for pattern in only)
                    if wanted and (not seeds or seed in seeds):
                        yield row

    def row_name(self, row: Row) -> str:
        """Name of the row without its seed: ``setting_method``, or as in the configuration's ``file``."""
        return self.result(row).relative_to(self.results).as_posix().removesuffix(f"_{row.seed}.json")

    def result(self, row: Row) -> Path:
        """Path of the row's result."""
        pattern = self.setting(row).get("file", self.configuration.get("file", "{setting}_{method}_{seed}"))
        return self.results / (pattern.format(**row._asdict()) + ".json")

    def setting(self, row: Row) -> dict[str, Any]:
        """The row's setting."""
        content: dict[str, Any] = self.configuration["settings"][row.setting]
        return content

    def method(self, row: Row) -> dict[str, Any]:
        """The row's method."""
        content: dict[str, Any] = self.configuration["methods"][row.method]
        return content

    def run(self, row: Row) -> None:
        """Run one row and write its result; rows of a seed share images and features of frozen layers.

        Raises:
            ConfigurationError: if its group is of another origin, see :meth:`beside`.
        """
        others, resumed, before = self.beside(row), self.resumed(row), cpu_seconds()
        os.environ.setdefault("GRANDROUNDS_CACHE", str(self.workspace / "cache"))
        os.environ.setdefault(FEATURES, str(self.workspace / "features"))
        torch.set_num_threads(1)
        content = self.record(row)
        spent = None if resumed else round(cpu_seconds() - before, 1)
        write_json(self.result(row), {**content, "row_cpu_seconds": spent, **({"mixed": others} if others else {})})

    def resumed(self, row: Row) -> bool:
        """Whether another process has begun the row, so that this one cannot know the CPU time of the whole."""
        return self.run_folder(row).exists()

    def beside(self, row: Row) -> list[str]:
        """Results of the row's setting and seed that other code or another processor has computed; none for a trial.

        Raises:
            ConfigurationError: if there are any, and nothing shows that they agree, unless ``mixed``.
        """
        group = [one for one in self.rows(seeds=[row.seed]) if one.setting == row.setting]
        others = [] if self.assignments else strangers([self.result(one) for one in group], self)
        if others and not self.mixed:
            raise ConfigurationError(
                f"{self.result(row).stem} would stand beside {', '.join(others)}, which another version of the package or "
                "another processor has computed; run one of these again (see benchmarks/README.md), all of them, or "
                "mark the row with --mixed"
            )
        return others

    def record(self, row: Row) -> dict[str, Any]:
        """The row's result."""
        run = self.simulated(row, *self.partition(row))
        return {**self.labels(row), **self.measures(run), **self.circumstances(run)}

    def labels(self, row: Row) -> dict[str, Any]:
        """The row's name in its result."""
        return row._asdict()

    def partition(self, row: Row) -> tuple[Path, dict[str, Any]]:
        """Divide the data set: the folder of the sites, and the partition. Rows with the same data share the folder."""
        folder, choices = self.partition_folder(row), self.partition_choices(row)
        if choices["dataset"] in OF_PLUGIN:
            published_data()
        return folder, make_partition(root=self.root, out=folder, seed=row.seed, **choices)

    def partition_folder(self, row: Row) -> Path:
        """Where the sites of the row's choices and seed are."""
        digest = hashlib.sha256(json.dumps(self.partition_choices(row), sort_keys=True).encode()).hexdigest()[:8]
        return self.workspace / f"sites_{digest}_{row.seed}"

    def partition_choices(self, row: Row) -> dict[str, Any]:
        """Arguments of the partition: the configuration's, the setting's, the method's, the command line's."""
        choices: dict[str, Any] = {}
        for part in (self.configuration, self.setting(row), self.method(row)):
            choices |= part.get("partition", {})
        for text in self.assignments:
            if text.startswith(PARTITION):
                name, _, value = text.removeprefix(PARTITION).partition("=")
                choices[name] = json.loads(value)
        return choices

    def sites(self, row: Row) -> int | None:
        """Number of sites that take part; None for all."""
        return None

    def job(self, row: Row, problem: Mapping[str, Any]) -> Job:
        """The row's job with all options."""
        job = load_job_of_examples(self.method(row)["job"])
        job.options("problem").update(problem)
        return with_preset(job, self.method(row).get("preset"), parsed(job, self.options(row)))

    def options(self, row: Row) -> list[str]:
        """The row's options as assignments."""
        setting, method = self.setting(row), self.method(row)
        chosen = [*self.configuration["common"]]
        if "start" in self.configuration:
            chosen.append(f"problem.weights={self.start}")
        chosen += setting.get("options", [])
        for name in method.get("groups", []):
            for part in (self.configuration, setting):
                chosen += part.get("groups", {}).get(name, [])
        changed = [text for text in self.assignments if not text.startswith(PARTITION)]
        return [*chosen, *method["options"], f"controller.seed={row.seed}", *changed]

    def fitted(self, job: Job, sites_dir: Path, partition: Mapping[str, Any]) -> Job:
        """The job with options that depend on the sites' images."""
        return job

    @property
    def start(self) -> Path:
        """The weights from which all rows start.

        Raises:
            ConfigurationError: if they have not been made yet.
        """
        path = self.workspace / "start.pt"
        if not path.is_file():
            command = f"python -m benchmarks.pretrain {' '.join(self.configuration['start'])} --out {path}"
            raise ConfigurationError(f"{path} is missing; make it: {command}")
        return path

    def simulated(self, row: Row, sites_dir: Path, partition: Mapping[str, Any]) -> Run:
        """Simulate the row's job without the setting's ``unseen`` sites; an interrupted run is resumed."""
        sites, problem = choose_sites(self.sites(row), sites_dir)
        sites = [site for site in sites if site not in self.setting(row).get("unseen", ())]
        job = self.fitted(self.job(row, problem), sites_dir, partition)
        place = self.run_folder(row)
        workers = self.configuration.get("workers", 1)
        head = ridge_row(job, len(sites)) if starts_from_ridge(job) else None
        # Images divided at random, as in a paper, tear apart the pictures of one lesion.
        by_image = partition.get("group_by") == "image"
        with computed_start(job, head, place, sites, sites_dir, workers, print):
            execution = Execution(workers=workers)
            summary = simulate(job, place, sites, sites_dir=sites_dir, execution=execution, allow_overlap=by_image)
        return Run(row, job, place, sites_dir, partition, sites, summary)

    def run_folder(self, row: Row) -> Path:
        """Workspace of the row's run, or of its runs."""
        return self.workspace / "runs" / self.result(row).relative_to(self.results).with_suffix("")

    def measures(self, run: Run) -> dict[str, Any]:
        """Measures of a finished run."""
        return {"classes": run.partition["classes"], "selected": run.summary["selected"], "test": tests_of(run.summary)}

    def circumstances(self, run: Run) -> dict[str, Any]:
        """Traffic, time, options, versions and machine."""
        controller, executor = (run.job.options(part) for part in ("controller", "executor"))
        weights = {}
        if "start" in self.configuration:
            controller = {**controller, "problem": {**controller["problem"], "weights": self.start.name}}
            weights = {"weights": hashlib.sha256(self.start.read_bytes()).hexdigest()}
        return {
            "bytes": run.summary["bytes"],
            "seconds": run.summary["seconds"],
            "options": {"controller": controller, "executor": executor, **weights},
            "versions": {**run.summary["versions"], **code()},
            "machine": machine(),
        }


def read_configuration(name: str) -> dict[str, Any]:
    """The configuration of a benchmark.

    Raises:
        ConfigurationError: if it has none.
    """
    path = BENCHMARKS / name / "configuration.json"
    if not path.is_file():
        known = ", ".join(sorted(found.parent.name for found in BENCHMARKS.glob("*/configuration.json")))
        raise ConfigurationError(f"there is no experiment {name!r}; known are {known}")
    return dict(read_json_object(path))


def experiment_class(name: str) -> type[Experiment]:
    """The class of a benchmark's experiment: its own ``Custom``, that of the one it names, or the plain one."""
    owner = read_configuration(name).get("experiment", name)
    if not (BENCHMARKS / owner / "experiment.py").is_file():
        return Experiment
    found: type[Experiment] = import_module(f"benchmarks.{owner}.experiment").Custom
    return found


def site_data(job: Job, site: str, sites_dir: Path) -> SiteData:
    """A site's images as the job reads them."""
    problem = Problem.from_dict(job.options("problem"))
    location = locate_dataset(site, problem.dataset, [sites_dir])
    cache = Path(os.environ["GRANDROUNDS_CACHE"])
    return load_site_data(location, problem, cache)


def predictions(run: Run, weights: Path, splits: Sequence[str] = ("test",)) -> dict[str, dict[str, Predicted]]:
    """By split and site of the whole partition, what a model that the run has saved says of the images."""
    problem = Problem.from_dict(run.job.options("problem"))
    model_of = trained_models(problem.model_spec(pretrained=False), weights, run.row.seed)
    found: dict[str, dict[str, Predicted]] = {split: {} for split in splits}
    for site in choose_sites(None, run.sites_dir)[0]:
        data = site_data(run.job, site, run.sites_dir)
        model = model_of((data.images, data.rows("train")))
        for split, by_site in found.items():
            rows = data.rows(split)
            made = predict(model, tensors_of(data.images), rows)
            by_site[site] = Predicted(data.labels[rows], made.risks.double().numpy(), made.decided(problem.kind))
    return found


def install_policy(local: Path, site: str, policy: Mapping[str, Any]) -> None:
    """Give a site a privacy policy for every job, and an empty ledger, in its folder ``local``."""
    scope = {"name": "benchmark", "properties": {"grandrounds": policy}}
    scope |= {way: [{"path": GATE}] for way in ("task_data_filters", "task_result_filters")}
    local.mkdir(parents=True)
    write_json(local / "privacy.json", {"scopes": [scope], "default_scope": "benchmark"})
    Ledger.create(local / "privacy", site)


def pooled(by_site: Mapping[str, Predicted], sites: Sequence[str] | None = None) -> Predicted:
    chosen = (by_site[site] for site in (by_site if sites is None else sites))
    return Predicted(*map(np.concatenate, zip(*chosen, strict=True)))


def read_predictions(path: Path, classes: Sequence[str]) -> Predicted:
    """From a site's ``predictions_*.csv``, in the order of the images' names."""
    texts = {"image": str, "label": str, "predicted": str}
    rows = pd.read_csv(path, dtype=texts, keep_default_na=False, float_precision="round_trip").sort_values("image")
    probabilities = rows[[f"probability_{name}" for name in classes]].to_numpy(np.float64)
    probabilities /= probabilities.sum(axis=1, keepdims=True)  # they were written with six digits
    labels, decided = (rows[name].map(list(classes).index).to_numpy() for name in ("label", "predicted"))
    return Predicted(labels, probabilities, decided)


def tested(run: Run) -> Predicted:
    """As the sites wrote them, of the test images of all sites together.

    The model is the selected one, or each site's own where there is no other.
    """
    results = run.place / "results"
    found = sorted(results.glob("*/predictions_common.csv")) or sorted(results.glob("*/predictions_own.csv"))
    return pooled({path.parent.name: read_predictions(path, run.partition["classes"]) for path in found})


def tests_of(summary: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """The scores of a run's summary by site, as ``<model>.<score>`` with the number of images ``<model>.n``."""
    return {
        site: {
            f"{model}.{name}": value
            for model, record in tested.items()
            for name, value in {"n": record["images"], **record["exact"]}.items()
        }
        for site, tested in summary["records"].items()
    }


def mean_of(metrics: Sequence[Mapping[str, float]], name: str, digits: int) -> float | None:
    """Mean of a metric over the sites that report it, rounded; None if none does."""
    known = [found[name] for found in metrics if name in found]
    return round(sum(known) / len(known), digits) if known else None
