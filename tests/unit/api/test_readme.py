"""The README's command and its lines of Python run as they are printed, with fewer steps in a round."""

import json
import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from grandrounds import plugins
from grandrounds.cli import build_app
from grandrounds.deployment import jobs
from grandrounds.models import own_backbones

README = (Path(__file__).parents[3] / "README.md").read_text(encoding="utf-8")
SECTION = README.partition("## Your own images and network")[2].partition("\n## ")[0]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder of images of two sites and two classes, and a job of two steps in a round."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(own_backbones.OWN_BACKBONES, "entries", {})
    monkeypatch.setattr(plugins, "_registering", {})
    generator = np.random.default_rng(1)
    for site in ("Leeds", "York"):
        for label in ("nevus", "melanoma"):
            for number in range(12):
                path = tmp_path / "images" / site / label / f"P{number // 2:03d}_{number}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(generator.integers(0, 256, (16, 16, 3), dtype=np.uint8)).save(path)
    shutil.copytree(jobs.JOBS / "fedavg", tmp_path / "jobs" / "fedavg")
    config = tmp_path / "jobs" / "fedavg" / "app" / "config" / jobs.CLIENT_CONFIG
    content = json.loads(config.read_text())
    content["executors"][0]["executor"]["args"] |= {"steps": 2, "batch_size": 2}
    config.write_text(json.dumps(content))
    monkeypatch.setattr(jobs, "JOBS", tmp_path / "jobs")
    return tmp_path


def test_the_lines_of_python_give_a_table_by_site_and_a_report(folder, capsys):
    (code,) = re.findall(r"```python\n(.*?)```", SECTION, re.DOTALL)
    assert len([line for line in code.splitlines() if line.strip()]) < 10
    exec(compile(code, "README.md", "exec"), {"__name__": "readme"})
    assert re.search(r"^Leeds +\d", capsys.readouterr().out, re.MULTILINE)
    assert (folder / "runs" / "mine" / "report" / "report.html").is_file()


def test_the_command_trains_on_a_folder_of_images(folder):
    (line,) = re.findall(r"```\ngrandrounds (.*?)\n```", SECTION)
    result = CliRunner().invoke(build_app(), shlex.split(line))
    assert result.exit_code == 0, result.output
    assert re.search(r"│ York +│", result.stdout)
    assert "patients are unknown" not in result.stderr
    patients = (folder / "runs" / "first" / "sites" / "Leeds" / "manifest.csv").read_text()
    assert ",Leeds/P003," in patients
