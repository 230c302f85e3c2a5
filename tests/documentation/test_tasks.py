"""Twelve tasks of a newcomer, whose commands are taken from the README and the pages alone; what each must print.

The names of the reader's own images, runs and folders take the place of the pages' names.
"""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.documentation import world
from tests.documentation.pages import blocks, commands, text_of
from tests.documentation.running import exit_status

IN_TEXT = re.compile(r"(?<!`)`(grandrounds [^`]+)`(?!`)")


class Step(NamedTuple):
    """A command: the page that has it, how it begins, a line that it prints, and names of the reader's own.

    A name that ends in a space is a part that the reader adds.
    """

    page: str
    begins: str
    prints: str
    own: Mapping[str, str] = {}
    status: int = 0


FIRST = {"WORKSPACE": "runs/first", "runs/ham/sites": "runs/first/sites"}
SEEDS = {"runs/ham/sites": "runs/first/sites", "--seeds 1,2": "--seeds 1,2,3", "ridge fedavg": "ridge local fedavg"}
CLINIC = {"WORKSPACE": "runs/ham/ridge", "--failures PRIVATE/errors.png": ""}
RUN = Step("README.md", "grandrounds simulate --images images", r"\nresults: runs/first/results")


def images_of_york_away(folder: Path) -> None:
    """York's images are not there any more."""
    (folder / "images" / "York").rename(folder / "York")


TASKS: Mapping[str, list[Step | Callable[[Path], None]]] = {
    "1 which images are wrong": [
        world.readme,
        RUN,
        Step(
            "docs/how-to/results.md", "grandrounds report WORKSPACE --out PRIVATE", "PRIVATE-REPORT/report.html", FIRST
        ),
    ],
    "2 three methods, three seeds, one figure": [
        world.readme,
        RUN,
        Step("docs/how-to/seeds.md", "grandrounds sweep ridge fedavg", "runs/ham/methods/report/report.html", SEEDS),
    ],
    "3 a network of timm": [
        world.readme,
        Step(
            "docs/how-to/pretrained-networks.md",
            "grandrounds simulate fedavg --image-size 64 --backbone torchvision",
            r"timm:resnet10t.* from random weights",
            {"torchvision:shufflenet_v2_x0_5": "timm:resnet10t.c3_in1k"},
        ),
    ],
    "4 a sheet of Excel": [
        world.clinicians_sheet,
        Step(
            "docs/how-to/excel-sheet.md", "grandrounds import Fallliste.csv", r"96 rows found = 96 used \+ 0 left out"
        ),
        Step("docs/how-to/excel-sheet.md", "grandrounds simulate fedavg", r"96 images at 2 sites"),
    ],
    "6 what left my hospital": [
        world.readme,
        RUN,
        Step(
            "examples/paper/README.md",
            "python -m examples.paper runs/fedperl-1",
            r"\d+ files: paper",
            {"runs/fedperl-1 runs/fedperl-2 runs/fedperl-3 Local=runs/local": "runs/first"},
        ),
    ],
    "7 the model in another tool": [
        world.readme,
        RUN,
        Step("docs/how-to/results.md", "grandrounds export RUN", r"DIR/model.onnx", {"RUN": "runs/first"}),
    ],
    "8 an unseen hospital": [
        world.clinic,
        Step(
            "docs/tutorial.md",
            "grandrounds partition ham10000",
            r"runs/ham/sites",
            {"--scheme sites --sites 10": "--sites 4"},
        ),
        Step("docs/tutorial.md", "grandrounds simulate --sites-dir", r"\nresults: runs/ham/ridge/results"),
        Step("docs/how-to/unseen-hospital.md", "grandrounds import clinic.csv", r"140 rows found = 140 used"),
        Step("docs/how-to/unseen-hospital.md", "grandrounds evaluate WORKSPACE", r"Clinic A: 140 test images", CLINIC),
    ],
    "9 go on with an interrupted run": [
        world.readme,
        Step("docs/tutorial.md", "grandrounds simulate fedperl --workspace", r"\nresults: runs/first/results"),
        Step(
            "docs/tutorial.md",
            "grandrounds simulate fedperl --workspace",
            r"resumed",
            {"fedperl ": "fedperl --rounds 2 "},
        ),
    ],
    "10 an own loss, rule for updates, view": [
        world.readme,
        Step("docs/how-to/add-a-method.md", "grandrounds new loss focal", r"focal"),
        Step("docs/how-to/add-a-method.md", "grandrounds new aggregator roots", r"roots"),
        Step("docs/how-to/add-an-augmentation.md", "grandrounds new view NAME", r"turned", {"NAME": "turned"}),
    ],
    "11 the GPU": [
        world.readme,
        Step(
            "docs/how-to/gpu.md",
            "grandrounds simulate fedavg",
            r"^synthetic images at .*; device (cpu|cuda, \d+ GPUs?)\n",
        ),
    ],
    "12 why a site was dropped": [
        world.readme,
        RUN,
        images_of_york_away,
        Step(
            "docs/tutorial.md",
            "grandrounds simulate --sites-dir",
            r"York.*images",
            {"runs/ham/sites": "runs/first/sites", "runs/ham/ridge": "runs/second"},
            status=1,
        ),
    ],
}
FEDERATION = [
    Step("README.md", "grandrounds poc up", r"server"),
    Step("README.md", "grandrounds poc submit", r"finished|FINISHED"),
    Step("README.md", "grandrounds poc down", r""),
]
SLOW = {
    "2 three methods, three seeds, one figure",
    "3 a network of timm",
    "7 the model in another tool",
    "8 an unseen hospital",
}


def words_of(step: Step) -> list[str]:
    """The words of a command as the reader types them; an AssertionError names the page that does not have it."""
    shown = [block.text for block in blocks(step.page) if block.language == "bash"]
    shown += IN_TEXT.findall(text_of(step.page))
    lines = (line for text in shown for line in text.replace("\\\n", " ").splitlines())
    line = next((line for line in map(str.strip, lines) if line.startswith(step.begins)), None)
    assert line is not None, f"{step.page} has no command {step.begins}"
    for name, own in step.own.items():
        assert name in line, f"{step.page}: no {name} in {line}"
        line = line.replace(name, own)
    return next(iter(commands(line, {}))).words


@pytest.mark.parametrize(
    "task", [pytest.param(task, marks=[pytest.mark.documentation] * (task in SLOW)) for task in TASKS]
)
def test_a_task_is_done_by_the_commands_of_the_pages(task, place, monkeypatch, capfd):
    for step in TASKS[task]:
        if not isinstance(step, Step):
            step(place)
            continue
        words = words_of(step)
        status = exit_status(words, monkeypatch)
        said = "".join(capfd.readouterr())
        assert status == step.status, f"{words}\n{said}"
        assert re.search(step.prints, said, re.MULTILINE), f"{words}\n{said}"


@pytest.mark.documentation
@pytest.mark.provisioned
def test_two_hospitals_train_by_kits_on_one_machine(tmp_path):
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    for step in FEDERATION:
        ended = subprocess.run(
            words_of(step), cwd=tmp_path, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False
        )
        said = ended.stdout + ended.stderr
        assert ended.returncode == 0, said
        assert re.search(step.prints, said, re.MULTILINE), said
