"""A job's options are typed values on the whole way, and checked once for each command."""

import ast
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import grandrounds
from grandrounds import cli
from grandrounds.api import running
from grandrounds.deployment import job_watch
from grandrounds.deployment.jobs import CheckedJob, Job, load_job
from grandrounds.deployment.kit import read
from grandrounds.errors import ConfigurationError
from grandrounds.methods.supervised.executor import SupervisedExecutor

PACKAGE = Path(grandrounds.__file__).parent
TINY = ["--rounds", "1", "--image-size", "32"]
READS_TEXT = {"parsed", "with_options"}


@pytest.fixture
def built(monkeypatch):
    """How many executors have been built, with nothing run."""
    made, plain = [], SupervisedExecutor.__init__

    def counted(self, **options):
        made.append(options)
        plain(self, **options)

    monkeypatch.setattr(SupervisedExecutor, "__init__", counted)
    monkeypatch.setattr(running, "simulate", lambda job, *_: job.checked())
    return made


@pytest.fixture
def own_images(tmp_path):
    """A folder with twenty pictures of each of two classes."""
    generator = np.random.default_rng(1)
    for name in ("nevus", "melanoma"):
        (tmp_path / "own" / name).mkdir(parents=True)
        for number in range(20):
            pixels = generator.integers(0, 256, (32, 32, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "own" / name / f"{name}{number}.png")


def not_connected(*_):
    raise ConfigurationError("no server")


@pytest.mark.parametrize(
    "command",
    [
        ["build", "fedavg", "--out", "built"],
        ["simulate", "fedavg", "--json"],
        ["simulate", "fedavg", "--images", "own", "--sites", "2", "--json"],
        ["submit", "fedavg", "--kit", "kit", "--dry-run"],
    ],
)
def test_a_command_checks_its_job_once(built, command, own_images, tmp_path, monkeypatch):
    from typer.testing import CliRunner

    monkeypatch.setattr(read, "read_kit", lambda _: None)
    monkeypatch.setattr(job_watch, "admin_session", not_connected)
    monkeypatch.chdir(tmp_path)
    CliRunner().invoke(cli.build_app(), [*command, *TINY])
    assert len(built) == 1


def test_gr_run_checks_its_job_once_and_keeps_the_types_of_options(built, tmp_path, monkeypatch):
    monkeypatch.setattr(running, "Run", lambda *_: None)
    options = {"executor.steps": 1, "controller.run_name": "2026"}
    running.run("fedavg", 2, rounds=1, options=options, workspace=tmp_path / "run", progress=False)
    assert len(built) == 1
    assert built[0]["steps"] == 1


def test_a_checked_job_is_a_type_and_is_not_checked_again(built):
    job = load_job("fedavg")
    checked = job.checked()
    assert isinstance(checked, CheckedJob)
    assert checked.checked() is checked
    assert len(built) == 1
    changed = checked.with_values({("executor", "steps"): 0})
    assert type(changed) is Job
    with pytest.raises(ConfigurationError, match="steps"):
        changed.checked()


def test_a_value_is_its_options_default_where_a_job_states_none():
    job = load_job("fedperl")
    del job.options("controller")["min_sites"]
    assert job.min_sites == 1
    assert job.with_values({("problem", "weights"): "2026"}).value("problem", "weights") == "2026"


def test_only_commands_read_text():
    readers = {path.relative_to(PACKAGE).parts[0] for path in PACKAGE.rglob("*.py") if _imported(path) & READS_TEXT}
    assert readers == {"commands"}


def _imported(path):
    nodes = ast.walk(ast.parse(path.read_text()))
    found = [
        node for node in nodes if isinstance(node, ast.ImportFrom) and node.module == "grandrounds.deployment.presets"
    ]
    return {name.name for node in found for name in node.names}
