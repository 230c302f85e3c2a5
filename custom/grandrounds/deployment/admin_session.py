"""FLARE's session of a person with the server, with errors that say what to do."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress

from nvflare.fuel.flare_api.api_spec import (
    AuthenticationError,
    AuthorizationError,
    InternalError,
    InvalidJobDefinition,
    JobNotDone,
    JobNotFound,
    NoConnection,
    SessionClosed,
)
from nvflare.fuel.flare_api.flare_api import Session, new_secure_session

from grandrounds.deployment.kit import Kit
from grandrounds.errors import ConfigurationError, GrandRoundsError

CONNECT_SECONDS = 10.0


@contextmanager
def admin_session(kit: Kit, timeout: float = CONNECT_SECONDS) -> Iterator[Session]:
    """Log in with a person's kit, and out at the end.

    Raises:
        ConfigurationError: if the kit is not a person's.
        GrandRoundsError: if the server cannot be reached, does not know the person, or refuses a command in the block.
    """
    if kit.kind != "person":
        raise ConfigurationError(
            f"{kit.folder} is the kit of a {kit.kind}; jobs are submitted with the kit of a person"
        )
    session = None
    try:
        session = _log_in(kit, timeout)
        yield session
    except (NoConnection, SessionClosed) as error:
        raise GrandRoundsError(
            f"no connection to the server at {kit.host}:{kit.port} ({error}); is it running, and is the port open?"
        ) from error
    except AuthenticationError as error:
        raise GrandRoundsError(
            f"the server at {kit.host}:{kit.port} does not accept {kit.name} ({error}); the kit may be another project's"
        ) from error
    except AuthorizationError as error:
        raise GrandRoundsError(f"{kit.name} may not do this: {error}") from error
    except (InvalidJobDefinition, JobNotDone, JobNotFound, InternalError, RuntimeError, TimeoutError) as error:
        raise GrandRoundsError(f"the server refuses: {error}") from error
    finally:
        if session is not None:
            _close(session)


def connected_sites(session: Session) -> list[str]:
    """Names of the sites that the server sees."""
    return sorted(client.name for client in session.get_system_info().client_info)


def _log_in(kit: Kit, timeout: float) -> Session:
    try:
        with _quiet():
            return new_secure_session(kit.name, str(kit.folder), timeout=timeout, auto_login_max_tries=1)
    except TypeError as error:
        # FLARE reads messages by what its serialiser has registered, once for a process; the server's certificate is lost if
        # messages were serialised here before FLARE had registered its own types.
        raise GrandRoundsError(
            f"the answer of the server at {kit.host}:{kit.port} cannot be read in this process, in which something else has "
            "used FLARE's serialiser before; try again in a new one"
        ) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep FLARE's remarks from the terminal: what went wrong is told by the error."""
    root = logging.getLogger()
    if not root.handlers:
        root.addHandler(logging.NullHandler())
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        yield


def _close(session: Session) -> None:
    # The work is done: a server that has gone away is no reason to fail any more.
    with suppress(Exception), _quiet():
        session.close()
