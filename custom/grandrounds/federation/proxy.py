"""The way to the server, also through an HTTP proxy, which FLARE 2.9 does not take by its HTTP driver.

TLS is between the site and the server: the proxy learns the server's host and port only.
"""

from __future__ import annotations

import http.client
import os
import socket
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from grandrounds.errors import ConfigurationError

if TYPE_CHECKING:  # a simulation has no connections, and does not wait for aiohttp
    from nvflare.fuel.f3.drivers.aio_http_driver import AioHttpDriver
    from nvflare.fuel.f3.drivers.connector_info import ConnectorInfo

PROXY_VARIABLE = "GRANDROUNDS_PROXY"
CONNECT_SECONDS = 60.0


def proxy_url() -> str | None:
    """The proxy that ``$GRANDROUNDS_PROXY`` names, such as ``http://proxy.hospital.example:3128``; None without one.

    Raises:
        ConfigurationError: if it is no address of this form.
    """
    address = os.environ.get(PROXY_VARIABLE)
    if not address:
        return None
    parts = urlsplit(address)
    if parts.scheme != "http" or not parts.hostname or not parts.port:
        raise ConfigurationError(f"{PROXY_VARIABLE} must have the form http://HOST:PORT, got {address!r}")
    return address


def replace_connect() -> None:
    """Let FLARE's HTTP driver in this process connect through the proxy, if there is one, and not after its shutdown.

    FLARE 2.9 keeps a connection that is established after the shutdown, for example after a login has timed out, and
    waits for its end for ever.

    Raises:
        ConfigurationError: if the proxy's address has another form.
    """
    from nvflare.fuel.f3.drivers.aio_http_driver import AioHttpDriver

    proxy_url()
    AioHttpDriver.connect = _connect


def tunnel(host: str, port: int, seconds: float) -> socket.socket:
    """A TCP connection, through the proxy if there is one.

    Raises:
        OSError: if there is no connection, or the proxy refuses it.
    """
    proxy = proxy_url()
    if proxy is None:
        return socket.create_connection((host, port), seconds)
    parts = urlsplit(proxy)
    connection = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=seconds)
    connection.set_tunnel(host, port)
    connection.connect()
    return connection.sock


def _connect(driver: AioHttpDriver, connector: ConnectorInfo) -> None:
    """FLARE's method of this name, with the proxy, and with an end if the connector is stopped meanwhile."""
    import aiohttp
    from nvflare.fuel.f3.drivers.aio_http_driver import WS_PATH
    from nvflare.fuel.f3.drivers.driver_params import DriverParams
    from nvflare.fuel.f3.drivers.net_utils import get_ssl_context

    driver.connector = connector
    driver.ssl_context = get_ssl_context(connector.params, False)
    host, port = (connector.params[name.value] for name in (DriverParams.HOST, DriverParams.PORT))
    scheme = "wss" if driver.ssl_context else "ws"

    async def connect() -> None:
        address = f"{scheme}://{host}:{port}/{WS_PATH}"
        secured = driver.ssl_context or True
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(CONNECT_SECONDS)) as session,
            session.ws_connect(address, proxy=proxy_url(), ssl=secured) as websocket,
        ):
            if not connector.stopped.is_set():
                await driver._connection_handler(websocket)

    driver.aio_context.run_coro(connect()).result()
