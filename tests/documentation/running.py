"""Runs the blocks of a page, in order, in one folder and one Python namespace."""

import os
import re
import runpy
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

from grandrounds import cli, plugins
from tests.documentation.pages import ROOT, Command, blocks, commands
from tests.documentation.parsing import check_command

ELSEWHERE = {
    "CONTRIBUTING.md": "it runs all tests",
    "benchmarks/README.md": "it takes hours",
    "benchmarks/faults/README.md": "it takes an hour",
    "benchmarks/gpu/README.md": "it needs a GPU",
    "benchmarks/fed_align_devices/README.md": "it takes hours",
    "benchmarks/mdhfl_cifar10/README.md": "it takes an hour",
    "benchmarks/mdhfl_networks/README.md": "it takes hours",
    "benchmarks/null/README.md": "it takes half an hour",
    "benchmarks/house/README.md": "it compares checkouts",
    "examples/feddf/README.md": "it trains for minutes, tests/federation/test_feddf.py runs the job",
    "examples/joined_encoders/README.md": "it needs a package that no extra brings",
    "examples/rscfed/README.md": "it trains for minutes, tests/federation/fedirm/test_baselines.py runs the job",
    "benchmarks/rehearsal/README.md": "it takes more than an hour",
    "benchmarks/risks/README.md": "it needs published images",
    "docs/what-you-install.md": "it needs a startup kit",
    "benchmarks/ssl_pbc/README.md": "it takes hours",
    "benchmarks/ssl_ham10000/README.md": "it takes hours",
    "benchmarks/ssl_cifar10/README.md": "it takes hours",
    "benchmarks/stages/README.md": "it takes ten minutes",
    "benchmarks/upgrade/README.md": "it takes half an hour",
    "benchmarks/waiting/README.md": "it takes a quarter of an hour",
    "docs/data-protection.md": "it needs a startup kit",
    "docs/hospital.md": "it needs root and a signed certificate",
    "docs/how-to/consortium.md": "it needs a federation of several machines",
    "docs/how-to/kubernetes.md": "it needs a cluster",
    "docs/how-to/slurm.md": "it needs a cluster",
    "docs/how-to/move-a-machine.md": "it needs two machines; a test of its own replaces one",
    "docs/how-to/lost-ledger.md": "it needs a ledger that has lost lines; a test of its own runs it",
    "provisioning/README.md": "it needs several machines and a certificate authority",
}
"""Pages whose commands are checked by their parsers only, and why."""
OBSTACLES = {
    r"make|\.ci/run|\.venv/bin/pytest": "it runs tests",
    r"pip install": "it installs packages",
    r"cd MODEL/bundle|python -m monai\.bundle": "tests/unit/cli/test_bundle.py runs MONAI's commands",
    r"grandrounds (overlay kits|label next KIT)/": "it needs a startup kit",
    r"grandrounds import MANIFEST --metadata labelled": "tests/system/test_label_page.py runs it on labels from the page",
    r"python -m benchmarks\.weights\.resnet22": "it needs published weights",
    r".*python -m benchmarks\.(copies|troubles)\.run": "it needs published images",
    r"grandrounds weights add resnet18": "it needs published weights",
    r"grandrounds weights get": "it needs published weights",
    r"grandrounds partition (inbreast|rsna_ich)": "it needs published images",
}
"""Commands that are checked by their parsers only, and why."""
PROCESSES = re.compile(r"nvflare|grandrounds (poc|status --kit runs/poc|.*--engine flare)")
"""Commands that start processes, which take minutes."""


def exit_status(words: list[str], patch: pytest.MonkeyPatch) -> int:
    """Run ``grandrounds`` or ``python -m MODULE`` in this process."""
    program, *rest = words
    patch.setattr(sys, "argv", words)
    if program == "grandrounds":
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return ended.value.code
    assert (program, rest[0]) == ("python", "-m"), f"{program} is not run; give the reason in OBSTACLES"
    patch.setattr(sys, "argv", rest[1:])
    try:
        runpy.run_module(rest[1], run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        return ended.code
    return 0


class PageRunner:
    """Runs pages in the working directory.

    Args:
        patch: changes the environment for the time of a test.
        processes: whether to run commands that start processes; otherwise they are checked by their parsers.

    Attributes:
        outcomes: of every command, ``run``, or why it was not.
    """

    def __init__(self, patch: pytest.MonkeyPatch, processes: bool) -> None:
        self.outcomes: dict[str, str] = {}
        self._patch = patch
        self._processes = processes
        self._namespace: dict[str, Any] = {"__name__": "page"}
        self._variables = {"PWD": str(Path.cwd()), "KIT": "KIT"}

    def run(self, page: str, presumed: str = "") -> None:
        """Run all blocks of a page after the commands that it presumes; files with a title are written."""
        self._shell(presumed, f"before {page}", page)
        for block in blocks(page):
            if block.language == "python":
                with warnings.catch_warnings():
                    warnings.filterwarnings("ignore", "the patients are unknown")
                    exec(compile("\n" * block.line + block.text, ROOT / page, "exec"), self._namespace)
            elif block.language == "bash":
                self._shell(block.text, str(block), page)
            elif block.title:
                Path(block.title).parent.mkdir(parents=True, exist_ok=True)
                Path(block.title).write_text(block.text)

    def _shell(self, text: str, where: str, page: str) -> None:
        for command in commands(text, self._variables):
            line = " ".join(command.words)
            print(f"{where}: {line}", flush=True)
            reason = ELSEWHERE.get(page) or next((why for what, why in OBSTACLES.items() if re.match(what, line)), "")
            starts = PROCESSES.match(line)
            if not reason and starts and not self._processes:
                reason = "it starts processes"
            self.outcomes[f"{where}: {line}"] = reason or "run"
            if reason:
                check_command(command.words)
            elif command.words[0] == "export":
                self._set(dict(word.split("=", 1) for word in command.words[1:]))
            elif starts:
                self._in_processes(command)
            else:
                self._in_process(command)

    def _set(self, variables: dict[str, str]) -> None:
        """Set variables of the environment, as if Python had started with them."""
        for name, value in variables.items():
            self._patch.setenv(name, value)
            if name == "PYTHONPATH":
                self._patch.syspath_prepend(str(ROOT / value))
        plugins.load_plugins.cache_clear()

    def _in_process(self, command: Command) -> None:
        self._set(command.variables)
        assert exit_status(command.words, self._patch) == 0, " ".join(command.words)

    def _in_processes(self, command: Command) -> None:
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        python = (
            {"PYTHONPATH": str(ROOT / command.variables["PYTHONPATH"])} if "PYTHONPATH" in command.variables else {}
        )
        variables = {**os.environ, "PATH": path, **command.variables, **python}
        subprocess.run(command.words, env=variables, check=True, timeout=900)
