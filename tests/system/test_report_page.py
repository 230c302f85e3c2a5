"""The page in a browser: wide, narrow, dark and printed; it complains of nothing and asks the network for nothing.

A headless Chromium is needed (Debian's package ``chromium``); the pictures are left in ``$GRANDROUNDS_SCREENSHOTS``, where
that is set, for a person to look at.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from grandrounds.federation.server.record import FORMAT
from grandrounds.seeding import numpy_generator

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
QUIET = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--no-first-run", "--enable-logging=stderr",
)  # fmt: skip
CLASSES = ("nevus", "melanoma", "keratosis")
SITES = ("site-1", "site-2", "site-3")
PHONE = 390


@pytest.fixture(scope="module")
def browser():
    found = next((place for name in BROWSERS if (place := shutil.which(name))), None)
    if found is None:
        pytest.skip(f"no browser: none of {', '.join(BROWSERS)} is installed")
    return found


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """A report on two runs with three sites; returns the page."""
    folder = tmp_path_factory.mktemp("runs")
    for name, right in (("federated", 0.8), ("local", 0.6)):
        write_run(folder / name, name, right)
    command = [str(Path(sys.executable).with_name("grandrounds")), "report", str(folder / "federated")]
    subprocess.run([*command, str(folder / "local"), "--out", str(folder / "out")], check=True)
    return folder / "out" / "report.html"


def write_run(folder, name, right):
    generator = numpy_generator("page", name)
    for site in SITES:
        lines = ["image,label,predicted," + ",".join(f"probability_{label}" for label in CLASSES) + ",case"]
        for number in range(60):
            label = number % 3
            shares = generator.dirichlet(np.ones(3)) * 0.4
            reported = label if generator.random() < right else (label + 1) % 3
            shares[reported] += 1 - shares.sum()
            lines.append(
                f"x.png,{CLASSES[label]},{CLASSES[reported]},"
                + ",".join(f"{share:.6f}" for share in shares)
                + f",{number}"
            )
        (folder / site).mkdir(parents=True)
        (folder / site / "predictions_common.csv").write_text("\n".join(lines) + "\n")
    problem = {"dataset": "skin", "classes": list(CLASSES), "image_size": 64, "backbone": "compact"}
    content = {
        "status": "finished", "format": FORMAT, "rounds_done": 2, "rounds": [], "seconds": 9.0,
        "bytes": {site: {"down.global": 4_000_000, "up.update": 4_000_000} for site in SITES},
        "configuration": {"method": f"{name.title()}Controller", "problem": problem, "seed": 1, "rounds": 2},
        "selected": {"round": 2, "metric": "balanced_accuracy", "score": 0.7},
        "contributions": dict.fromkeys(SITES, 2),
        "records": {site: {"common": {"images": 60, "unit": "image", "exact": {}}} for site in SITES},
    }  # fmt: skip
    (folder / "summary.json").write_text(json.dumps(content))
    (folder / "events.jsonl").write_text(json.dumps({"event": "start", "rounds": 2, "sites": list(SITES)}) + "\n")


def show(browser, page, tmp_path, *options):
    """Run the browser on a page, where no name but this machine's is known; returns what it complained of."""
    rules = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE localhost"
    log = tmp_path / "net.json"
    command = [browser, *QUIET, rules, f"--user-data-dir={tmp_path / 'profile'}", f"--log-net-log={log}", *options]
    done = subprocess.run([*command, page.as_uri()], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    asked = [line for line in log.read_text().splitlines() if '"url":"http' in line and "URL_REQUEST" in line]
    return [line for line in done.stderr.splitlines() if "CONSOLE" in line], asked


def picture(place, name):
    kept = os.environ.get("GRANDROUNDS_SCREENSHOTS")
    if kept:
        Path(kept).mkdir(parents=True, exist_ok=True)
        shutil.copyfile(place, Path(kept) / f"{name}{place.suffix}")
    return np.asarray(Image.open(place).convert("RGB")).astype(int)


def test_wide_screen(browser, report, tmp_path):
    complaints, asked = show(
        browser, report, tmp_path, f"--screenshot={tmp_path / 'wide.png'}", "--window-size=1280,1600"
    )
    assert complaints == []
    assert asked == []
    seen = picture(tmp_path / "wide.png", "wide")
    assert seen.shape[:2] == (1600, 1280)
    assert (seen[:5, :5] == 255).all()  # light
    assert len(np.unique(seen.reshape(-1, 3), axis=0)) > 200  # text and figures


def test_dark_screen(browser, report, tmp_path):
    options = ("--force-dark-mode", "--blink-settings=preferredColorScheme=0", "--window-size=1280,1000")
    complaints, _ = show(browser, report, tmp_path, f"--screenshot={tmp_path / 'dark.png'}", *options)
    assert complaints == []
    assert picture(tmp_path / "dark.png", "dark")[:5, :5].mean() < 60


def test_phone_without_sideways_scrolling(browser, report, tmp_path):
    """A frame of a phone's width: nothing of the page is beyond its right edge but inside boxes that scroll."""
    frame = tmp_path / "phone.html"
    frame.write_text(
        '<!doctype html><body style="margin:0;background:#f0f">'
        f'<iframe src="{report.as_uri()}" style="border:0;width:{PHONE}px;height:3000px"></iframe>'
    )
    complaints, _ = show(browser, frame, tmp_path, f"--screenshot={tmp_path / 'phone.png'}", "--window-size=500,3000")
    assert complaints == []
    seen = picture(tmp_path / "phone.png", "phone")
    # The body's margin at the right is empty from top to bottom: nothing sticks out.
    assert (seen[:, PHONE - 8 : PHONE] == 255).all()
    assert (seen[:, PHONE : PHONE + 5] == [255, 0, 255]).all()


def test_paper(browser, report, tmp_path):
    place = tmp_path / "paper.pdf"
    complaints, _ = show(browser, report, tmp_path, f"--print-to-pdf={place}", "--no-pdf-header-footer")
    assert complaints == []
    content = place.read_bytes()
    assert content.startswith(b"%PDF")
    assert 2 <= content.count(b"/Type /Page\n") + content.count(b"/Type /Page ") <= 30
    kept = os.environ.get("GRANDROUNDS_SCREENSHOTS")
    if kept:
        shutil.copyfile(place, Path(kept) / place.name)
