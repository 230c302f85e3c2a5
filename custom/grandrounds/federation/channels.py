"""Which requests FLARE's cells may answer: a component that a kit's ``resources.json`` names, not one of a job.

FLARE 2.9 answers admin requests (files of a site, abort, restart, tasks) from anyone who reaches it through the server's
relay, and takes user, role and the need for authorisation from headers that the sender writes. ``docs/security`` has the
details.
"""

from __future__ import annotations

import json
import math
import os
import sys
import threading
import time
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from nvflare.apis.fl_component import FLComponent
from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.cellnet.defs import CellChannel, MessageHeaderKey, MessagePropKey, ReturnCode
from nvflare.fuel.f3.cellnet.fqcn import FQCN
from nvflare.fuel.f3.cellnet.utils import make_reply
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.streaming.download_service import OBJ_DOWNLOADER_CHANNEL
from nvflare.fuel.f3.streaming.stream_const import STREAM_CHANNEL
from nvflare.private import admin_defs as admin
from nvflare.private.defs import ERROR_MSG_PREFIX, RequestHeader
from nvflare.private.fed.client.client_req_processors import ClientRequestProcessors
from nvflare.private.fed.client.scheduler_cmds import StartJobProcessor
from nvflare.private.fed.client.shell_cmd import ShellCommandProcessor
from nvflare.private.fed.client.training_cmds import DeleteRunNumberProcessor, DeployProcessor
from nvflare.private.fed.server.job_meta_validator import JobMetaValidator

from grandrounds.errors import ConfigurationError
from grandrounds.federation.endurance import outlive_full_logs, outlive_slow_lines, show_life
from grandrounds.federation.identity.copies import guard_copies
from grandrounds.federation.identity.own_processes import guard_internal_ports
from grandrounds.federation.job_files import read_files, require_app, require_job
from grandrounds.federation.memory import share_cleanup_thread
from grandrounds.federation.proxy import replace_connect
from grandrounds.files import PRIVATE, read_json_object
from grandrounds.logs.lines import JOB_ID
from grandrounds.plugins import LISTED_VARIABLE, NETWORKS_VARIABLE, Distribution, load_plugins
from grandrounds.protocol.paths import LOCK
from grandrounds.seal import seal_kit

CREDENTIALS_CHANNEL = "credential_manager"
FROM_SERVER = frozenset({
    CellChannel.CLIENT_MAIN, CellChannel.AUX_COMMUNICATION, CellChannel.CELLNET,
    OBJ_DOWNLOADER_CHANNEL, STREAM_CHANNEL, CREDENTIALS_CHANNEL,
})  # fmt: skip
"""Channels on which a site answers the server. FLARE's network diagnosis (settings, processes, routes) is not among them."""
DEPLOYMENT_SECONDS = 600
"""After the deployment of a job; FLARE's server starts it when all sites have replied."""
JOB_MODULES = ("worker_process", "runner_process")
"""FLARE's modules that run a job at a site and at the server."""
PARENT_GRACE_SECONDS = 60.0
"""In which FLARE ends the process in its own way."""
PARENT_POLL_SECONDS = 1.0


def is_job_id(name: object) -> bool:
    """Whether FLARE can have given a job this id. A job's folder is beside a kit's own, and FLARE deletes it by its id.

    Example:
        >>> is_job_id("0d8fba9f-0e7e-4b0a-9b62-3c7f9b1f3a11"), is_job_id("local")
        (True, False)
    """
    return isinstance(name, str) and JOB_ID.fullmatch(name) is not None


class JobDeletion(DeleteRunNumberProcessor):
    """FLARE's deletion of a job's folder, which refuses the kit's own folders (``local``, ``startup``, ...)."""

    def process(self, req: admin.Message, app_ctx: Any) -> admin.Message:
        """FLARE's hook for a request of the server."""
        if not is_job_id(job := req.get_header(RequestHeader.JOB_ID)):
            return admin.error_reply("this is no job's id")
        JobStart.deployed.pop(job, None)
        return super().process(req, app_ctx)


class JobDeployment(DeployProcessor):
    """FLARE's taking of a job, which reads nothing of one that is more than data."""

    def process(self, req: admin.Message, app_ctx: Any) -> admin.Message:
        """FLARE's hook for a request of the server."""
        JobStart.deployed.pop(job := req.get_header(RequestHeader.JOB_ID), None)
        try:
            require_app(read_files(req.body))
        except ConfigurationError as error:
            return admin.error_reply(str(error))
        reply = super().process(req, app_ctx)
        if reply.get_header(admin.MsgHeader.RETURN_CODE) == admin.ReturnCode.OK:
            JobStart.deployed[job] = time.monotonic()
        return reply


class JobStart(StartJobProcessor):
    """FLARE's start of a job, once and soon after each deployment: only then is asked who has signed it, and until when."""

    deployed: ClassVar[dict[str, float]] = {}
    """By job, the moment of its deployment; a start or another deployment takes it away."""

    def process(self, req: admin.Message, app_ctx: Any) -> admin.Message:
        """FLARE's hook for a request of the server."""
        if time.monotonic() - self.deployed.pop(req.get_header(RequestHeader.JOB_ID), -math.inf) > DEPLOYMENT_SECONDS:
            # Without the prefix FLARE's server takes the job for started.
            return admin.error_reply(f"{ERROR_MSG_PREFIX}: the job was not deployed since its last start, or long ago")
        return super().process(req, app_ctx)


class ChannelGuard(FLComponent):
    """Restricts what the cells of this process answer, from the moment that they exist.

    At a site, FLARE's shell command is removed, its command that deletes a job's folder deletes no other folder, a job
    starts once after each deployment, and only the server and the site's own processes are answered. At a server, nobody
    can send under another's name, and no request is passed from one site to another; a second copy of a connected kit is
    refused. Of plug-ins and of libraries' networks only those are used that the kit's lock lists. FLARE builds the
    component before any cell, in the processes of a kit and in those of its jobs; what else all of them need is done here.
    """

    def __init__(self) -> None:
        super().__init__()
        kit = _kit_of(sys.argv[1:])
        if kit:
            os.umask(PRIVATE)
            seal_kit(kit, sys.argv)
        processors = ClientRequestProcessors.request_processors
        own: dict[Any, Any] = {kind.__base__: kind for kind in (JobDeletion, JobDeployment, JobStart)}
        processors[:] = [
            own[type(processor)]() if type(processor) in own else processor
            for processor in processors
            if not isinstance(processor, ShellCommandProcessor)
        ]
        _check_submitted_jobs()
        if kit:
            outlive_full_logs()
            if not runs_a_job():
                show_life(kit)
            _list_plugins(kit)
            guard_copies(kit)
            guard_internal_ports(kit, begins=not runs_a_job())
        _guard_new_cells()
        share_cleanup_thread()
        outlive_slow_lines()
        replace_connect()
        if runs_a_job():
            end_with_parent()


def _kit_of(arguments: Sequence[str]) -> Path | None:
    """The kit of this process, by its arguments; None if it is of no kit."""
    parser = ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--workspace", "-m")  # as all of FLARE's processes of a kit have it
    folder = parser.parse_known_args(arguments)[0].workspace
    return Path(folder) if folder is not None and (Path(folder) / "startup").is_dir() else None


def _list_plugins(kit: Path) -> None:
    """Let this process, and those that it starts, use the plug-ins and networks that the kit's lock lists and no others."""
    path = kit / "local" / LOCK
    lock = read_json_object(path) if path.is_file() else {}
    networks = {name: list(Distribution(**entry)) for name, entry in lock.get("networks", {}).items()}
    os.environ[LISTED_VARIABLE] = json.dumps([list(Distribution(**entry)) for entry in lock.get("plugins", [])])
    os.environ[NETWORKS_VARIABLE] = json.dumps(networks)
    load_plugins.cache_clear()


def refusal(cell: str, neighbour: str, origin: str, destination: str, channel: str) -> str:
    """Why a cell must not handle a request; empty if it may.

    Cells are named by path: ``server``, ``server.JOB``, ``hospital-a``, ``hospital-a.JOB``. All processes of a participant
    have the same first part, which FLARE compares with the certificate of the connection.

    Args:
        cell: that has received the request.
        neighbour: from whose connection it came; this name was compared with a certificate, or proven by the secret of
            this start.
        origin: who has sent it, by the request's own header.
        destination: for whom it is.
        channel: FLARE's.

    Example:
        >>> refusal("hospital-b", "server", "hospital-a", "hospital-b", "admin")
        'hospital-b answers the server only, not hospital-a'
        >>> refusal("server", "hospital-a", "server", "hospital-b", "admin")
        'hospital-a sends in the name of server'
        >>> refusal("server.job", "server", "hospital-a.job", "server.job", "aux_communication")
        ''
        >>> refusal("hospital-b", "server", "server", "hospital-b", "admin")
        ''
    """
    here, sender, through = _participant(cell), _participant(origin), _participant(neighbour)
    if here == FQCN.ROOT_SERVER:
        # A job's process at the server gets what sites send through the server's main process, which has checked it.
        if through not in (sender, here):
            return f"{neighbour} sends in the name of {origin}"
        if sender != here and _participant(destination) not in (here, sender):
            return f"{origin} cannot reach {destination} through the server"
        return ""
    if sender == here == through:
        return ""
    if sender != FQCN.ROOT_SERVER or through not in (FQCN.ROOT_SERVER, here):
        return f"{here} answers the server only, not {origin if sender != FQCN.ROOT_SERVER else neighbour}"
    if channel not in FROM_SERVER:
        return f"{here} does not answer the server on {channel}"
    return ""


def _participant(cell: str) -> str:
    return str(FQCN.split(cell)[0]) if cell else ""


def _intercept(message: Message, cell: CoreCell) -> Message | None:
    """FLARE's hook for a request that a cell has received, before the cell passes it on or answers it."""
    neighbour = message.get_prop(MessagePropKey.ENDPOINT)
    origin = message.get_header(MessageHeaderKey.ORIGIN, "")
    destination = message.get_header(MessageHeaderKey.DESTINATION, "")
    channel = message.get_header(MessageHeaderKey.CHANNEL, "")
    reason = refusal(cell.get_fqcn(), neighbour.name if neighbour else "", origin, destination, channel)
    if not reason:
        return None
    cell.logger.error(f"request refused: {reason}")
    return make_reply(ReturnCode.UNAUTHENTICATED, error="refused")


def _check_submitted_jobs() -> None:
    """Let a server refuse a job that is more than data before FLARE reads it."""
    validate = JobMetaValidator.validate
    if getattr(validate, "guarded", False):
        return

    def validate_data(validator: JobMetaValidator, name: str, job: bytes | str) -> tuple[bool, str, dict[str, Any]]:
        try:
            require_job(read_files(Path(job) if isinstance(job, str) else job), name)
        except ConfigurationError as error:
            return False, str(error), {}
        return tuple(validate(validator, name, job))

    validate_data.guarded = True  # type: ignore[attr-defined]
    JobMetaValidator.validate = validate_data


def _guard_new_cells() -> None:
    """Let every cell of this process start with the interceptor.

    FLARE fires no event between making a job's cell and the first request that it answers.
    """
    start = CoreCell.start
    if getattr(start, "guarded", False):
        return

    def guarded_start(cell: CoreCell) -> None:
        cell.set_message_interceptor(_intercept, cell)
        start(cell)

    guarded_start.guarded = True  # type: ignore[attr-defined]
    CoreCell.start = guarded_start


def runs_a_job() -> bool:
    """Whether FLARE has started this process for a job."""
    return Path(sys.argv[0]).stem in JOB_MODULES


def end_with_parent(grace: float = PARENT_GRACE_SECONDS, poll: float = PARENT_POLL_SECONDS) -> None:
    """End this process when its parent has been gone for ``grace`` seconds.

    FLARE 2.9 does so too, but not where a site's process dies while a job starts: the job's process then reports to it for
    ever, fifteen times a second, and its client that was started again runs the next job beside it.
    """
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(poll)
        time.sleep(grace)
        os._exit(1)

    threading.Thread(target=watch, name="end-with-parent", daemon=True).start()
