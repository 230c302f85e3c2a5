"""What all tests share: one thread of torch, one cache of decoded images, and where the real images are."""

import csv
import gc
import json
import os
import random
import re
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, settings

from grandrounds import plugins
from grandrounds.data.partition.phantom_site import phantom_site

REPOSITORY = Path(__file__).parents[1]
DURATIONS = Path(__file__).with_name("durations.json")
"""CPU seconds of the tests that are ``long``; ``pytest --write-durations`` measures those that it runs again."""
LONG_SECONDS = 1.0

# Examples are the same each time, and may take their time on a machine with other work.
settings.register_profile(
    "repeatable", derandomize=True, database=None, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("repeatable")


def pytest_addoption(parser):
    parser.addoption("--write-durations", action="store_true", help=f"measure the tests for {DURATIONS.name}")


def pytest_configure(config):
    if config.getoption("--write-durations"):
        config.pluginmanager.register(Measured() if hasattr(config, "workerinput") else Durations())


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """What is collected stays until the end: to look through it for garbage, now and later, costs a third of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Long files come first, so that no worker is left alone with one at the end; long tests are marked."""
    seconds = json.loads(DURATIONS.read_text())
    files = Counter()
    for name, lasted in seconds.items():
        files[name.partition("::")[0]] += lasted
    items.sort(key=lambda item: -files[item.nodeid.partition("::")[0]])
    for item in items:
        if item.nodeid in seconds:
            item.add_marker(pytest.mark.long)


class Measured:
    """Writes into each report the CPU seconds of this process and its children since the last of the same test."""

    def seconds(self):
        return sum(os.times()[:4])

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self):
        self.before = self.seconds()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self):
        report = yield
        before, self.before = self.before, self.seconds()
        report.cpu_seconds = self.before - before
        return report


class Durations(Measured):
    """Adds up the seconds of each test that passes, and writes those of the long ones in place of what is known of them."""

    def __init__(self):
        self.measured, self.passed = Counter(), Counter()

    def pytest_runtest_logreport(self, report):
        self.measured[report.nodeid] += getattr(report, "cpu_seconds", 0)
        self.passed[report.nodeid] += report.passed

    def pytest_sessionfinish(self):
        measured = {name: round(lasted, 1) for name, lasted in self.measured.items() if self.passed[name] == 3}
        known = json.loads(DURATIONS.read_text()) | measured
        longest = sorted(
            (item for item in known.items() if item[1] >= LONG_SECONDS), key=lambda item: (-item[1], item[0])
        )
        DURATIONS.write_text(json.dumps(dict(longest), indent=1) + "\n")


@pytest.fixture(autouse=True, scope="session")
def one_torch_thread():
    """Sums depend on the number of threads in the last bits, and threads wait for each other on a busy machine."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def nothing_waits_for_the_disk():
    """A sync matters where the power fails, which no test lets happen; tests of syncing put a function of their own in."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: None)
        yield


@pytest.fixture(autouse=True)
def seeded():
    """What a test draws without a generator of its own, such as the weights of a layer, is the same each time."""
    random.seed(0)
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def registrations_of_one_test():
    """What a test registers is its own: new processes of later tests would look for its module."""
    registering = plugins._registering
    plugins._registering = dict(registering)
    yield
    plugins._registering = registering


@pytest.fixture
def nothing_frozen():
    """The search for garbage looks through all objects, as in a process without tests."""
    gc.unfreeze()
    yield
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def no_reference():
    """Runs have no reference row, which would take longer than most of them; tests of the row ask for it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRANDROUNDS_REFERENCE", "0")
        yield


@pytest.fixture(autouse=True, scope="session")
def wide_terminal():
    """Tables are as wide in a worker of pytest-xdist, which has no terminal, as elsewhere."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "160")
        yield


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory):
    """Draw and decode the phantoms once for all federations of the session, also in several processes."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "cache"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRANDROUNDS_CACHE", str(folder))
        yield folder


@pytest.fixture(scope="session")
def free_port():
    """Finds a free port of this machine, not among those that Linux gives to connections meanwhile: ``free_port()``."""

    def find():
        while True:
            with socket.socket() as probe, suppress(OSError):
                probe.bind(("", random.SystemRandom().randrange(20_000, 32_768)))
                return probe.getsockname()[1]

    return find


@pytest.fixture(scope="session")
def realdata() -> Path:
    """The folder with the real images; the test is skipped where there is none."""
    named = os.environ.get("GRANDROUNDS_DATA")
    folder = Path(named) if named else REPOSITORY.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"{folder} is not there; set GRANDROUNDS_DATA to the folder with the real images")
    return folder


@pytest.fixture(scope="session")
def phantom_hospitals(tmp_path_factory, shared_cache):
    """Hospitals with drawn images, all with labels: ``phantom_hospitals({"site-1": 48})`` gives a new folder of sites."""

    def draw(images):
        folder = tmp_path_factory.mktemp("hospitals")
        for site, count in images.items():
            phantom_site(site, folder, size=32, images=count, labelled=1.0)
        return folder

    return draw


NO_COUNT_OF_PATIENTS = {"sites", "rounds", "runs", "dropped in", "epsilon"}
"""Columns of a report's tables with whole numbers that are of no patient."""
COUNTS_IN_JSON = {"cases", "images", "n", "support"}


@pytest.fixture
def small_counts() -> Callable[[Path], list[str]]:
    """Find the counts from one to nine in a report's folder: its page, tables, confusion matrices, numbers and card."""

    def find(folder: Path) -> list[str]:
        page = (folder / "report.html").read_text()
        found = [f"report.html: {text}" for text in re.findall(r"\((?:n = )?[1-9]\)", page.replace("one seed (1)", ""))]
        for table in re.findall(r"<table.*?</table>", page, re.DOTALL):
            header = re.findall(r"<th scope=\"col\"[^>]*>(.*?)</th>", table, re.DOTALL)
            for row in re.findall(r"<tr>.*?</tr>", table, re.DOTALL)[1:]:
                cells = zip(header, re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL), strict=False)
                counts = ((name, text) for name, text in cells if name.strip() not in NO_COUNT_OF_PATIENTS)
                found += [f"report.html: {name} {text}" for name, text in counts if _has_small_count(text)]
        for path in sorted((folder / "tables").glob("*.csv")):
            with path.open() as stream:
                rows = list(csv.DictReader(stream))
            found += [f"{path.name}: {row}" for row in rows for name in ("cases", "images") if _is_small(row.get(name))]
        for path in sorted((folder / "figures").glob("*confusion.svg")):
            found += [f"{path.name}: {n}" for n in re.findall(r">\s*([1-9])\s*</text>", path.read_text())]
        for path in sorted(folder.glob("*.json")):
            found += [f"{path.name}: {count}" for count in _json_counts(json.loads(path.read_text())) if 0 < count < 10]
        return found

    return find


def _has_small_count(text: str) -> bool:
    """Whether a cell is a small count, or several counts between strokes with one among them."""
    return any(_is_small(part.strip()) for part in text.split("/"))


def _is_small(text: str | None) -> bool:
    return bool(text) and text.isdigit() and 0 < int(text) < 10


def _json_counts(content: Any, inside: bool = False) -> Iterator[int]:
    if isinstance(content, dict):
        for name, value in content.items():
            yield from _json_counts(value, inside or name in COUNTS_IN_JSON)
    elif isinstance(content, list):
        for value in content:
            yield from _json_counts(value, inside)
    elif inside and type(content) is int:
        yield content
