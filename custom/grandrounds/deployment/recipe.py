"""A job as a FLARE recipe, for FLARE's simulator, its proof of concept and startup kits."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nvflare.job_config.api import FedJob
from nvflare.job_config.defs import FilterType
from nvflare.recipe import PocEnv, ProdEnv, Run, SimEnv
from nvflare.recipe.spec import ExecEnv, Recipe

from grandrounds.deployment.code_digest import PACKAGE
from grandrounds.deployment.disclosure import disclosure
from grandrounds.deployment.job_watch import admin_session, connected_sites
from grandrounds.deployment.jobs import CheckedJob, Job, class_of, load_job
from grandrounds.deployment.kit.read import read_kit
from grandrounds.deployment.manifest import add_manifests
from grandrounds.deployment.processes import variables_set
from grandrounds.deployment.simulate import importable, require_enough, simulated_classes
from grandrounds.deployment.submission import require_gpu_sites, require_roster, with_statement
from grandrounds.errors import ConfigurationError
from grandrounds.files import read_json_object, write_json
from grandrounds.options import with_arguments
from grandrounds.plugins import outermost_packages

FILTERS = {"task_data_filters": FilterType.TASK_DATA, "task_result_filters": FilterType.TASK_RESULT}
"""Where a job's files have filters, and what FLARE's job API calls these."""
OF_COMPONENTS = {"format_version", "workflows", "executors", "components", *FILTERS}
"""What FLARE's job API writes of components; other entries are parameters."""


def fed_job(job: Job) -> FedJob:
    """FLARE's object of a job: it exports the job's components with all their options, and no code.

    Args:
        job: a checked job.
    """
    meta = {name: value for name, value in job.meta.items() if name != "name"} | {"min_clients": job.min_sites}
    made = FedJob(job.name, job.min_sites, meta_props=meta)
    made.set_app_packages(outermost_packages())
    for entry in job.server["workflows"]:
        made.to_server(_component(entry), id=entry.get("id"))
    for entry in job.client["executors"]:
        made.to_clients(_component(entry["executor"]), tasks=entry["tasks"])
    for add, content in ((made.to_server, job.server), (made.to_clients, job.client)):
        for entry in content.get("components", ()):
            add(_component(entry), id=entry["id"])
        for name, kind in FILTERS.items():
            for entry in content.get(name, ()):
                for part in entry["filters"]:
                    add(_component(part), filter_type=kind, tasks=entry["tasks"])
        if parameters := {name: value for name, value in content.items() if name not in OF_COMPONENTS}:
            add(parameters)
    return made


def _component(entry: Mapping[str, Any]) -> Any:
    arguments = entry.get("args", {})
    return with_arguments(class_of(entry["path"])(**arguments), arguments)


class JobRecipe(Recipe):
    """FLARE's recipe of a checked job; filters, components and parameters can be added as to each recipe.

    ``SimEnv`` is allowed the classes of this package and of plug-ins, the kits of ``PocEnv`` get the code with the job, and
    the sites of ``ProdEnv`` have it installed; to these the job is sent with the statement of what leaves a site.

    Args:
        job: with its final options.
        report: called with each line of the statement, before the job is sent.
    """

    def __init__(self, job: CheckedJob, report: Callable[[str], None]) -> None:
        super().__init__(fed_job(job))
        self._report = report

    def run(
        self,
        env: ExecEnv,
        server_exec_params: dict[str, Any] | None = None,
        client_exec_params: dict[str, Any] | None = None,
    ) -> Run:
        """Run the job; see FLARE's ``Recipe.run``.

        Raises:
            ConfigurationError: if what was added to the recipe is no job any more, or ``SimEnv`` has too few sites.
            GrandRoundsError: if the server of ``ProdEnv`` cannot be reached, or a site that the job needs is not connected.
        """
        parameters = self._temporary_exec_params(server_exec_params, client_exec_params)
        with parameters, self._ready(env), variables_set(importable()):
            return super().run(env)

    def _apply_per_site_config(self, config: dict[str, dict[str, Any]]) -> None:
        """FLARE's hook; without it the configuration would be dropped."""
        raise ConfigurationError(
            "a job's options are the same at all sites; what differs between sites is in each site's grandrounds.json"
        )

    @contextmanager
    def _ready(self, env: ExecEnv) -> Iterator[None]:
        job = self._final()
        if isinstance(env, SimEnv):
            require_enough(job, env.clients or [""] * env.num_clients)
            _allow_classes(Path(env.workspace_root) / self.name / "local" / "resources.json")
        if isinstance(env, ProdEnv):
            self._state(job, Path(env.startup_kit_location))
            with self._bound():
                yield
        elif isinstance(env, PocEnv):
            with self._code():
                yield
        else:
            yield

    def _final(self) -> CheckedJob:
        """The job as FLARE would export it now, with all that was added."""
        with tempfile.TemporaryDirectory(prefix="grandrounds-") as temporary:
            self._job.export_job(temporary)
            return load_job(Path(temporary) / self.name).checked()

    def _state(self, job: CheckedJob, kit: Path) -> None:
        """Show what leaves each site, and put it into the job."""
        with admin_session(read_kit(kit)) as session:
            connected = connected_sites(session)
        require_gpu_sites(job, connected)
        require_roster(job, connected)
        for line in disclosure(job, connected):
            self._report(line)
        self._job.job.meta_props = {name: value for name, value in with_statement(job).meta.items() if name != "name"}

    @contextmanager
    def _bound(self) -> Iterator[None]:
        """FLARE exports the job with manifests within the block."""
        export = self._job.export_job

        def export_bound(root: str) -> None:
            export(root)
            add_manifests(Path(root) / self.name)

        self._job.export_job = export_bound
        try:
            yield
        finally:
            del self._job.export_job

    @contextmanager
    def _code(self) -> Iterator[None]:
        """The package is in the job within the block: kits that FLARE makes for one run allow no classes but FLARE's."""
        sources = [app.app_config.file_sources for app in self._job._deploy_map.values()]
        for source in sources:
            source.append((str(PACKAGE), PACKAGE.name, "custom"))
        try:
            yield
        finally:
            for source in sources:
                source.pop()


def _allow_classes(path: Path) -> None:
    """Let FLARE's simulator build our classes; what else the file has stays."""
    content = read_json_object(path) if path.is_file() else {}
    write_json(path, content | simulated_classes())
