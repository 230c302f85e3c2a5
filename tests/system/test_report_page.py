"""The page in a browser: wide, narrow, dark and printed; it complains of nothing and asks the network for nothing.

A headless Chromium is needed (Debian's package ``chromium``); the pictures are left in ``$GRANDROUNDS_SCREENSHOTS``, where
that is set, for a person to look at.
"""

import csv
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
from tests.federations import await_true

from .browser import OFFLINE, QUIET, Window, installed_browser

COMMAND = str(Path(sys.executable).with_name("grandrounds"))
CLASSES = ("nevus", "melanoma", "keratosis")
SITES = ("site-1", "site-2", "site-3")
PHONE = 390
SCREEN = (1280, 800)
METHODS = ("federated", "local", "ridge")
MOST_SCREENS, MOST_BYTES = 6, 1_000_000


@pytest.fixture(scope="module")
def browser():
    return installed_browser()


@pytest.fixture(scope="module")
def window(browser, tmp_path_factory):
    opened = Window(browser, tmp_path_factory.mktemp("profile"))
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """A report on two runs with three sites; returns the page."""
    folder = tmp_path_factory.mktemp("runs")
    for name, right in (("federated", 0.8), ("local", 0.6)):
        write_run(folder / name, name, right)
    return write_report(folder / "out", folder / "federated", folder / "local")


@pytest.fixture(scope="module")
def nine(tmp_path_factory):
    """A report on three methods with three seeds each."""
    folder = tmp_path_factory.mktemp("nine")
    runs = [folder / f"{method}-{seed}" for method in METHODS for seed in (1, 2, 3)]
    for number, run in enumerate(runs):
        write_run(run, run.name[:-2], 0.5 + 0.04 * number, seed=number % 3 + 1)
    return write_report(folder / "out", *runs)


@pytest.fixture(scope="module")
def twenty(tmp_path_factory):
    """A report on a run with twenty sites whose images are here, and are shown."""
    folder = tmp_path_factory.mktemp("twenty")
    sites = [f"site-{number}" for number in range(1, 21)]
    generator = numpy_generator("page", "images")
    tested = {site: [(f"{site}-{number}.png", CLASSES[number % 3]) for number in range(24)] for site in sites}
    (folder / "images").mkdir()
    for site, images in tested.items():
        lines = [
            f"{image},{label},{'train' if number < 3 else 'test'}," for number, (image, label) in enumerate(images)
        ]
        (folder / "sites" / site).mkdir(parents=True)
        (folder / "sites" / site / "manifest.csv").write_text("\n".join(["image,label,split,patient", *lines, ""]))
        entry = {"manifest": "manifest.csv", "root": str(folder / "images")}
        (folder / "sites" / site / "grandrounds.json").write_text(json.dumps({"datasets": {"images": entry}}))
        for image, _ in images:
            colours = generator.integers(0, 256, (8, 8, 3), dtype=np.uint8)
            Image.fromarray(colours).resize((160, 160), Image.Resampling.BICUBIC).save(folder / "images" / image)
        del images[:3]
    write_run(folder / "run", "federated", 0.7, names=tested, dataset="images")
    (folder / "run" / "provenance.json").write_text(json.dumps({"simulated": True}))
    return write_report(folder / "out", folder / "run", "--sites-dir", folder / "sites", "--examples")


def write_report(out, *arguments):
    command = [COMMAND, "report", *map(str, arguments), "--out", str(out)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return out / "report.html"


INVENTED = {site: [(f"{number}.png", CLASSES[number % 3]) for number in range(60)] for site in SITES}


def write_run(folder, name, right, names=INVENTED, dataset="skin", seed=1):
    generator = numpy_generator("page", folder.name)
    for site, images in names.items():
        lines = ["image,label,predicted," + ",".join(f"probability_{label}" for label in CLASSES) + ",case"]
        for number, (image, label_name) in enumerate(images):
            label = CLASSES.index(label_name)
            shares = generator.dirichlet(np.ones(3)) * 0.4
            reported = label if generator.random() < right else (label + 1) % 3
            shares[reported] += 1 - shares.sum()
            values = ",".join(f"{share:.6f}" for share in shares)
            reported = (reported + 1) % 3 if number % 5 == 4 else reported  # a decision need not be the largest risk
            lines.append(f"{image},{label_name},{CLASSES[reported]},{values},{number}")
        (folder / site).mkdir(parents=True)
        (folder / site / "predictions_common.csv").write_text("\n".join(lines) + "\n")
    problem = {"dataset": dataset, "classes": list(CLASSES), "image_size": 64, "backbone": "compact"}
    content = {
        "status": "finished", "format": FORMAT, "rounds_done": 2, "rounds": [], "seconds": 9.0,
        "bytes": {site: {"down.global": 4_000_000, "up.update": 4_000_000} for site in names},
        "configuration": {"method": f"{name.title()}Controller", "problem": problem, "seed": seed, "rounds": 2},
        "selected": {"round": 2, "metric": "balanced_accuracy", "score": 0.7},
        "contributions": dict.fromkeys(names, 2),
        "records": {
            site: {"common": {"images": len(images), "unit": "image", "exact": {}}} for site, images in names.items()
        },
    }  # fmt: skip
    (folder / "summary.json").write_text(json.dumps(content))
    (folder / "events.jsonl").write_text(json.dumps({"event": "start", "rounds": 2, "sites": list(names)}) + "\n")


def show(browser, page, tmp_path, *options):
    """Run the browser on a page, where no name but this machine's is known; returns what it complained of."""
    log = tmp_path / "net.json"
    command = [browser, *QUIET, OFFLINE, f"--user-data-dir={tmp_path / 'profile'}", f"--log-net-log={log}", *options]
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


def test_a_click_on_a_number_of_the_confusion_matrix_shows_its_images_with_their_names(window, twenty):
    assert twenty.stat().st_size < MOST_BYTES
    window.open(twenty.as_uri())
    shown = "[...document.querySelectorAll('.behind')].filter(part => part.checkVisibility())"
    assert window.value(f"{shown}.length") == 0
    number = int(window.value("document.querySelector('.confusion td:nth-child(3) a').textContent"))
    window.click(".confusion td:nth-child(3) a")
    assert window.value(f"{shown}.map(part => part.querySelector('strong').textContent)") == [
        f"{CLASSES[0]} called {CLASSES[1]}: {number} of the test images"
    ]
    pictures = f"[...{shown}[0].querySelectorAll('img')]"
    assert window.value(f"{pictures}.every(picture => picture.complete && picture.naturalWidth === 128)")
    names = window.value(f"{pictures}.map(picture => picture.alt)")
    assert 0 < len(names) <= number
    assert {int(name.split("-")[2][:-4]) % 3 for name in names} == {0}  # of the first class
    risks = {
        row["image"]: f"{site.parent.name}, probability {float(row[f'probability_{CLASSES[1]}']):.2f}"
        for site in (twenty.parents[1] / "run").glob("*/predictions_common.csv")
        for row in csv.DictReader(site.open())
    }
    captions = window.value(f"{pictures}.map(picture => picture.closest('figure').textContent)")
    assert all(risks[name] in caption for name, caption in zip(names, captions, strict=True)), captions
    # By keyboard: the next number.
    window.value("document.querySelector('.confusion tbody tr:nth-child(2) td:nth-child(3) a').focus()")
    window.press("Enter")
    assert window.value(f"{shown}.map(part => part.id)") == ["images-2-2"]
    assert window.complaints == []


def test_a_table_is_sorted_by_the_heading_that_is_clicked(window, twenty):
    window.open(twenty.as_uri())
    rows = "[...document.querySelectorAll('table.sorted')[0].tBodies].map(body => [...body.rows].map("
    first = f"{rows}row => row.cells[0].textContent))"
    before = window.value(first)
    numbers = f"{rows}row => parseFloat(row.cells[5].textContent)))[0]"
    window.click("table.sorted th:nth-child(6) button")
    assert window.value(numbers) == sorted(window.value(numbers))
    window.value("document.querySelector('table.sorted th:nth-child(6) button').focus()")
    window.press("Enter")
    assert window.value(numbers) == sorted(window.value(numbers), reverse=True)
    assert window.value("document.querySelector('table.sorted th:nth-child(6)').ariaSort") == "descending"
    assert [row for row in window.value(first)[1] if row.startswith("all images")]  # below the sites
    assert window.value(first) != before
    window.press("Enter")
    assert window.value(first) == before
    assert window.complaints == []


def test_a_report_on_nine_runs_is_six_screens_long_and_unfolds(window, nine):
    window.open(nine.as_uri(), *SCREEN)
    height = window.value("document.documentElement.scrollHeight")
    assert height <= MOST_SCREENS * SCREEN[1]
    window.click("#run-2 summary")
    assert window.value("document.documentElement.scrollHeight") > height
    window.click('nav a[href="#run-3"]')
    await_true(lambda: window.value("document.querySelector('#run-3 details').open"), 60)
    # What is folded is printed.
    window.value("dispatchEvent(new Event('beforeprint'))")
    assert window.value("[...document.querySelectorAll('details')].every(folded => folded.open)")


@pytest.mark.parametrize("width", [PHONE, SCREEN[0]])
@pytest.mark.parametrize("kind", ["nine", "twenty"])
def test_no_text_leaves_its_picture_and_no_page_scrolls_sideways(window, kind, width, request):
    page = request.getfixturevalue(kind)
    window.open(page.as_uri(), width)
    window.value("document.querySelectorAll('details').forEach(folded => { folded.open = true; })")
    assert window.value("document.documentElement.scrollWidth") == width
    boxes = (
        "[...document.querySelectorAll('dd, li, p, h1, h2, h3, figcaption')].filter(element => element.checkVisibility() "
        "&& element.scrollWidth > element.clientWidth + 1).map(element => element.textContent)"
    )
    assert window.value(boxes) == []


def test_every_text_of_a_figure_is_inside_it(window, nine, twenty):
    outside = (
        "(() => { const canvas = document.documentElement.getBoundingClientRect(); "
        "return [...document.querySelectorAll('text')].filter(text => { const box = text.getBoundingClientRect(); "
        "return box.left < canvas.left - 1 || box.right > canvas.right + 1 || box.top < canvas.top - 1 || "
        "box.bottom > canvas.bottom + 1; }).map(text => text.textContent); })()"
    )
    figures = [*nine.parent.glob("figures/*.svg"), *twenty.parent.glob("figures/*.svg")]
    assert len(figures) > 10
    seen = {}
    for figure in figures:
        window.open(figure.as_uri())
        seen[figure.name] = window.value(outside)
    assert not any(seen.values()), {name: texts for name, texts in seen.items() if texts}
