"""Wrong inputs of images of one's own: each is refused in a line that names it, and what the line says to type then works.

The table is the product of what is wrong with the ways in: formats of tables, folders and archives, and commands. A remedy
is taken from the refusal as it is printed and added to the same command.
"""

import itertools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

from grandrounds.api import running
from grandrounds.cli import build_app
from tests.federations import write_pictures

ROWS = [{"image": f"{n}.png", "label": "ab"[n % 2], "patient": f"P{n:02d}"} for n in range(60)]
REMEDY = re.compile(r"--skip-unusable|--[a-z-]+ (?:'[^']+'|[^\s;,)]+)")


def changed(**values):
    return lambda rows: [row | {name: make(n, row) for name, make in values.items()} for n, row in enumerate(rows)]


def with_image(name):
    return changed(image=lambda n, row: name if n == 3 else row["image"])


def headed(**names):
    return lambda rows: [{names.get(key, key): value for key, value in row.items()} for row in rows]


TABLES = {
    "other headings": (headed(image="Bild", label="Diagnose"), (), "Bild, Diagnose", "--columns"),
    "no heading for the label": (headed(label="Befund"), (), "Befund", "--columns"),
    "a heading with a slip": (headed(label="Diagnose"), ("--columns", "label=Diagnos"), "label=Diagnose", ""),
    "two spellings of a class": (changed(label=lambda n, row: "babA"[n % 4]), (), "'A'", "--merge"),
    "a class as a number": (changed(label=lambda n, row: ("1", "1.0", "2")[n % 3]), (), "'1.0'", "--merge"),
    "two spellings of a patient": (changed(patient=lambda n, row: f"{'Pp'[n % 2]}{n // 2}"), (), "'p0'", "--merge"),
    "patients with zeros": (changed(patient=lambda n, row: f"{n // 2:0{1 + 2 * (n % 2)}d}"), (), "'000'", "--distinct"),
    "two spellings of a site": (changed(site=lambda n, row: ("Bonn", "bonn", "Jena")[n // 2 % 3]), (), "'bonn'", "--merge"),
    "a word that may be a class": (changed(label=lambda n, row: ("a", "b", "none")[n % 3]), (), "'none'", "--distinct"),
    "an image that is not there": (with_image("gone.png"), (), "gone.png", "--skip"),
    "a text as an image": (with_image("text.png"), (), "text.png", "--skip"),
    "an image of two frames": (with_image("two.gif"), (), "two.gif", "--skip"),
    "too many sites": (lambda rows: rows[:24], ("--sites", "9"), "site-", "--sites"),
}  # fmt: skip
FOLDERS = {
    "two spellings of a class": (lambda n: f"{('a', 'b', 'A')[n % 3]}/{n}.png", (), "'A'", "--merge"),
    "two spellings of a site": (
        lambda n: f"{('Bonn', 'bonn', 'Jena')[n % 3]}/{'ab'[n // 3 % 2]}/{n}.png", (), "'bonn'", "--merge"
    ),
    "levels that may be either": (lambda n: f"{'xyz'[n % 3]}/{n % 3}{n // 3 % 5}/{n}.png", (), "", "--layout class/patient"),
    "a class that may be none": (lambda n: f"{('a', 'b', 'none')[n % 3]}/{n}.png", (), "'none'", "--distinct"),
    "too many sites": (lambda n: f"{'ab'[n % 2]}/{n}.png", ("--sites", "25"), "site-", "--sites"),
}  # fmt: skip
FORMATS = ("csv", "semicolons", "tabs in UTF-16", "xlsx", "parquet")
COMMANDS = ("import", "simulate")


def table(rows, path, kind):
    frame = pd.DataFrame(rows)
    if kind == "xlsx":
        pytest.importorskip("openpyxl")
        frame.to_excel(path.with_suffix(".xlsx"), index=False)
        return path.with_suffix(".xlsx")
    if kind == "parquet":
        frame.to_parquet(path.with_suffix(".parquet"))
        return path.with_suffix(".parquet")
    separator, encoding = {"csv": (",", "utf-8"), "semicolons": (";", "cp1252"), "tabs in UTF-16": ("\t", "utf-16")}[
        kind
    ]
    frame.to_csv(path.with_suffix(".csv"), index=False, sep=separator, encoding=encoding)
    return path.with_suffix(".csv")


def arguments(command, source, of_table, root, out):
    roots = ["--root", str(root)] if of_table else []
    if command == "import":
        return ["import", str(source), *roots, "--out", str(out)]
    return ["simulate", "fedavg", "--images", str(source), *roots, "--workspace", str(out), "--image-size", "32"]


@pytest.fixture(autouse=True)
def no_training(monkeypatch):
    """A simulation ends before its first round; everything before is done."""
    monkeypatch.setattr(running, "simulate", lambda *_: sys.exit(0))


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pictures")
    write_pictures(folder, [row["image"] for row in ROWS])
    (folder / "text.png").write_text("no image")
    gif = b"GIF89a\1\0\1\0\x80\0\0\0\0\0\xff\xff\xff" + b",\0\0\0\0\1\0\1\0\0\2\2L\1\0" * 2 + b";"
    (folder / "two.gif").write_bytes(gif)
    return folder


def run(words):
    return CliRunner().invoke(build_app(words[0]), words)


def assert_refused_and_repaired(words, more, named, remedy, out):
    """The same command with what its refusal says succeeds; nothing is written before."""
    refusal = run([*words, *more])
    before, started, line = refusal.stderr.rpartition("error: ")
    assert refusal.exit_code == 1, refusal.output
    assert started
    assert not before or before.endswith("\n")
    assert named in line
    assert not (out / "partition.json").exists()
    assert not (out / "sites").exists()
    said = [found[0] for found in REMEDY.finditer(line)]
    typed = next((shlex.split(one) for one in said if one.startswith(remedy)), None) if remedy else list(more)
    assert typed, f"{line} does not say {remedy}"
    if not remedy:
        typed = [more[0], re.search(r"did you mean (\S+)\?", line)[1]]
    kept = [] if more and typed[0] == more[0] else more
    repaired = run([*words, *kept, *typed])
    assert repaired.exit_code == 0, repaired.output


def tables():
    """What is wrong, the format and the command: each two of them meet in a quick test, all three in a slow one."""
    found = itertools.product(enumerate(TABLES), enumerate(FORMATS), enumerate(COMMANDS))
    for (first, kind), (second, form), (third, command) in found:
        quick = (first + second + third) % len(COMMANDS) == 0
        yield pytest.param(kind, form, command, marks=[] if quick else pytest.mark.slow)


@pytest.mark.parametrize(("kind", "form", "command"), [*tables()])
def test_a_wrong_table_is_refused_and_the_remedy_works(kind, form, command, pictures, tmp_path):
    change, more, named, remedy = TABLES[kind]
    source = table(change(ROWS), tmp_path / "t", form)
    words = arguments(command, source, True, pictures, tmp_path / "out")
    assert_refused_and_repaired(words, more, named, remedy, tmp_path / "out")


def folders():
    """What is wrong, whether it is packed, and the command; chosen as the tables are."""
    found = itertools.product(enumerate(FOLDERS), (False, True), enumerate(COMMANDS))
    for (first, kind), packed, (second, command) in found:
        quick = (first + packed + second) % 2 == 0
        yield pytest.param(kind, packed, command, marks=[] if quick else pytest.mark.slow)


@pytest.mark.parametrize(("kind", "packed", "command"), [*folders()])
def test_a_wrong_folder_is_refused_and_the_remedy_works(kind, packed, command, tmp_path):
    place, more, named, remedy = FOLDERS[kind]
    names = [place(n) for n in range(48)]
    source = tmp_path / "images"
    write_pictures(source, names)
    if packed:
        with zipfile.ZipFile(tmp_path / "images.zip", "w") as archive:
            for name in names:
                archive.write(source / name, name)
        shutil.rmtree(source)
        source = tmp_path / "images.zip"
    words = arguments(command, source, False, None, tmp_path / "out")
    assert_refused_and_repaired(words, more, named, remedy, tmp_path / "out")


@pytest.mark.parametrize("command", COMMANDS)
def test_the_folder_of_the_images_is_said_where_several_have_them(command, pictures, tmp_path):
    for name in ("elsewhere", "copies"):
        shutil.copytree(pictures, tmp_path / name)
    (tmp_path / "lists").mkdir()
    source = table(ROWS, tmp_path / "lists" / "t", "csv")
    words = arguments(command, source, True, pictures, tmp_path / "out")
    place = words.index("--root")
    assert_refused_and_repaired(words[:place] + words[place + 2 :], (), "0.png", "--root", tmp_path / "out")


HOSPITAL = {
    "two spellings of a patient": (changed(patient=lambda n, row: f"{'Pp'[n % 2]}{n // 2}"), "'p0'"),
    "patients with zeros": (changed(patient=lambda n, row: f"{n // 2:0{1 + 2 * (n % 2)}d}"), "'000'"),
    "patients with blanks": (changed(patient=lambda n, row: f"P{'_ '[n % 2]}{n // 2}"), "'P 0'"),
    "two spellings of a lesion": (changed(lesion=lambda n, row: f"{'Ll'[n % 2]}{n // 2}"), "'l0'"),
}


@pytest.mark.parametrize(("kind", "said"), [*itertools.product(HOSPITAL, ("merge", "distinct"))])
def test_a_wrong_manifest_of_a_hospital_is_refused_and_the_entry_that_it_names_works(kind, said, pictures, tmp_path):
    change, named = HOSPITAL[kind]
    splits = changed(split=lambda n, row: "train" if n < 40 else ("val", "test")[n // 2 % 2])
    table(change(splits(ROWS)), tmp_path / "t", "csv")
    entry = {"manifest": "t.csv", "root": str(pictures)}
    config = tmp_path / "grandrounds.json"
    words = ["doctor", "--site-config", str(config), "--dataset", "x", "--classes", "a,b"]
    config.write_text(json.dumps({"datasets": {"x": entry}}))
    refusal = run(words)
    assert refusal.exit_code == 1
    finding = " ".join(refusal.output.replace("│", " ").split())
    assert named in finding
    remedy = re.search(rf'"{said}": \["\w+"\]', finding)[0]
    config.write_text(json.dumps({"datasets": {"x": entry | json.loads(f"{{{remedy}}}")}}))
    assert run(words).exit_code == 0


NAMES, SOURCES = (b"M\xfcller", b"a\xff"), (".", "a/1.png", "t.csv")


def programs():
    """Names and what is given: each source meets one name in a quick test, because every program imports the package."""
    for (first, name), (second, source) in itertools.product(enumerate(NAMES), enumerate(SOURCES)):
        yield pytest.param(name, source, marks=[] if (first + second) % 2 == 0 else pytest.mark.slow)


@pytest.mark.parametrize(("name", "source"), [*programs()])
def test_names_that_are_not_utf_8_give_a_line_and_no_traceback(name, source, tmp_path):
    """As a program of its own: with a closed standard input, and an output that is UTF-8 as usual."""
    folder = Path(str(tmp_path)) / name.decode("utf-8", "surrogateescape")
    write_pictures(folder, ["a/1.png"])
    words = [sys.executable, "-m", "grandrounds.cli", "import", folder / source, "--out", tmp_path / "out"]
    ended = subprocess.run(words, capture_output=True, preexec_fn=lambda: os.close(0), check=False)
    assert ended.returncode == 1
    assert ended.stderr.count(b"\n") == 1
    assert b"Traceback" not in ended.stderr
