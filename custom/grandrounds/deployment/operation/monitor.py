"""A read-only page with the state of a federation or a run, at the loopback address.

The address has a token, because every user of a machine can reach its loopback address. The host name of a request is
checked, so that no other site's page can read it through a name of its own. The page needs no script and no other file.
"""

from __future__ import annotations

import asyncio
import hmac
import re
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from aiohttp import web

from grandrounds.data.fitness import Finding
from grandrounds.deployment.kit.doctor import OTHERS
from grandrounds.deployment.operation.metrics import exposition
from grandrounds.deployment.operation.status import Status, comparable_scores, describe_score
from grandrounds.errors import ConfigurationError, GrandRoundsError
from grandrounds.federation.server.record import AT_SERVER, MEAN
from grandrounds.files import write_bytes
from grandrounds.reporting.tables import format_bytes, page_template

LOOPBACK = "127.0.0.1"
HOSTS = (LOOPBACK, "localhost")
TOKEN = re.compile(r"[A-Za-z0-9_-]{16,}")
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'",
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
CHART_WIDTH, CHART_HEIGHT, MARGIN = 640, 220, 34
Source = Callable[[], Status]


class Monitor:
    """The pages of one source, which is looked at no more often than every few seconds.

    Args:
        source: gives the state.
        every: seconds between two looks; the page refreshes itself as often.
        token: part of the address.
    """

    def __init__(self, source: Source, every: int, token: str) -> None:
        self._source, self._every, self.token = source, every, token
        self._last: Status | None = None
        self._looked = 0.0
        self._lock = asyncio.Lock()
        self._template = page_template("monitor.html", "grandrounds.deployment.operation")

    def application(self) -> web.Application:
        """The pages ``/TOKEN/``, ``/TOKEN/status.json`` and ``/TOKEN/metrics``; everything else is not found."""
        application = web.Application(client_max_size=1024)
        application.router.add_get("/{token}/", self._page)
        application.router.add_get("/{token}/status.json", self._json)
        application.router.add_get("/{token}/metrics", self._metrics)
        return application

    async def _page(self, request: web.Request) -> web.Response:
        self._admit(request)
        text = monitor_page(self._template, await self._state(), self._every)
        return web.Response(text=text, content_type="text/html", charset="utf-8", headers=HEADERS)

    async def _json(self, request: web.Request) -> web.Response:
        self._admit(request)
        state = await self._state()
        return web.json_response(state.to_json(), headers=HEADERS)

    async def _metrics(self, request: web.Request) -> web.Response:
        self._admit(request)
        text = exposition(await self._state())
        return web.Response(text=text, content_type="text/plain", charset="utf-8", headers=HEADERS)

    def _admit(self, request: web.Request) -> None:
        given = request.match_info["token"].encode()
        if not hmac.compare_digest(given, self.token.encode()) or request.host.partition(":")[0] not in HOSTS:
            raise web.HTTPNotFound(headers=HEADERS)

    async def _state(self) -> Status:
        async with self._lock:
            if self._last is None or time.monotonic() - self._looked >= self._every:
                self._last = await asyncio.to_thread(self._look)
                self._looked = time.monotonic()
            return self._last

    def _look(self) -> Status:
        try:
            return self._source()
        except (GrandRoundsError, OSError) as error:
            return Status("monitor", "run", [Finding("failure", "monitor", str(error))])


def serve_monitor(monitor: Monitor, port: int, report: Callable[[str], None]) -> None:
    """Serve the page until the process is interrupted.

    Args:
        monitor: the pages.
        port: at the loopback address; 0 for a free one.
        report: called with the address.
    """
    asyncio.run(_serve(monitor, port, report))


def read_token(path: Path | None) -> str:
    """The token in a file, which is made with a new one where it is missing; without a file a new one.

    Raises:
        ConfigurationError: if the file is empty, has other signs than an address, or others can read it.
    """
    if path is None:
        return secrets.token_urlsafe(16)
    if not path.exists():
        write_bytes(path, f"{secrets.token_urlsafe(16)}\n".encode(), private=True)
    token = path.read_text(encoding="utf-8").strip()
    if not TOKEN.fullmatch(token):
        raise ConfigurationError(
            f"{path}: a token has 16 or more letters, digits, - and _; remove the file for a new one"
        )
    if path.stat().st_mode & OTHERS:
        raise ConfigurationError(f"{path}: others can read the token; chmod 600 {path}")
    return token


async def _serve(monitor: Monitor, port: int, report: Callable[[str], None]) -> None:
    runner = web.AppRunner(monitor.application(), access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, LOOPBACK, port)
        await site.start()
        report(f"http://{LOOPBACK}:{runner.addresses[0][1]}/{monitor.token}/")
        await asyncio.Event().wait()
    finally:
        await runner.cleanup()


def monitor_page(template: Any, status: Status, every: int) -> str:
    """The page as HTML; all text is escaped."""
    runs = [{**run, "curve": score_curve(run["scores"])} for run in status.runs]
    events = [(event["event"], _described(event)) for event in reversed(status.events)]
    shown = {"runs": runs, "events": events, "every": every, "clock": time.strftime("%H:%M:%S")}
    return str(template.render(shown, status=status, size=(CHART_WIDTH, CHART_HEIGHT), format_bytes=format_bytes))


def score_curve(scores: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Coordinates of a curve of scores with intervals, in a picture of ``WIDTH`` by ``HEIGHT``; empty without scores.

    Example:
        >>> score = {"metric": "accuracy", "by": "accuracy", "basis": "pooled", "mean": 0.5}
        >>> curve = score_curve({"1": {**score, "score": 0.5}, "3": {**score, "score": 1.0}})
        >>> curve["line"], curve["mean"], curve["ends"]
        ('34.0,110.0 606.0,34.0', '34.0,110.0 606.0,110.0', (1, 3))
    """
    known = comparable_scores(scores)
    if not known:
        return {}
    rounds = list(known)
    last = known[rounds[-1]]
    span = max(rounds[-1] - rounds[0], 1)
    low: float = min(0.0, *(score["score"] for score in known.values()))
    high = 1.0 if low == 0 else 0.0  # a log-likelihood is never positive

    def x(number: int) -> float:
        return MARGIN + (number - rounds[0]) / span * (CHART_WIDTH - 2 * MARGIN)

    def y(value: float) -> float:
        return MARGIN + (high - value) / (high - low) * (CHART_HEIGHT - 2 * MARGIN)

    def line(name: str, numbers: Iterable[int] = rounds) -> list[str]:
        return [f"{x(number):.1f},{y(known[number][name]):.1f}" for number in numbers]

    bounded = [number for number in rounds if "low" in known[number]]
    best = max(rounds, key=lambda number: (known[number]["score"], number))
    second = last["basis"] not in (MEAN, AT_SERVER) and last["by"] == last["metric"]
    return {
        "line": " ".join(line("score")),
        "mean": " ".join(line("mean", [number for number in rounds if "mean" in known[number]])) if second else "",
        "band": " ".join([*line("high", bounded), *line("low", reversed(bounded))]),
        "dot": (x(best), y(known[best]["score"])),
        "best": (best, describe_score(known[best])),
        "last": (rounds[-1], describe_score(last)),
        "ends": (rounds[0], rounds[-1]),
        "axis": [(round(value, 2), y(value)) for value in (low, (low + high) / 2, high)],
    }


def _described(event: Mapping[str, Any]) -> str:
    """An event's plain values as text."""
    hidden = ("event", "metrics", "moved", "facts")
    parts = [
        f"{key} {_short(value)}" for key, value in event.items() if key not in hidden and value not in ({}, [], "")
    ]
    return ", ".join(parts)


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list):
        return " ".join(map(str, value))
    if isinstance(value, dict):
        return "; ".join(f"{key}: {_short(entry)}" for key, entry in value.items())
    return str(value)
