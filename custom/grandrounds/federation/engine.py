"""All parties of a job in one process: FLARE's components under another communicator.

The job's own configuration is read by FLARE's own configurators, and the same controller, executors, filters and events run
as under ``nvflare simulator``, without sockets, polling or sleeping. Sites work one after the other in the order in which
they are asked, or several at a time in forked workers (:mod:`~grandrounds.federation.workers`). What needs FLARE's cells
(auxiliary messages, streaming, heartbeats) is not here, and a site cannot be late: deadlines apply to real federations only.
"""

from __future__ import annotations

import copy
import json
import shutil
import threading
from argparse import Namespace
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from nvflare.apis.client import Client
from nvflare.apis.controller_spec import ClientTask, SendOrder, Task, TaskCompletionStatus
from nvflare.apis.dxo import DXO
from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import FilterKey, FLContextKey, ProcessType, ReturnCode
from nvflare.apis.fl_context import FLContext, FLContextManager
from nvflare.apis.shareable import ReservedHeaderKey, Shareable, make_reply
from nvflare.apis.signal import Signal
from nvflare.apis.utils.event import fire_event_to_components
from nvflare.apis.utils.task_utils import apply_filters
from nvflare.apis.wf_comm_spec import WFCommSpec
from nvflare.apis.workspace import Workspace
from nvflare.app_opt.pt.decomposers import TensorDecomposer
from nvflare.fuel.utils import fobs
from nvflare.private.fed.app.fl_conf import create_privacy_manager
from nvflare.private.fed.client.client_json_config import ClientJsonConfigurator
from nvflare.private.fed.server.server_json_config import ServerJsonConfigurator
from nvflare.private.fed.utils.fed_utils import nvflare_fobs_initialize
from nvflare.private.privacy_manager import Scope
from torch import Tensor

from grandrounds.errors import ConfigurationError, GrandRoundsError
from grandrounds.federation.memory import shared_with_forks
from grandrounds.federation.server.exchange import NO_DEADLINES
from grandrounds.federation.workers import Errand, Workers
from grandrounds.protocol.messages import REASON_HEADER
from grandrounds.protocol.names import SERVER

SIMULATED_JOB = "simulate_job"  # the folder name that FLARE's simulator uses


class Party:
    """One party of the job: the engine that its FLARE components see.

    Args:
        name: the site's name, or ``server``.
        folder: its FLARE workspace.
        config: the FLARE configurator that has read its part of the job.
        clients: the sites, at the server.
    """

    def __init__(self, name: str, folder: Path, config: Any, clients: Sequence[Client] = ()) -> None:
        self.name = name
        self.workspace = Workspace(str(folder), name)
        self.config = config
        self.handlers: list[FLComponent] = [h for h in config.handlers if not isinstance(h, WFCommSpec)]
        self.abort_signal = Signal()
        self.panic: str | None = None
        self._clients = list(clients)
        self._contexts = FLContextManager(engine=self, identity_name=name, job_id=SIMULATED_JOB)
        self._app_root = self.workspace.get_app_dir(SIMULATED_JOB)  # FLARE looks at the disk each time it is asked
        privacy = create_privacy_manager(self.workspace, names_only=False)
        self.scope = privacy.get_scope(None) if privacy.is_policy_defined() else None
        self.handlers.extend(privacy.components.values() if privacy.components else ())

    def new_context(self) -> FLContext:
        """FLARE's hook: a context of this party."""
        context = self._contexts.new_context()
        context.set_prop(FLContextKey.WORKSPACE_OBJECT, self.workspace, private=True, sticky=False)
        context.set_prop(FLContextKey.SCOPE_OBJECT, self.scope, private=True, sticky=False)
        process = ProcessType.SERVER_JOB if self.name == SERVER else ProcessType.CLIENT_JOB
        context.set_prop(FLContextKey.PROCESS_TYPE, process, private=True, sticky=False)
        context.set_prop(FLContextKey.APP_ROOT, self._app_root, private=True, sticky=False)
        context.set_prop(NO_DEADLINES, True, private=True, sticky=False)
        return context

    def fire_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """FLARE's hook: fire an event if a component handles it; a fatal error ends the run."""
        if self.has_handler(event_type):
            fire_event_to_components(event_type, self.handlers, fl_ctx)
        if event_type == EventType.FATAL_SYSTEM_ERROR:
            self.panic = str(fl_ctx.get_prop(FLContextKey.EVENT_DATA, "fatal error"))
            self.abort_signal.trigger(True)

    def has_handler(self, event_type: str) -> bool:
        """Whether a component handles an event: FLARE's own hook does nothing where it is not overridden."""
        return any(
            type(handler).handle_event is not FLComponent.handle_event or event_type in handler.get_event_handlers()
            for handler in self.handlers
        )

    def fire(self, event_type: str) -> None:
        """Fire an event in a new context."""
        with self.new_context() as context:
            self.fire_event(event_type, context)

    def get_workspace(self) -> Workspace:
        """FLARE's hook: this party's workspace."""
        return self.workspace

    def get_clients(self) -> list[Client]:
        """FLARE's hook: the sites of the job."""
        return list(self._clients)

    def get_component(self, component_id: str) -> object:
        """FLARE's hook: a component of the job by its id."""
        return self.config.components.get(component_id)


class Site:
    """A site's side of a task, as FLARE's client runner does it: filters, executor, filters, and a reply in any case."""

    def __init__(self, party: Party) -> None:
        self.party = party
        self._runner = party.config.runner_config

    def work(self, task: str, message: Shareable, server: Mapping[str, Any]) -> Shareable:
        """Work on one task, of a server with these public properties, and answer."""
        peer = FLContext()
        peer.set_public_props(dict(server))
        with self.party.new_context() as context:
            context.set_peer_context(peer)
            context.set_prop(FLContextKey.TASK_NAME, task, private=True, sticky=False)
            try:
                reply = self._work(task, message, context)
            except Exception as error:
                self.party.handlers[0].log_exception(context, f"task {task} failed: {error}")
                reply = make_reply(ReturnCode.EXECUTION_EXCEPTION)
            reply.set_header(ReservedHeaderKey.TASK_NAME, task)
            return reply

    def _work(self, task: str, message: Shareable, context: FLContext) -> Shareable:
        executor = self._runner.task_router.route(task)
        if not isinstance(executor, Executor):
            return make_reply(ReturnCode.TASK_UNKNOWN)
        self._fire(EventType.BEFORE_TASK_DATA_FILTER, context, FLContextKey.TASK_DATA, message)
        try:
            message = apply_filters(
                Scope.TASK_DATA_FILTERS_NAME, message, context, self._runner.task_data_filters, task, FilterKey.IN
            )
        except Exception as error:
            executor.log_exception(context, f"a task data filter failed: {error}")
            return make_reply(ReturnCode.TASK_DATA_FILTER_ERROR)
        self._fire(EventType.AFTER_TASK_DATA_FILTER, context, FLContextKey.TASK_DATA, message)
        self._fire(EventType.BEFORE_TASK_EXECUTION, context, FLContextKey.TASK_DATA, message)
        reply = executor.execute(task, message, context, Signal(parent=self.party.abort_signal))
        self._fire(EventType.AFTER_TASK_EXECUTION, context, FLContextKey.TASK_RESULT, reply)
        self._fire(EventType.BEFORE_TASK_RESULT_FILTER, context, FLContextKey.TASK_RESULT, reply)
        try:
            reply = apply_filters(
                Scope.TASK_RESULT_FILTERS_NAME, reply, context, self._runner.task_result_filters, task, FilterKey.OUT
            )
        except Exception as error:
            executor.log_exception(context, f"a task result filter failed: {error}")
            return make_reply(ReturnCode.TASK_RESULT_FILTER_ERROR)
        self._fire(EventType.AFTER_TASK_RESULT_FILTER, context, FLContextKey.TASK_RESULT, reply)
        return reply

    def _fire(self, event_type: str, context: FLContext, key: str, message: Shareable) -> None:
        context.set_prop(key, message, private=True, sticky=False)
        self.party.fire_event(event_type, context)


LOCAL_FOLDER, STARTUP = "local", "startup"


class InProcessCommunicator(WFCommSpec):
    """Carries a task to a site and the answer back: before ``send`` returns, or with workers as soon as one is free.

    Args:
        server: the server's party.
        sites: the sites by name.
        wire: pass every message through FLARE's serialiser, as between machines.
        workers: work on the tasks; None for this process.
    """

    def __init__(self, server: Party, sites: dict[str, Site], wire: bool, workers: Workers | None = None) -> None:
        self._server = server
        self._sites = sites
        self._wire = wire
        self._workers = workers
        self._answering = threading.Lock()

    def send(
        self,
        task: Task,
        fl_ctx: FLContext,
        targets: list[Client] | list[str] | None = None,
        send_order: SendOrder = SendOrder.SEQUENTIAL,
        task_assignment_timeout: int = 0,
    ) -> None:
        """FLARE's hook: give the task to its one target."""
        for target in targets or []:
            self._ask(task, target if isinstance(target, str) else target.name, fl_ctx)

    def cancel_task(
        self,
        task: Task,
        completion_status: TaskCompletionStatus = TaskCompletionStatus.CANCELLED,
        fl_ctx: FLContext | None = None,
    ) -> None:
        """FLARE's hook: mark the task."""
        task.completion_status = completion_status

    def _ask(self, task: Task, site: str, fl_ctx: FLContext) -> None:
        if site not in self._sites:
            raise ConfigurationError(f"there is no site {site!r} (sites: {', '.join(self._sites)})")
        runner = self._server.config.runner_config
        message = apply_filters(
            Scope.TASK_DATA_FILTERS_NAME, task.data, fl_ctx, runner.task_data_filters, task.name, FilterKey.OUT
        )
        server = fl_ctx.get_all_public_props()
        if self._workers is None:
            reply = self._sites[site].work(task.name, self._carried(message), server)
            # Where no filter comes first, the server's first step is to copy the answer, see protocol.plain.
            filtered = runner.task_result_filters or self._server.scope
            self._answer(task, site, self._carried(reply) if self._wire or filtered else reply)
            return
        self._workers.take(
            Errand(
                site,
                (task.name, self._carried(message) if self._wire else message, server),
                wanted=lambda: task.completion_status is None,
                done=lambda reply: self._answer(task, site, self._carried(reply) if self._wire else reply),
                failed=lambda reason: self._answer(task, site, _failure(reason)),
            )
        )

    def _answer(self, task: Task, site: str, reply: Shareable) -> None:
        runner = self._server.config.runner_config
        with self._answering, self._server.new_context() as context:
            try:
                reply = apply_filters(
                    Scope.TASK_RESULT_FILTERS_NAME, reply, context, runner.task_result_filters, task.name, FilterKey.IN
                )
            except Exception as error:
                self._server.handlers[0].log_exception(context, f"a task result filter failed: {error}")
                reply = make_reply(ReturnCode.TASK_RESULT_FILTER_ERROR)
            client_task = ClientTask(client=Client(site, site), task=task)
            client_task.result = reply
            try:
                if task.result_received_cb:
                    task.result_received_cb(client_task=client_task, fl_ctx=context)
            finally:
                if task.completion_status is None:
                    task.completion_status = TaskCompletionStatus.OK

    def _carried(self, message: Shareable) -> Shareable:
        return fobs.loads(fobs.dumps(message)) if self._wire else _with_own_tensors(message)


def _failure(reason: str) -> Shareable:
    """The reply of a site whose worker has ended."""
    return make_reply(ReturnCode.EXECUTION_EXCEPTION, headers={REASON_HEADER: reason})


def _with_own_tensors(value: Any) -> Any:
    """Copy a message, so that no party can change a tensor of another: between machines it could not either."""
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, DXO):
        return DXO(value.data_kind, _with_own_tensors(value.data), dict(value.meta))
    if isinstance(value, dict):
        own = {key: _with_own_tensors(item) if isinstance(item, _COPIED) else item for key, item in value.items()}
        if type(value) is dict:
            return own
        twin = copy.copy(value)
        twin.update(own)
        return twin
    return value


_COPIED = (dict, Tensor, DXO)


def run_in_process(job: Path, workspace: Path, sites: Sequence[str], wire: bool = False, workers: int = 1) -> None:
    """Run a job folder with these sites in this process, or in workers that it forks.

    Args:
        job: a FLARE job folder with ``meta.json`` and one app for all parties.
        workspace: becomes the root of the FLARE workspaces of all parties, laid out as the simulator does.
        sites: names of the sites.
        wire: pass every message through FLARE's serialiser.
        workers: forked processes that train sites at the same time; with 1 nothing is forked.

    Raises:
        ConfigurationError: if the job is not a job folder, or processes cannot be forked here.
        GrandRoundsError: if the run ended with a fatal error; its message is the reason.
    """
    app = _app_folder(job)
    clients = [Client(name, name) for name in sites]
    server = _party(app, workspace, SERVER, clients)
    parties = {name: _party(app, workspace, name) for name in sites}
    # FLARE's types before ours: a process that serialises before it registers them loses FLARE's own.
    nvflare_fobs_initialize()
    fobs.register(TensorDecomposer)
    at_work = {name: Site(party) for name, party in parties.items()}
    everyone = [server, *parties.values()]
    running = ExitStack()
    try:
        for party in everyone:
            party.fire(EventType.START_RUN)
        pool = None
        if workers > 1:
            running.enter_context(shared_with_forks())
            pool = running.enter_context(Workers(workers, lambda site, *request: at_work[site].work(*request)))
        communicator = InProcessCommunicator(server, at_work, wire, pool)
        for workflow in server.config.runner_config.workflows:
            workflow.controller.set_communicator(communicator)
            _run_workflow(workflow.controller, server)
    finally:
        running.close()
        for party in everyone:
            party.fire(EventType.ABOUT_TO_END_RUN)
            party.fire(EventType.END_RUN)
    if server.panic:
        raise GrandRoundsError(server.panic)


def _run_workflow(controller: Any, server: Party) -> None:
    with server.new_context() as context:
        controller.initialize(context)
        server.fire_event(EventType.START_WORKFLOW, context)
    try:
        with server.new_context() as context:
            controller.control_flow(server.abort_signal, context)
    finally:
        with server.new_context() as context:
            controller.stop_controller(context)
            server.fire_event(EventType.END_WORKFLOW, context)


def _app_folder(job: Path) -> Path:
    try:
        deploy_map = json.loads((job / "meta.json").read_text())["deploy_map"]
    except (OSError, ValueError, KeyError) as error:
        raise ConfigurationError(
            f"{job} is not a job folder: meta.json with a deploy_map is needed ({error})"
        ) from error
    if len(deploy_map) != 1:
        raise ConfigurationError(
            f"{job}: one app for all parties is supported here, meta.json has {sorted(deploy_map)}"
        )
    return job / str(next(iter(deploy_map)))


def _deploy(app: Path, workspace: Path, name: str) -> Path:
    folder = workspace / name
    shared = workspace / LOCAL_FOLDER
    for part in (LOCAL_FOLDER, STARTUP):
        (folder / part).mkdir(parents=True, exist_ok=True)
    if shared.is_dir():
        shutil.copytree(shared, folder / LOCAL_FOLDER, dirs_exist_ok=True)
    target = folder / SIMULATED_JOB / f"app_{name}" / "config"
    with suppress(FileNotFoundError):
        shutil.rmtree(target)
    shutil.copytree(app / "config", target)
    return folder


def _party(app: Path, workspace: Path, name: str, clients: Sequence[Client] = ()) -> Party:
    folder = _deploy(app, workspace, name)
    site_workspace = Workspace(str(folder), name)
    is_server = name == SERVER
    configurator = (ServerJsonConfigurator if is_server else ClientJsonConfigurator)(
        workspace_obj=site_workspace,
        config_file_name=(
            site_workspace.get_server_app_config_file_path
            if is_server
            else site_workspace.get_client_app_config_file_path
        )(SIMULATED_JOB),
        app_root=site_workspace.get_app_dir(SIMULATED_JOB),
        args=Namespace(
            sp_scheme="", sp_target="", client_name=name, job_id=SIMULATED_JOB, workspace=str(folder), set=[]
        ),
        kv_list=[],
    )
    configurator.configure()
    return Party(name, folder, configurator, clients)
