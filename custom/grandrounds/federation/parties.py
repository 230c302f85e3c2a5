"""The parties of a simulated job: what FLARE's components see of the server's and of a site's engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nvflare.apis.client import Client
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
from nvflare.private.fed.app.fl_conf import create_privacy_manager
from nvflare.private.privacy_manager import Scope

from grandrounds.federation.server.exchange import NO_DEADLINES
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
