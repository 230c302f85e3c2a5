"""Hospitals from startup kits as shipped: images to label are chosen from masked counts, and each list stays in its kit."""

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest

from grandrounds.deployment.kit.overlay import Settings
from grandrounds.federation.server.record import read_events
from tests.federations import draw_hospitals

pytestmark = [pytest.mark.provisioned, pytest.mark.slow]

HOSPITALS = ("hospital-a", "hospital-b", "hospital-c")
BUDGET = 24


def command(*words):
    """The output of a command."""
    call = [sys.executable, "-m", "grandrounds", *map(str, words)]
    ended = subprocess.run(call, capture_output=True, text=True, timeout=900, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_each_hospital_has_its_own_list_of_the_images_and_a_page(consortium, tmp_path):
    images = draw_hospitals(tmp_path, HOSPITALS, images=480, labelled=0.5)
    settings = {name: Settings(datasets=images / name / "grandrounds.json") for name in HOSPITALS}
    with consortium(HOSPITALS, settings, shipped=True) as federation:
        options = ["problem.dataset=phantom", f"controller.label_budget={BUDGET}", "executor.cpu_threads=1"]
        given = [word for option in options for word in ("--set", option)]
        outcome = json.loads(command("poc", "submit", federation.folder, "ridge", "--json", *given))
        chosen = {}
        for name in HOSPITALS:
            folder = federation.kits / name / "grandrounds" / "ridge"
            with (folder / name / "label_next.csv").open() as stream:
                chosen[name] = [row["image"] for row in csv.DictReader(stream)]
        assert f"{name}: {len(chosen[name])} images" in command("label", "next", folder)
        page = (folder / name / "label_next.html").read_text()
        assert all(image in page for image in chosen[name])
    assert abs(sum(map(len, chosen.values())) - BUDGET) <= 2
    assert min(map(len, chosen.values())) > 0
    events = read_events(Path(outcome["download"]) / "workspace" / "results")
    left = [
        part["kind"] for event in events if event["event"] == "answer" for part in event.get("released", {}).values()
    ]
    assert set(left) == {"masked_sum"}
    assert "images/" not in json.dumps(events)
