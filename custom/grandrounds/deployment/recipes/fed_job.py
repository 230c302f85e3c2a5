"""A job as an object of FLARE's job API, which exports the same files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nvflare.job_config.api import FedJob
from nvflare.job_config.defs import FilterType

from grandrounds.deployment.jobs import Job, class_of
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
