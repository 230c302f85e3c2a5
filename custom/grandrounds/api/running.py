"""Running a job on this machine, and what a finished run offers; what only that needs is imported then."""

from __future__ import annotations

import html
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from itertools import chain, starmap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grandrounds.api.methods import ConfiguredMethod, unfolded
from grandrounds.api.sites import Sites
from grandrounds.checks import as_path, require_mapping
from grandrounds.console.account import start_line
from grandrounds.console.output import notes, say
from grandrounds.console.progress import following, progress_on
from grandrounds.deployment.disclosure import nothing_to_do
from grandrounds.deployment.jobs import CheckedJob, Job, Values, load_job
from grandrounds.deployment.presets import (
    FIRST_JOB,
    RECOMMENDED,
    SHORT,
    assignment,
    configured_job,
    short_options,
    with_preset,
)
from grandrounds.deployment.reference import (
    add_reference,
    computed_start,
    ridge_row,
    shared_features,
    starts_from_ridge,
)
from grandrounds.deployment.simulate import Execution, default_workers, device_of, require_enough, simulate
from grandrounds.deployment.submission import with_roster
from grandrounds.deployment.workspace import Simulation, held_workspace
from grandrounds.errors import ConfigurationError, UsageError
from grandrounds.evaluation.history import RunHistory
from grandrounds.evaluation.score import named
from grandrounds.federation.server.record import EVENTS, SUMMARY, with_true_status
from grandrounds.files import read_json_object
from grandrounds.option_keys import by_key
from grandrounds.options import require_type
from grandrounds.protocol.tasks import task_of
from grandrounds.reporting.run import NAMES, ReadRun, table_rows, tested_models
from grandrounds.reporting.runs import read_run, record_folder

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from matplotlib.figure import Figure
    from numpy.typing import NDArray
    from torch import nn

    from grandrounds.api.evaluation import Evaluation
    from grandrounds.api.prediction import Predictable
    from grandrounds.deployment.recipe import JobRecipe
    from grandrounds.reporting.external.prediction import Ensemble

TRAINING_TASKS = ("train", "validate")
FEW_CASES = "few_cases"
REFERENCE_VARIABLE = "GRANDROUNDS_REFERENCE"
AS_MANY_AS_FIT = Execution()
PARTITION = "sites"
"""Where a workspace has the partition that was made for it."""


class Run:
    """A finished run: scores, figures, reports and predictions of its model.

    Attributes:
        workspace: folder of everything that the run has written.
        sites: where it trained; None if their images are not here.
    """

    def __init__(self, workspace: Path | str, sites: Sites | Path | str | None = None) -> None:
        """Open a finished run.

        Args:
            workspace: of a simulation, or the results of a downloaded job.
            sites: where it trained, or the folder of this partition, to get patients' intervals and figures of single
                images.

        Raises:
            ConfigurationError: if there is no run.
        """
        self.workspace = as_path(workspace, "the workspace of a run").absolute()
        self._record = record_folder(self.workspace)
        made = self.workspace / PARTITION
        place = made if sites is None and (made / "partition.json").is_file() else sites
        self.sites = Sites.read(place) if isinstance(place, str | os.PathLike) else place

    def __repr__(self) -> str:
        return f"Run({str(self.workspace)!r})"

    @property
    def summary(self) -> dict[str, Any]:
        """The content of ``summary.json``: configuration, selected round, scores, bytes and times."""
        return with_true_status(read_json_object(self._record / SUMMARY), self._record)

    @property
    def classes(self) -> tuple[str, ...]:
        """The vocabulary, in the order of the model's outputs."""
        return tuple(self.summary["configuration"]["problem"]["classes"])

    def scores(self, model: str | None = None) -> pd.DataFrame:
        """Scores on the test images.

        Args:
            model: ``selected``, the model of the federation, or ``own``, each site's own choice of a round; by default the
                first of these that was tested.

        Returns:
            A row for each site, their ``mean``, the score of all images together (``pooled``) and references (always the
            most frequent class, chance); columns ``images``, ``majority_accuracy``, ``accuracy``, ``balanced_accuracy``
            and ``f1_weighted``, or of findings ``images``, ``auc_macro``, ``balanced_accuracy`` and ``f1_macro``, means over
            the findings. A mean over a part of the classes or sites stands in a column of its own name, such as
            ``balanced_accuracy_of_2_classes``. What
            is not known is NaN; ``few_cases`` names the scores that rest on fewer than ten cases.

        Raises:
            ConfigurationError: if the run has not tested this model.
        """
        tested = tested_models(self.summary)
        names = [NAMES[name] for name in tested]
        if not tested or (model or names[0]) not in names:
            raise ConfigurationError(f"{self.workspace} has scores of {', '.join(names) or 'no model'}, not of {model}")
        chosen = tested[names.index(model) if model else 0]
        return _frame(read_run(self.workspace, self.workspace.name, chosen))

    def history(self) -> pd.DataFrame:
        """Training losses and validation scores over the rounds, one row for each answer of a site.

        Validation scores are of the model that the site received, the one after the round before.
        """
        import pandas as pd

        events = self._history().events
        answers = [event for event in events if event["event"] == "answer" and event["task"] in TRAINING_TASKS]
        rows = [{"round": event["round"], "site": event["site"], **event["metrics"]} for event in answers]
        return pd.DataFrame(rows, columns=list(dict.fromkeys(["round", "site", *(key for row in rows for key in row)])))

    def figures(self, communities: Path | str | None = None) -> dict[str, Figure]:
        """Figures of the training, by name: learning curves, communication, and those of the method.

        Args:
            communities: a partition, or a JSON file ``{SITE: NAME}``, of which the figures put sites together.
        """
        from grandrounds.api.reports import training_figures

        return training_figures(self._history(as_path(communities, "communities") if communities is not None else None))

    def report(self, out: Path | str, *, title: str | None = None, **options: Any) -> Path:
        """Write a report on the run, one HTML file with figures and tables beside it.

        Args:
            out: folder of the report.
            title: of the page.
            options: as those of :func:`grandrounds.report`.

        Returns:
            The path of ``report.html``.
        """
        from grandrounds.api.reports import report

        return report([self], out, title=title, sites=self.sites, **options)

    def export(self, out: Path | str, **options: Any) -> list[Path]:
        """Write the selected model: safetensors, a model card and a MONAI bundle.

        Args:
            out: folder of the files.
            options: ``licence`` of the data that the model was trained on; further ``formats`` (``torchscript``, ``onnx``):
                the network for programs without this package; with ``problem.norm=site`` the ``site`` for whose devices the
                model is; ``with_sums``, whether the sums of a run of ridge regression are written too, for ``sums`` of
                :func:`grandrounds.evaluate`.

        Returns:
            The paths that were written.

        Raises:
            ConfigurationError: if the run has no common model.
        """
        from grandrounds.api.reports import export

        return export(self.workspace, out, sites_dir=self.sites.folder if self.sites else None, **options)

    def predict(
        self, images: Predictable, thresholds: Mapping[str, float] | None = None, *, ensemble: Ensemble = False
    ) -> pd.DataFrame:
        """Predict images with the selected model, prepared like those of the run.

        With ``problem.norm=site`` the model takes the statistics of the images that it predicts, at least 16 of one device.

        Args:
            images: a file, a folder, several files (a list, a pandas Series, ``Path.glob``); 8-bit arrays or tensors of
                shape ``(n, height, width)``, ``(n, height, width, 3)`` or, tensors, ``(n, channels, height, width)``, values
                0 to 255; one image as ``(height, width)``, ``(height, width, 3)`` or, a tensor, ``(channels, height,
                width)``; a PIL image, or a list of such objects.
            thresholds: of a run of findings the probabilities from which they are called, 0.5 for those not named; a
                report has those that find nine in ten validation images (``operating_points`` in ``report.json``).
            ensemble: whether the mean of the probabilities of the sites' own models predicts; or the files of these models.

        Returns:
            A row for each image: ``predicted``, and the probability of each class; the index is the file or the number. Of
            findings ``predicted`` lists those that are called, ``effusion|mass``, or is ``none``.

        Raises:
            ConfigurationError: if the run has no common model, or a threshold is of no finding of the run.
            DataError: if an image cannot be read.
        """
        import pandas as pd

        names, predicted, probabilities = self.predicted(images, thresholds, ensemble)
        frame = pd.DataFrame(probabilities, columns=list(self.classes), index=pd.Index(names, name="image"))
        frame.insert(0, "predicted", predicted)
        return frame

    def predicted(
        self, images: Predictable, thresholds: Mapping[str, float] | None = None, ensemble: Ensemble = False
    ) -> tuple[list[str], list[str], NDArray[np.float64]]:
        """As :meth:`predict`, without pandas: images, what is predicted, and probabilities, shape ``(images, classes)``."""
        from grandrounds.api.prediction import predict_with

        if thresholds is not None:
            require_mapping(thresholds, "thresholds", '{"effusion": 0.3}')
        task = task_of(self.summary["configuration"]["problem"])
        description = self.sites.description if self.sites else {}
        names, probabilities, decided = predict_with(self.workspace, images, description, ensemble)
        return names, list(task.predicted_cells(probabilities, decided, self.classes, thresholds or {})), probabilities

    @property
    def model(self) -> nn.Module:
        """The network of the selected model, in evaluation mode: images ``(n, channels, size, size)`` in [0, 1] to logits.

        Raises:
            ConfigurationError: if the run has no common model, or (``problem.norm=site``) one for each site's images.
        """
        from grandrounds.models.trained import load_trained
        from grandrounds.reporting.external.prediction import trained_model

        return load_trained(*trained_model(self.workspace).networks[0])

    def score_held_out(self, *, allow_overlap: bool = False, progress: bool = True) -> dict[str, Evaluation]:
        """Test the model at each site that :attr:`sites` hold out, as at a hospital that took no part.

        The scores are in the summary then, and beside it ``held_out_SITE.json`` for the argument ``external`` of
        :func:`grandrounds.report`. Without a selected model the mean of the sites' own models is tested.

        Args:
            allow_overlap: as of :func:`grandrounds.evaluate`.
            progress: show the steps on the standard error if they take long.

        Returns:
            Scores and predictions by site; none without a held-out site.

        Raises:
            ConfigurationError: as :func:`grandrounds.evaluate`, or if another command is running in the workspace.
            DataError: if too many images cannot be read.
        """
        if self.sites is None or not self.sites.held_out:
            return {}
        from grandrounds.api.evaluation import score_held_out

        return score_held_out(self.workspace, self.sites, allow_overlap, progress)

    @property
    def predictions(self) -> pd.DataFrame:
        """What the sites have predicted for their test images: site, image, label, prediction, probabilities, case.

        Raises:
            DataError: if they are not here: in a federation they stay at the sites.
        """
        from grandrounds.api.prediction import written_predictions

        return written_predictions(self._record, (*tested_models(self.summary), "common")[0])

    def _repr_html_(self) -> str:
        """The table of scores, for notebooks."""
        title = f"<p>{html.escape(str(self.workspace))}</p>"
        if not tested_models(self.summary):
            return title
        shown: str = self.scores().to_html(float_format=lambda value: f"{value:.3f}", na_rep="-", border=0)
        return title + shown

    def _history(self, communities: Path | None = None) -> RunHistory:
        from grandrounds.api.reports import history_of

        return history_of(self._record, communities)


def run(
    job: str | Path | Job | ConfiguredMethod | Sites | None = None,
    sites: Sites | Path | str | int | None = None,
    *,
    preset: str | None = None,
    options: Mapping[str, Any] | None = None,
    workspace: Path | str | None = None,
    overwrite: bool = False,
    allow_overlap: bool = False,
    reference: bool | None = None,
    progress: bool = True,
    execution: Execution = AS_MANY_AS_FIT,
    **by_name: Any,
) -> Run:
    """Run a job with all its sites on this machine, or resume an interrupted run in the same workspace.

    Args:
        job: a name of ``grandrounds jobs``, the folder of a job, or ``gr.FedPerl(peers=2)``. Of sites with images it may
            be left out, ``gr.run(sites)``: then ``ridge`` runs, with the preset ``recommended`` by default.
        sites: where to train: sites, a partition's folder, or a number of synthetic sites (4 by default).
        preset: named options of the job; several are separated by commas. For images of one's own ``recommended``, where
            the job has it, no network is named, and images are not smaller than its network takes.
        options: further options as ``{"executor.learning_rate": 0.001}``; they win.
        workspace: folder for everything that the run writes; ``runs/RUN_NAME`` by default.
        overwrite: move another run that is in the workspace aside, to ``WORKSPACE.1`` or the next free number. By default a
            run with another method, other options or other sites is refused there.
        allow_overlap: go on where sites have pictures or patients in common, which makes scores too high.
        reference: compute a ridge head of the sites' training labels, too, and show its scores as the row ``ridge``; the
            run's models do not depend on it. By default it is, unless ``GRANDROUNDS_REFERENCE=0`` is in the environment. A
            run that starts from this head (``controller.start_from=ridge``) has the row in any case.
        progress: show the progress of the run on the standard error.
        execution: how it runs on this machine: in this process or by FLARE's simulator, how many sites at a time; the models
            do not depend on it.
        by_name: options by name alone: ``rounds``, ``image_size`` (the side of the images in pixels), ``learning_rate``,
            ``seed`` (of all random choices), ...; ``backbone`` is the name of a network, or a ``torch.nn.Module`` whose last
            linear layer has an output for each class.

    Returns:
        The finished run.

    Raises:
        ConfigurationError: if there is no such job, or an option does not fit; nothing is written then.
        DataError: if the partition is damaged, or sites have pictures or patients in common.
        GrandRoundsError: if the run failed; the message names the reason and the log.

    Example:
        >>> import grandrounds as gr
        >>> finished = gr.run(gr.Sites.from_folders("images"))  # doctest: +SKIP
        >>> finished.scores().loc["pooled", "accuracy"]  # doctest: +SKIP
    """
    job, chosen = _method_and_sites(job, sites)
    if not isinstance(execution, Execution):
        raise ConfigurationError(f"execution must be a gr.Execution such as gr.Execution(workers=1), got {execution!r}")
    values = by_key({} if options is None else options)
    checked, call = _configured(*unfolded(job, preset, {**_by_name(job, by_name), **values}), chosen)
    folder = as_path(workspace, "workspace") if workspace is not None else Path("runs") / checked.run_name
    device = device_of(checked)
    count, names = execution.workers or default_workers(checked, len(chosen.names)), list(chosen.names)
    require_enough(checked, names)
    for site in chosen.held_out:
        if not chosen.description["sites"][site]["images"]["test"]:
            raise ConfigurationError(f"--hold-out {site}: it has no test images; hold another site out")
    wanted = _wants(reference) or starts_from_ridge(checked)
    row = ridge_row(checked, len(names), "noise_rate" in chosen.description) if wanted else None
    with held_workspace(folder, overwrite) as aside, shared_features(checked, folder, chosen.folder):
        if aside:
            say(notes(), f"the run that was in {folder} is now in {aside}")
        start = computed_start(checked, row, folder, names, chosen.folder, count, lambda line: say(notes(), line))
        workers = None if execution.engine == "flare" else count
        how = replace(execution, workers=workers, command=execution.command or call)
        with _followed(checked, folder, chosen, device) if progress else nullcontext():
            simulate(checked, folder, names, chosen.folder, how, allow_overlap, chosen.held_out, start)
        if row:
            if progress:
                say(notes(), f"for comparison, ridge: {row.description}")
            add_reference(row, folder, names, chosen.folder, count)
        for earlier in sorted(Simulation(folder.absolute(), "").results.glob("held_out_*.json")):
            earlier.unlink()
            site = earlier.stem.removeprefix("held_out_")
            if site not in chosen.held_out:
                say(notes(), f"removed the scores at {site}, of the run before; hold it out again to test this model")
    return Run(folder, chosen if chosen.folder else None)


def _by_name(job: Any, given: Mapping[str, Any]) -> Values:
    """The values of options that are given by their names; a network itself is registered."""
    values = {name: value for name, value in given.items() if value is not None}
    if not isinstance(values.get("backbone", ""), str):
        from grandrounds.models.backbones.own import module_name

        values["backbone"] = module_name(values["backbone"])
    if values.keys() <= SHORT.keys():
        return short_options(**values)
    named = (
        job.name if isinstance(job, ConfiguredMethod) else FIRST_JOB if job is None or isinstance(job, Sites) else job
    )
    configured = named if isinstance(named, Job) else load_job(named)
    return {
        configured.key_of(f"{SHORT[name]}.{name}" if name in SHORT else name): value for name, value in values.items()
    }


def _wants(reference: bool | None) -> bool:
    return os.environ.get(REFERENCE_VARIABLE, "1") != "0" if reference is None else reference


def _configured(
    job: str | Path | Job | None, preset: str | None, values: Values, sites: Sites
) -> tuple[CheckedJob, list[str]]:
    """The checked job with its options, and the call as it is recorded; a job that was loaded has its options."""
    if not isinstance(job, Job):
        configured = configured_job(job, preset, values, sites.problem, sites.own_images)
        return configured.checked(), ["grandrounds.run", configured.name, *starmap(assignment, values.items())]
    if values or preset:
        raise UsageError("a job that was loaded has its options; name the job instead of loading it")
    return job.checked(), []


def _method_and_sites(
    job: str | Path | Job | ConfiguredMethod | Sites | None, sites: Sites | Path | str | int | None
) -> tuple[str | Path | Job | ConfiguredMethod | None, Sites]:
    """The method, None if none is named, and the sites, which may be the only argument.

    Raises:
        UsageError: if sites are given twice, or synthetic sites have no method.
    """
    if isinstance(job, Sites):
        if sites is not None:
            raise UsageError('name the method first, then the sites: gr.run("fedavg", sites)')
        job, sites = None, job
    chosen = sites_from(sites)
    if job is None:
        require_images(chosen)
    return job, chosen


@contextmanager
def _followed(job: CheckedJob, folder: Path, sites: Sites, device: str) -> Iterator[None]:
    """Say what begins, and show the progress of the run."""
    say(notes(), start_line(job, sites.description, sites.names, device))
    if idle := nothing_to_do(job, sites.names, sites.folder):
        say(notes(), f"warning: {job.name}: {idle}")
    events = Simulation(folder.absolute(), job.run_name).record / EVENTS
    with progress_on(notes()) as show, following(events, show):
        yield


def require_images(sites: Sites) -> None:
    """Refuse a run without a method on synthetic images: only of real ones is it known which method is a good start.

    Raises:
        UsageError: then.
    """
    if sites.folder is None:
        raise UsageError(
            "name a method, such as grandrounds simulate fedavg (grandrounds jobs lists them); only for images, --images "
            f"or --sites-dir, it may be left out: {FIRST_JOB} with the preset {RECOMMENDED} runs then"
        )


def sites_from(given: Sites | Path | str | int | None) -> Sites:
    """The sites that an argument of :func:`run` names."""
    if isinstance(given, Sites):
        return given
    if given is None or isinstance(given, int):
        return Sites.synthetic(*([] if given is None else [given]))
    return Sites.read(given)


def _frame(run: ReadRun) -> pd.DataFrame:
    """The rows of the printed table; a mean over a part of the classes or sites has a column of its own name."""
    import pandas as pd

    columns: dict[str, dict[str, None]] = {name: {name: None} for name in run.task.scores}
    rows: dict[str, dict[str, Any]] = {}
    for row in table_rows(run):
        scores = {named(name, score): score.value for name, score in row.scores.items()}
        few = ", ".join(named(name, score) for name, score in row.scores.items() if score.few)
        for name, score in row.scores.items():
            columns[name] |= {named(name, score): None}
        rows[row.name] = {"images": row.images, "majority_accuracy": row.majority, **scores, FEW_CASES: few}
    majority = [name for name in ("majority_accuracy",) if "majority" in run.task.references]
    frame = pd.DataFrame.from_dict(
        rows, orient="index", columns=["images", *majority, *chain(*columns.values()), FEW_CASES]
    )
    return frame.astype({"images": "Int64"}).rename_axis("site")


def recipe(
    job: str | Path | Job | ConfiguredMethod,
    *,
    preset: str | None = None,
    sites: Sequence[str] = (),
    options: Mapping[str, Any] | None = None,
    **by_name: Any,
) -> JobRecipe:
    """A job as a FLARE recipe, for ``SimEnv``, ``PocEnv`` and ``ProdEnv`` of ``nvflare.recipe``.

    Args:
        job: a name of ``grandrounds jobs``, the folder of a job, or ``gr.FedPerl(peers=2)``.
        preset: named options of the job; several are separated by commas.
        sites: that take part, by name; by default all of the environment.
        options: of the job with their parts, as of :func:`grandrounds.run`: ``{"controller.peers": 2}``.
        by_name: options of the job by name alone: ``peers=2``.

    Returns:
        A ``Recipe``. ``run`` and ``execute`` train, ``export`` writes the job, FLARE's other methods add to it.

    Raises:
        ConfigurationError: if there is no such job, preset or option, or a value does not fit; nothing is written then.

    Example:
        >>> import grandrounds as gr
        >>> from nvflare.recipe import SimEnv
        >>> recipe = gr.recipe("fedperl", peers=3, rounds=2)
        >>> recipe.execute(SimEnv(num_clients=2)).get_result()  # doctest: +SKIP
    """
    from grandrounds.deployment.recipe import JobRecipe

    require_type(preset, str | None, "preset")
    require_type(sites, list[str], "sites")
    name, preset, values = unfolded(job, preset, {})
    configured = name if isinstance(name, Job) else load_job(name)
    given = {configured.key_of(option): value for option, value in by_name.items()} | by_key(options or {})
    made = with_preset(configured, preset, {**values, **given}).checked()
    mandatory = made.options("controller").get("mandatory_sites") or ()
    return JobRecipe(with_roster(made, sites, mandatory).checked(), lambda line: say(notes(), line))
