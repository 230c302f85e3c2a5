"""Arguments that several commands share, and the job that follows from them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from functools import partial
from pathlib import Path
from shlex import quote
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, ParamSpec, TypeVar, get_type_hints

import typer

from grandrounds.console.account import account_lines
from grandrounds.console.output import notes, results, say

if TYPE_CHECKING:
    from grandrounds.api.sites import Sites
    from grandrounds.deployment.jobs import CheckedJob, Job, Values

Arguments = ParamSpec("Arguments")
Group = TypeVar("Group")
_of_job = partial(typer.Option, rich_help_panel="Options of the job")
_of_data = partial(typer.Option, rich_help_panel="Sites and images")
LIST = "list"
"""In place of a preset: show the presets of the job."""
OF_IMAGES = (
    "patient_pattern", "label_map", "merge", "distinct", "root", "columns", "sheet", "layout", "skip_unusable",
)  # fmt: skip
"""The arguments that go with images of one's own."""
LISTS = ("label_map", "merge", "distinct", "columns")
"""Those of them that are lists."""
Json = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else on the standard output.")]
OwnModels = Annotated[bool, typer.Option("--ensemble", help="Take the mean of the sites' own models in RUN's folder.")]
Members = Annotated[
    list[Path] | None,
    typer.Option("--member", metavar="FILE", help="Take the mean of these models (own.pt of a site); repeatable."),
]


@dataclass(frozen=True)
class JobArguments:
    """The arguments of every command that takes a job: which job, and with what options."""

    job: Annotated[
        str | None,
        typer.Argument(
            metavar="[JOB]",
            help="A job's name (see grandrounds jobs) or its folder; default: ridge.",
            show_default=False,
        ),
    ] = None
    preset: Annotated[
        str | None,
        _of_job(
            help="Named options of the job: paper, code, ...; several are applied in order: paper,rhfl; grandrounds jobs "
            "JOB shows them. Default: none; for images of your own on this machine recommended, unless --backbone or a "
            "smaller --image-size "
            "is given."
        ),
    ] = None
    rounds: Annotated[int | None, _of_job(min=1, help="Short for --set controller.rounds=N.")] = None
    image_size: Annotated[int | None, _of_job(min=1, help="Short for --set problem.image_size=N, in pixels.")] = None
    backbone: Annotated[str | None, _of_job(help="Short for --set problem.backbone=NAME.")] = None
    seed: Annotated[int | None, _of_job(help="Short for --set controller.seed=N.")] = None
    assignments: Annotated[
        list[str] | None,
        _of_job(
            "--set", metavar="PART.OPTION=VALUE", help="Set an option of controller, executor or problem; repeatable."
        ),
    ] = None

    def values(self) -> Values:
        """The values of all options; those of ``--set`` come last and win.

        Raises:
            ConfigurationError: if there is no such job or option.

        Example:
            >>> JobArguments("fedperl", rounds=3, assignments=["controller.peers=1"]).values()
            {('controller', 'rounds'): 3, ('controller', 'peers'): 1}
        """
        from grandrounds.deployment.jobs import load_job
        from grandrounds.deployment.presets import SHORT, parsed, short_options

        short = short_options(**{name: getattr(self, name) for name in SHORT})
        return {**short, **parsed(load_job(self.method), self.assignments or ())}

    @property
    def method(self) -> str:
        """The job's name or folder; ``ridge`` where none is named."""
        from grandrounds.deployment.presets import FIRST_JOB

        return self.job or FIRST_JOB

    def configured(
        self, problem: Mapping[str, Any], given: Values = MappingProxyType({}), own_images: bool = False
    ) -> Job:
        """The job with its options.

        Args:
            problem: options of the problem that follow from the data; presets and the arguments win.
            given: values of further arguments; those of ``--set`` win.
            own_images: whether the data are images of one's own, which have a preset by default.

        Raises:
            ConfigurationError: if there is no such job, preset or option.
        """
        from grandrounds.deployment.presets import configured_job, preset_lines

        if self.preset == LIST:
            for line in preset_lines(self.method):
                say(results(), line)
            raise typer.Exit
        return configured_job(self.job, self.preset, {**given, **self.values()}, problem, own_images)


@dataclass(frozen=True)
class SimulatedJobArguments(JobArguments):
    """The arguments of a command that runs a job on this machine, or prepares such a run."""

    job: Annotated[
        str | None,
        typer.Argument(
            metavar="[JOB]",
            help="A job's name (see grandrounds jobs) or its folder. With --images or --sites-dir it may be left out: "
            "ridge runs then, with the preset recommended.",
            show_default=False,
        ),
    ] = None
    sites_dir: Annotated[
        Path | None, _of_data(help="Folder of a partition; without it every site draws synthetic images.")
    ] = None
    sites: Annotated[int | None, _of_data(min=1, help="Number of sites; default: all of the partition, or 4.")] = None
    images: Annotated[
        Path | None,
        _of_data(
            help="Images of your own: FOLDER/CLASS/* or FOLDER/SITE/CLASS/*, a .zip of it, or a table with columns image "
            "and label (CSV, .xlsx, Parquet, JSON); a partition is made of them (more options: grandrounds import --help)."
        ),
    ] = None
    patient_pattern: Annotated[
        str | None,
        _of_data(metavar="REGEX", help="With --images: the patient in an image's name; the first group, if any."),
    ] = None
    label_map: Annotated[
        str | None, _of_data(metavar="OLD=NEW,...", help="With --images: labels to replace; OLD= leaves images out.")
    ] = None
    merge: Annotated[
        str | None,
        _of_data(
            metavar="KIND,...",
            help="With --images: near names that are one: patient, label, site; or label:OLD=NEW, label:none=.",
        ),
    ] = None
    distinct: Annotated[
        str | None,
        _of_data(
            metavar="KIND,...",
            help="With --images: near names that are different: patient, label, site; or label:none for one name.",
        ),
    ] = None

    root: Annotated[
        Path | None, _of_data(help="With a table as --images: folder or .zip of the images; default: the table's.")
    ] = None
    columns: Annotated[
        str | None,
        _of_data(
            metavar="COLUMN=HEADING,...", help="With a table as --images: its headings, label=Diagnose,patient=Fall."
        ),
    ] = None
    sheet: Annotated[str | None, _of_data(help="With an .xlsx file as --images: one of several sheets.")] = None
    layout: Annotated[
        str | None,
        _of_data(
            help="With a folder as --images: class, site/class, class/patient, class/*/patient, ...; default: seen from the "
            "folders."
        ),
    ] = None
    skip_unusable: Annotated[
        bool | None,
        _of_data(
            "--skip-unusable",
            help="With a table as --images: leave out rows whose image is missing or cannot be used.",
            show_default=False,
        ),
    ] = None

    def checked(self, workspace: Path | None = None) -> tuple[CheckedJob, Sites]:
        """The checked job with its options, and its sites; those of ``--images`` are written into the workspace.

        Raises:
            GrandRoundsError: if the job, an option or the partition is wrong.
        """
        if self.images is not None:
            self.configured({})  # names an option that there is not before a partition is written
        sites = self.chosen(workspace)
        return self.configured(sites.problem, own_images=sites.own_images).checked(), sites

    def chosen(self, workspace: Path | None = None) -> Sites:
        """The sites that take part.

        Raises:
            GrandRoundsError: if the partition is wrong, or has fewer sites.
        """
        from grandrounds.api.sites import Sites
        from grandrounds.errors import UsageError

        alone = [name for name in OF_IMAGES if getattr(self, name)]
        if self.images is None and alone:
            raise UsageError(f"--{alone[0].replace('_', '-')} needs --images")
        if self.images is not None:
            if self.sites_dir is not None:
                raise UsageError("give either --images, or --sites-dir with a partition")
            return self._own_sites(self.images, workspace)
        if self.sites_dir is not None:
            return Sites.read(self.sites_dir, self.sites)
        sites = Sites.synthetic() if self.sites is None else Sites.synthetic(self.sites)
        if self.job is None:
            from grandrounds.api.running import require_images

            require_images(sites)
        return sites

    def _own_sites(self, images: Path, workspace: Path | None) -> Sites:
        from grandrounds.api.sites import Sites
        from grandrounds.errors import UsageError

        root = self.root or images
        if workspace and root.is_dir() and workspace.resolve().is_relative_to(root.resolve()):
            outside = root.resolve().parent / "runs" / workspace.resolve().name
            raise UsageError(
                f"{workspace} is in {root}, the folder of the images; add --workspace {quote(str(outside))}"
            )
        given = {name: getattr(self, name) for name in OF_IMAGES if name != "root"}
        sites = Sites.from_source(
            images,
            self.root,
            workspace / "sites" if workspace else None,
            sites=self.sites,
            task=self.configured({}).value("problem", "task"),
            warn=False,
            **{name: comma_separated(value) if name in LISTS else value for name, value in given.items()},
        )
        for line in account_lines(sites.description):
            say(notes(), line)
        for remark in sites.remarks:
            say(notes(), f"warning: {remark}")
        return sites


def takes(group: type[Group]) -> Callable[[Callable[Concatenate[Group, Arguments], None]], Callable[..., None]]:
    """Let a command take the fields of a dataclass as its own arguments; it gets them as one object, its first argument."""

    def decorate(command: Callable[Concatenate[Group, Arguments], None]) -> Callable[..., None]:
        def wrapped(**given: Any) -> None:
            shared = group(**{field.name: given.pop(field.name) for field in fields(group)})  # type: ignore[arg-type]
            command(shared, **given)  # type: ignore[call-arg]

        hints = get_type_hints(group, include_extras=True)
        parameters = [
            inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=inspect.Parameter.empty if field.default is MISSING else field.default,
                annotation=hints[field.name],
            )
            for field in fields(group)  # type: ignore[arg-type]
        ]
        _, *own = inspect.signature(command, eval_str=True).parameters.values()
        own = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own]
        vars(wrapped)["__signature__"] = inspect.Signature([*parameters, *own])
        wrapped.__name__, wrapped.__doc__ = command.__name__, command.__doc__
        return wrapped

    return decorate


def comma_separated(text: str | None) -> list[str] | None:
    """The parts of ``a,b,c`` without the spaces around them; None stays None.

    Example:
        >>> comma_separated("melanoma, nevus")
        ['melanoma', 'nevus']
    """
    return None if text is None else [part.strip() for part in text.split(",") if part.strip()]
