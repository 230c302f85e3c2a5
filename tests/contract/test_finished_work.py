"""Whatever stops a command that writes, what was there before stays whole, and nothing else is left behind.

Each command of one table is interrupted, meets a full disk or a read-only folder, or has another command write into its
folder, at an operation on files that is drawn: then there is what was there before, or one whole result, and the same
command succeeds afterwards.
"""

import json
import re
import resource
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from PIL import Image
from typer.testing import CliRunner

from grandrounds import folders
from grandrounds.cli import build_app
from grandrounds.plotting import Drawing
from grandrounds.reporting import page
from tests.contract.disturbing import disturbed, full, interrupting, meanwhile, read_only

TINY = ["--rounds=1", "--image-size=32", "--set=executor.steps=1", "--set=executor.batch_size=2", "--workers=1"]
TINY += ["--set=executor.device=cpu", "--no-reference"]


@dataclass(frozen=True)
class Command:
    """A command that writes, with tiny inputs.

    Attributes:
        name: of the command.
        arguments: by the world, the place of its output, and which of two inputs it has.
        one: whether the files of its folder belong together; else each is a whole result of its own, as is a page beside it.
        page: whether such a page follows the folder, so that the folder may be there without it.
        examples: how many moments are drawn for each fault.
    """

    name: str
    arguments: Callable[[SimpleNamespace, Path, int], list]
    one: bool = True
    page: bool = False
    examples: int = 4

    @property
    def in_parts(self) -> bool:
        """Whether a part of the result may stay where the command fails."""
        return self.page or not self.one


def _partition(source):
    return lambda world, out, which: [*source(world), "--out", out, "--sites", 2 + which, "--overwrite"]


COMMANDS = [
    Command("import", _partition(lambda world: ["import", world.images]), page=True),
    Command("report", lambda world, out, which: ["report", world.runs[which], "--out", out]),
    Command("figures", lambda world, out, which: ["figures", world.runs[which], "--out", out], examples=2),
    Command("export", lambda world, out, which: ["export", world.runs[which], "--out", out]),
    Command("build", lambda world, out, which: ["build", "fedavg", "--out", out, "--rounds", 2 + which]),
    Command(
        "predict",
        lambda world, out, which: ["predict", world.runs[which], world.clinic_images, "--out", out / "p.csv"],
    ),
    Command(
        "evaluate",
        lambda world, out, which: [
            *("evaluate", world.runs[which], "--sites-dir", world.clinic, "--out", out / "result.json"),
            *("--predictions", out / "p.csv", "--failures", out / "errors.png"),
        ],
        one=False,
        examples=2,
    ),
]
BY_NAME = {command.name: command for command in COMMANDS}


def draw(folder: Path, count: int, seed: int) -> Path:
    generator = np.random.default_rng(seed)
    for label in ("nevus", "melanoma"):
        (folder / label).mkdir(parents=True)
        for number in range(count):
            pixels = generator.integers(0, 256, (32, 32, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / label / f"{number}.png")
    return folder


def run(*arguments):
    return CliRunner().invoke(build_app(str(arguments[0])), [str(argument) for argument in arguments])


def sound(*arguments):
    result = run(*arguments)
    assert result.exit_code == 0, (result.output, result.exception)
    return result


@pytest.fixture(scope="module")
def world(tmp_path_factory, shared_cache):
    """Images, two runs of two sites with other models, a clinic that never took part, and an empty place for output."""
    base = tmp_path_factory.mktemp("world")
    made = SimpleNamespace(base=base, images=draw(base / "images", 24, 1), clinic_images=draw(base / "other", 12, 2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("grandrounds.console.progress.PATIENCE_SECONDS", 3600.0)
        patch.setattr(folders, "_PATIENCE_SECONDS", 0.0)
        patch.setattr(page, "run_drawings", _one_drawing)
        patch.setattr(page, "svg_of", lambda drawing: drawing.name.encode())
        sound("import", made.images, "--out", base / "sites", "--sites", 2)
        sound("import", made.clinic_images, "--out", base / "clinic", "--sites", 1)
        description = json.loads((base / "clinic" / "partition.json").read_text())
        (base / "clinic" / "site-1").rename(base / "clinic" / "clinic-1")
        description["sites"]["clinic-1"] = description["sites"].pop("site-1")
        (base / "clinic" / "partition.json").write_text(json.dumps(description))
        made.clinic = base / "clinic"
        made.sites = base / "sites"
        made.runs = [base / f"run-{seed}" for seed in (0, 1)]
        for seed, workspace in enumerate(made.runs):
            sound(*simulation(made, workspace, seed))
        yield made


def simulation(world, workspace, seed=0, *more):
    return ["simulate", "fedavg", "--sites-dir", world.sites, "--workspace", workspace, "--seed", seed, *TINY, *more]


def _one_drawing(report, run):
    figure = SimpleNamespace(get_size_inches=lambda: (1, 1))
    return [Drawing(f"{run.run.name}-scores", figure, "", "")]


def tree(folder: Path) -> dict[str, bytes]:
    """All files below a folder, but for dates, what a job's manifest draws, and the folder's own name."""
    changing = re.compile(rb'"(date|expires|id|number)": "[^"]*"|' + re.escape(str(folder.parent)).encode())
    return {
        path.relative_to(folder).as_posix(): changing.sub(b"", path.read_bytes())
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@contextmanager
def empty_place(world) -> Iterator[SimpleNamespace]:
    """A folder ``place`` for output and one ``temporary`` for temporary files, which must be empty in the end."""
    folder = Path(tempfile.mkdtemp(dir=world.base))
    (folder / "place").mkdir()
    (folder / "temporary").mkdir()
    children = set(psutil.Process().children())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(folder / "temporary"))
        yield SimpleNamespace(whole=folder, place=folder / "place", out=folder / "place" / "out")
    assert list((folder / "temporary").iterdir()) == []
    assert [path for path in folder.rglob(".*")] == []
    assert set(psutil.Process().children()) <= children
    shutil.rmtree(folder)


_known: dict[tuple, tuple[dict, int]] = {}


def result_of(world, command: Command, which: int, earlier: bool = False) -> tuple[dict[str, bytes], int]:
    """The files of a whole result, and the number of operations that it takes."""
    key = (command.name, which, earlier)
    if key not in _known:
        with empty_place(world) as at:
            if earlier:
                put(world, command, at)
            with disturbed(at.whole) as counted:
                sound(*command.arguments(world, at.out, which))
            _known[key] = tree(at.place), counted.seen
    return _known[key]


def put(world, command: Command, at: SimpleNamespace) -> dict[str, bytes]:
    """Have an earlier result, of the other input."""
    files = result_of(world, command, 1)[0]
    for name, content in files.items():
        (at.place / name).parent.mkdir(parents=True, exist_ok=True)
        (at.place / name).write_bytes(content)
    (at.out / "a person's").write_text("note") if command.name != "import" else None
    return tree(at.place)


def assert_whole(found, command: Command, *wholes) -> None:
    """Require one of several whole results; where files are each for itself, each of one of them or none."""
    together = {name for whole in (found, *wholes) for name in whole if command.one and name != "out.html"}
    assert [found.get(name) for name in together] in [[whole.get(name) for name in together] for whole in wholes]
    for name in found.keys() - together:
        assert found[name] in [whole.get(name) for whole in wholes], name


MOMENTS = st.integers(-12, -1) | st.integers(0, 10_000)
"""Operations from the first on, and, where results take their places, from the last one back."""


def drawn(examples):
    """Draw that many moments."""
    return settings(max_examples=examples, phases=[Phase.generate], suppress_health_check=list(HealthCheck))


def assert_one_line(result, *names):
    assert result.exit_code == 1, (result.output, result.exception)
    lines = [line for line in result.stderr.splitlines() if line.startswith("error:")]
    assert len(lines) == 1
    assert any(str(name) in lines[0] for name in names), lines


def assert_survives_an_interruption(world, command, earlier, moment):
    whole_result, count = result_of(world, command, 0, earlier)
    with empty_place(world) as at:
        before = put(world, command, at) if earlier else {}
        with disturbed(at.whole, interrupting(moment % count)) as seen:
            result = run(*command.arguments(world, at.out, 0))
        assert seen.seen > moment % count
        assert result.exit_code == 130, (result.output, result.exception)
        assert_whole(tree(at.place), command, before, whole_result)
        sound(*command.arguments(world, at.out, 0))
        assert tree(at.place) == whole_result


def assert_survives_a_full_disk(world, command, earlier, moment):
    whole_result, count = result_of(world, command, 0, earlier)
    with empty_place(world) as at:
        before = put(world, command, at) if earlier else {}
        with disturbed(at.whole, full(moment % count)):
            result = run(*command.arguments(world, at.out, 0))
        if result.exit_code:
            assert_one_line(result, at.place, at.whole / "temporary")
            assert_whole(tree(at.place), command, before, *[whole_result] * command.in_parts)
        else:
            assert tree(at.place) == whole_result
        sound(*command.arguments(world, at.out, 0))
        assert tree(at.place) == whole_result


def assert_survives_a_short_file(world, command, earlier, size):
    """No file can be longer than a size: a write itself fails, of which the system tells no name."""
    whole_result, _ = result_of(world, command, 0, earlier)
    longest = max(len(content) for content in whole_result.values())
    with empty_place(world) as at:
        before = put(world, command, at) if earlier else {}
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size % longest, hard))
        try:
            result = run(*command.arguments(world, at.out, 0))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert_one_line(result, at.place, at.whole / "temporary")
        assert_whole(tree(at.place), command, before, *[whole_result] * command.in_parts)


def assert_survives_another_command(world, command, earlier, moment):
    own, count = result_of(world, command, 0, earlier)
    with empty_place(world) as at:
        if earlier:
            put(world, command, at)
        others = []

        def act():
            others.append(run(*command.arguments(world, at.out, 1)))

        with disturbed(at.whole, meanwhile(moment % count, act)):
            result = run(*command.arguments(world, at.out, 0))
        both = [result, *others]
        refused = [one for one in both if one.exit_code]
        assert len(both) - len(refused) in (1, 2)
        for one in refused:
            assert_one_line(one, at.out)
        assert_whole(tree(at.place), command, own, result_of(world, command, 1, earlier)[0])
        assert sum(one.exit_code == 0 for one in both) >= 1


CHECKS = {
    "an interruption": assert_survives_an_interruption,
    "a full disk": assert_survives_a_full_disk,
    "a short file": assert_survives_a_short_file,
    "another command": assert_survives_another_command,
}
CASES = [(name, check, earlier) for name in BY_NAME for check in CHECKS for earlier in (False, True)]


@pytest.mark.parametrize(("name", "check", "earlier"), CASES)
def test_a_result_is_there_whole_or_not_at_all(world, name, check, earlier):
    @drawn(BY_NAME[name].examples)
    @given(MOMENTS)
    def at_any_moment(moment):
        assert_survives = CHECKS[check]
        assert_survives(world, BY_NAME[name], earlier, moment)

    at_any_moment()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "check", "earlier"), [case for case in CASES if case[1] != "a short file"])
def test_a_result_is_there_whole_or_not_at_all_at_every_moment(world, name, check, earlier):
    for moment in range(result_of(world, BY_NAME[name], 0, earlier)[1]):
        assert_survives = CHECKS[check]
        assert_survives(world, BY_NAME[name], earlier, moment)


@pytest.mark.parametrize("name", BY_NAME)
def test_a_read_only_folder_is_named_and_stays_as_it_is(world, name):
    command = BY_NAME[name]
    with empty_place(world) as at:
        before = put(world, command, at)
        with disturbed(at.place, read_only):
            result = run(*command.arguments(world, at.out, 0))
        assert_one_line(result, at.out)
        assert tree(at.place) == before


def scores(workspace: Path) -> dict:
    """What a run has found, which does not depend on how often it was stopped."""
    summary = json.loads((workspace / "results" / "summary.json").read_text())
    tables = {path.parent.name: path.read_text() for path in workspace.glob("results/*/predictions_*.csv")}
    return {"records": summary["records"], "selected": summary["selected"], "status": summary["status"], **tables}


@pytest.fixture(scope="module")
def operations(world):
    """How many operations on files a run has."""
    with empty_place(world) as at:
        with disturbed(at.whole) as counted:
            sound(*simulation(world, at.out))
        assert scores(at.out) == scores(world.runs[0])
    return counted.seen


def assert_goes_on(world, react, require):
    """Stop a run; nothing temporary is left, and the same command goes on to the same scores."""
    with empty_place(world) as at:
        with disturbed(at.whole, react):
            require(run(*simulation(world, at.out)), at)
        assert [path for path in at.whole.rglob(".*")] == []
        sound(*simulation(world, at.out))
        assert scores(at.out) == scores(world.runs[0])


def assert_goes_on_after_an_interruption(world, moment):
    assert_goes_on(world, interrupting(moment), lambda result, _: assert_interrupted(result))


def assert_interrupted(result):
    assert result.exit_code == 130, (result.output, result.exception)


def assert_goes_on_after_a_full_disk(world, moment):
    def require(result, at):
        if result.exit_code:
            assert_one_line(result, at.place, at.whole / "temporary")

    assert_goes_on(world, full(moment), require)


OF_RUNS = {
    "an interruption": assert_goes_on_after_an_interruption,
    "a full disk": assert_goes_on_after_a_full_disk,
}


@pytest.mark.parametrize("check", OF_RUNS)
def test_a_run_goes_on_to_the_same_scores(world, operations, check):
    @drawn(6)
    @given(st.floats(0, 1, exclude_max=True))
    def at_any_moment(moment):
        assert_goes_on_after = OF_RUNS[check]
        assert_goes_on_after(world, int(moment * operations))

    at_any_moment()


@pytest.mark.slow
@pytest.mark.parametrize("check", OF_RUNS)
def test_a_run_goes_on_to_the_same_scores_at_every_moment(world, operations, check):
    for moment in range(operations):
        assert_goes_on_after = OF_RUNS[check]
        assert_goes_on_after(world, moment)
