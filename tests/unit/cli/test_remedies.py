"""Wrong commands, options, folders and tables: each is refused without a traceback, and what the refusal says works.

A remedy is typed as it is printed: a command, an option to add or to leave out, the word that was meant, the bound of a
value, or the place in a file that is then corrected.
"""

import re
import shlex
import shutil
import sys

import pandas as pd
import pytest

from grandrounds.api import running
from tests.federations import write_pictures
from tests.unit.cli.conftest import run_command

ROWS = [{"image": f"i{n}.png", "label": "ab"[n // 2 % 2], "patient": f"P{n // 2}"} for n in range(40)]


@pytest.fixture(autouse=True)
def no_training(monkeypatch):
    """A simulation ends before its first round; everything before is done."""
    monkeypatch.setattr(running, "simulate", lambda *_: sys.exit(0))


def csv(place, rows, **options):
    pd.DataFrame(rows).to_csv(place, index=False, **options)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """Folders of images and tables that are wrong, each in its own way."""
    place = tmp_path_factory.mktemp("prepared")
    people = [f"P{number:03d}" for number in range(10)]
    names = [f"{who}_{view}.png" for who in people for view in (1, 2)]
    write_pictures(place / "images", [f"{site}/{label}/{own}" for site in "LY" for label in "ab" for own in names])
    write_pictures(place / "flat", [row["image"] for row in ROWS])
    write_pictures(
        place / "patients", [f"P{n:03d}/{label}/{k}.png" for n in range(24) for label in "01" for k in (1, 2)]
    )
    write_pictures(place / "two", [f"{folder}/{row['image']}" for folder in ("small", "large") for row in ROWS])
    write_pictures(
        place / "kinds",
        [f"{group}/{kind}/{n}.png" for group, kind in zip("uvv", "xyz", strict=True) for n in range(12)],
    )
    write_pictures(place / "beside" / "images", [row["image"] for row in ROWS])
    write_pictures(place / "years", [f"{year}/im/{row['image']}" for year in ("2019", "2020") for row in ROWS])
    (place / "flat" / "text.png").write_text("no image")
    csv(place / "beside" / "labels.csv", ROWS)
    csv(place / "good.csv", ROWS)
    shutil.make_archive(str(place / "packed"), "zip", place / "images")
    (place / "packed.zip").rename(place / "packed.bin")
    wrong = {
        "gone": [{**row, "image": "gone.png"} if n == 3 else row for n, row in enumerate(ROWS)],
        "text": [{**row, "image": "text.png"} if n == 3 else row for n, row in enumerate(ROWS)],
        "empty": [{**row, "image": ""} if n == 3 else row for n, row in enumerate(ROWS)],
        "split": [{**row, "split": "sometimes" if n == 3 else "train"} for n, row in enumerate(ROWS)],
        "flag": [{**row, "labelled": "perhaps" if n == 3 else "1"} for n, row in enumerate(ROWS)],
        "twice": [*ROWS, {**ROWS[0], "label": "b"}],
        "onehot": [{"image": row["image"], "a": int(row["label"] == "a"), "b": int(row["label"] == "b")} for row in ROWS],
        "lists": [{**row, "label": f"['{row['label']}', 'c']"} for row in ROWS],
        "numbers": [{**row, "label": n / 7} for n, row in enumerate(ROWS)],
        "booleans": [{**row, "label": ("True", "False", "1", "0")[n % 4]} for n, row in enumerate(ROWS)],
        "near": [{**row, "label": "melanom" if n == 3 else ("nevus", "melanoma")[n // 2 % 2]} for n, row in enumerate(ROWS)],
        "none": [{**row, "label": ("a", "b", "none")[n // 2 % 3]} for n, row in enumerate(ROWS)],
        "person": [{**row, "patient": "unknown person" if n % 2 else row["patient"]} for n, row in enumerate(ROWS)],
        "placeholder": [{**row, "patient": "anonymous" if n % 2 else row["patient"]} for n, row in enumerate(ROWS)],
        "lesions": [{**row, "lesion": f"L{n // 4}"} for n, row in enumerate(ROWS)],
        "german": [{"Bild": row["image"], "Diagnose": row["label"], "Fall": row["patient"]} for row in ROWS],
        "odd": [{"picture of": row["image"], "is it": row["label"]} for row in ROWS],
        "both": [{"front": row["image"], "side": row["image"], "label": row["label"]} for row in ROWS],
        "elsewhere": [{**row, "image": f"other/{row['image']}"} for row in ROWS],
        "years": [{**row, "image": f"im/{row['image']}"} for row in ROWS],
        "list": [{"patient": f"P{n:03d}", "Befund": "xy"[n % 2]} for n in range(10)],
        "site": [{**row, "site": "" if n == 3 else "L"} for n, row in enumerate(ROWS)],
    }  # fmt: skip
    for name, rows in wrong.items():
        csv(place / f"{name}.csv", rows)
    (place / "old.xls").write_bytes(b"\xd0\xcf\x11\xe0")
    (place / "notes.txt").write_text("hello world\nthis is text\n")
    (place / "empty").mkdir()
    return place


@pytest.fixture
def place(prepared, tmp_path, monkeypatch):
    """The folder of the commands, whose files a test may change."""
    for entry in prepared.iterdir():
        if entry.is_dir():
            (tmp_path / entry.name).symlink_to(entry)
        else:
            shutil.copy(entry, tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def meant(wrong):
    """The word that was meant is put in the place of the wrong one."""

    def type_it(words, said):
        right = re.search(r"[Dd]id you mean '?(.+?)'?\?", said)[1]
        return [[word.replace(wrong, right) for word in words]]

    return type_it


def helped(words, said):
    """The help that is named."""
    return [shlex.split(re.search(r"Try '\w+ ?(.*?--help)'", said)[1])]


def command(words, said):
    """The command that is named; it takes the place of the first."""
    return [shlex.split(re.search(r"grandrounds ([a-z]+ [^;,()]*)", said)[1])]


def option(begin):
    """The option that begins so, and those that follow it."""

    def type_it(words, said):
        found = re.search(rf"{re.escape(begin)}(?:'[^']*'|[^\s;,)])*(?: (?:--[a-z-]+|'[^']+'|[a-z]+=\S+))*", said)[0]
        added = shlex.split(found)
        place = words.index(added[0]) if added[0] in words else len(words)
        return [[*words[:place], *words[place + 2 :], *added]]

    return type_it


def left_out(name):
    """The option that is to be left out."""

    def type_it(words, said):
        assert re.search(rf"leave (--)?{name.strip('-')} ", said)
        return [[*words[: words.index(name)], *words[words.index(name) + 2 :]]]

    return type_it


def bound(words, said):
    """The smallest or largest value that is named takes the place of the wrong one."""
    least = re.search(r"(?:at least|greater than or equal to|from) (\d+)", said)[1]
    return [[re.sub(r"(?<==)-?\d+$|^-?\d+$", least, word) for word in words]]


REMEDIES = {
    # commands and options
    "simulat fedavg": meant("simulat"),
    "train --images images": command,
    "help simulate": command,
    "simulate": command,
    "simulate fedavgg": meant("fedavgg"),
    "simulate FedAvg": meant("FedAvg"),
    "simulate images": command,
    "simulate fedavg --round 2": helped,
    "simulate fedavg --rounds two": helped,
    "simulate fedavg --rounds 0": bound,
    "simulate fedavg --set rounds=2": meant("rounds"),
    "simulate fedavg --set controller.rounds 2": helped,
    "simulate fedavg --set controler.rounds=2": meant("controler.rounds"),
    "simulate fedavg --set executor.learning_rat=0.1": meant("executor.learning_rat"),
    "simulate fedavg --set executor.batch_size=-4": bound,
    "simulate fedavg --backbone resnet50": meant("resnet50"),
    "simulate fedavg --image-size 224x224": helped,
    "simulate fedavg --gpu": helped,
    "simulate fedavg --device cuda": helped,
    "simulate fedavg --seed 1.5": helped,
    "simulate fedavg --config notes.txt": helped,
    "jobs fedpearl": meant("fedpearl"),
    "report": helped,
    "report images": helped,
    "doctor": helped,
    "doctor images": helped,
    "advise": helped,
    "submit fedavg": helped,
    "status": helped,
    "monitor": helped,
    "import images": helped,
    "import images --out OUT --validation 0.6": helped,
    "import images --out OUT --test 20": helped,
    "sweep fedavg ridge --seeds 3": helped,
    "partition ham1000 --root images --out OUT --options": meant("ham1000"),
    "import images --out OUT --scheme dirichle": meant("dirichle"),
    "import images --out OUT --set alfa=0.5": meant("alfa"),
    # folders and lists
    "import images --out OUT --root flat": left_out("--root"),
    "import images --out OUT --columns label=x": left_out("--columns"),
    "import images --out OUT --layout site/clas": meant("clas"),
    "import images --out OUT --label-map aa=c": meant("aa=c"),
    "import images --out OUT --label-map a:c": meant("a:c"),
    "import patients --out OUT": option("--layout patient/class"),
    "import kinds --out OUT": option("--layout '*/class'"),
    "import beside --out OUT": command,
    "import list.csv --root patients --out OUT --sites 1": option("--columns"),
}


@pytest.mark.parametrize("line", REMEDIES)
def test_what_a_refusal_says_works(line, place, tmp_path):
    words = shlex.split(line.replace("OUT", str(tmp_path / "out")))
    refused = run_command(*words)
    assert refused.exit_code in (1, 2), refused.output
    assert isinstance(refused.exception, SystemExit)
    assert not (tmp_path / "out" / "partition.json").exists()
    said = " ".join(re.sub("[\u2500-\u257f]", " ", refused.output).split())
    for typed in REMEDIES[line](words, said):
        made = run_command(*typed)
        assert made.exit_code == 0, f"{said}\n{typed}\n{made.output}"
