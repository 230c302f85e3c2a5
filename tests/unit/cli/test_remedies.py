"""Wrong commands, options, folders and tables: each is refused without a traceback, and what the refusal says works.

A remedy is typed as it is printed: a command, an option to add or to leave out, the word that was meant, the bound of a
value, or the place in a file that is then corrected.
"""

import re
import shlex
import shutil
import sys
from pathlib import Path

import pandas as pd
import pytest

from grandrounds.api import running
from grandrounds.remedies import example_pattern, missing, nearest_number
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
    write_pictures(place / "mixed", [f"{'ab'[n % 2]}/{'sub/' * (n % 3 == 0)}{n}.png" for n in range(40)])
    write_pictures(place / "clinics" / "cam", [f"Jena/{n}.png" for n in range(40)])
    write_pictures(place / "clinics" / "amb", [f"{town}/{n}.png" for town in ("Jena", "Koeln") for n in range(40)])
    csv(place / "beside" / "labels.csv", ROWS)
    shutil.make_archive(str(place / "packed"), "zip", place / "images")
    (place / "packed.zip").rename(place / "packed.bin")
    wrong = {
        "good": ROWS,
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
    towns = [{"image": f"D:/Fotos/{('Jena', 'Koeln')[n % 2]}/{n}.png", "label": "ab"[n // 2 % 2]} for n in range(40)]
    wrong |= {
        "towns": [{**row, "image": row["image"].replace("/", "\\")} for row in towns],
        "town": [{**row, "image": f"Koeln/{n}.png"} for n, row in enumerate(towns)],
        "either": [{**row, "image": f"{n}.png"} for n, row in enumerate(towns)],
        "label": [{**row, "patient": row["label"]} for row in ROWS],
        "one": [{**row, "patient": "P1"} for row in ROWS],
        "diagnosis": [{"image": row["image"], "is it": row["label"]} for row in ROWS],
    }
    for name in (*wrong, "ragged", "quotes"):
        (place / name).mkdir(exist_ok=True)
    for name, rows in wrong.items():
        csv(place / name / "t.csv", rows)
    (place / "old.xls").write_bytes(b"\xd0\xcf\x11\xe0")
    lines = [f"{row['image']},{row['label']}" for row in ROWS]
    for name, third in (("ragged", f"{lines[3]},x"), ("quotes", f'"{lines[3]}')):
        (place / name / "t.csv").write_text("\n".join(["image,label", *lines[:3], third, *lines[4:], ""]))
    (place / "notes.txt").write_text("hello world\nthis is text\n")
    (place / "nothing").mkdir()
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


def named(begin):
    """The option that begins so, with the value that is named, takes the place of the wrong one."""

    def type_it(words, said):
        typed = re.search(rf"(?:type|add|example:) ({begin}[= ](?:'[^']*'|[^\s;,)]+))", said)[1]
        first, *value = shlex.split(typed)
        place = next((n for n, word in enumerate(words) if word.split("=")[0] == first.split("=")[0]), None)
        if begin.startswith("--set"):
            place = words.index("--set") if "--set" in words else None
        kept = words if place is None else [*words[:place], *words[place + 2 :]]
        return [[*kept, first, *value]]

    return type_it


def added(name, value):
    """The option that is to be added, with a value for the word that stands for it."""

    def type_it(words, said):
        assert re.search(rf"add {name} [A-Z_]+|add {name}=VALUE", said), said
        return [[*words, *shlex.split(f"{name}={value}" if "=VALUE" in said else f"{name} {value}")]]

    return type_it


def replaced(wrong, name, value):
    """The option that is to be given in place of the wrong one and its value."""

    def type_it(words, said):
        assert re.search(rf"(?:add|type) {re.escape(name)}=VALUE", said), said
        place = words.index(wrong)
        return [[*words[:place], *words[place + 2 :], *shlex.split(f"{name}={value}")]]

    return type_it


def dropped(name, values=0):
    """The option that is to be left out, with its values."""

    def type_it(words, said):
        assert "leave it out" in said
        place = words.index(name)
        return [[*words[:place], *words[place + 1 + values :]]]

    return type_it


def edited(file, change):
    """The line of the file that is named is corrected, and the same command is typed again."""

    def type_it(words, said):
        line = int(re.search(rf"{re.escape(file)} line (\d+)", said)[1])
        lines = owned(file).read_text().splitlines()
        lines[line - 1] = change(lines[line - 1])
        Path(file).write_text("\n".join(lines) + "\n")
        return [words]

    return type_it


def owned(file):
    """The file, in a folder of the test alone, which it may change."""
    folder = Path(file).parent
    if folder.is_symlink():
        shared = folder.resolve()
        folder.unlink()
        shutil.copytree(shared, folder)
    return Path(file)


def in_ranges(words, said):
    """A range takes the place of each number in the column that is named."""
    assert "write a class, such as a range, in the column label" in said
    rows = pd.read_csv(words[1])
    rows["label"] = ["below" if value < rows["label"].median() else "above" for value in rows["label"]]
    rows.to_csv(owned(words[1]), index=False)
    return [words]


def listed(words, said):
    """A table with the columns that are named is made, and imported."""
    heading = re.search(r"a table with the columns (\w+), (\w+)", said)
    folder = Path(words[1])
    images = sorted(path for path in folder.rglob("[i0-9]*.png"))
    csv(
        "made.csv",
        [dict(zip(heading.groups(), (str(path), "ab"[n % 2]), strict=True)) for n, path in enumerate(images)],
    )
    return [["import", "made.csv", "--root", words[1], *words[2:]]]


def meant_option(name, value):
    """The option that a word alone was meant for."""

    def type_it(words, said):
        assert f"did you mean {name} {value}?" in said
        return [[*words[:-1], name, value]]

    return type_it


def another_folder(words, said):
    """The folder that is proposed takes the place of the wrong one."""
    folder = re.search(r"empty folder: (\S+)$", said)[1]
    return [[*words[:-1], folder]]


HEADINGS = {"image=HEADING": "image=picture of", "label=HEADING": "label=is it"}


def filled(name, values):
    """The option that is named, with the headings that the person knows."""

    def type_it(words, said):
        given = re.search(rf"{name} '([^']*)'", said)[1]
        return [[*words, name, ",".join(values.get(part, part) for part in given.split(","))]]

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


def valued(begin):
    """The option that is named, with its value, which may be empty."""

    def type_it(words, said):
        return [[*words, begin, shlex.split(re.search(rf"{begin} ('[^']*'|[^\s;()]+)", said)[1])[0]]]

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


RIGHT = """
fedavg|jobs fedavg
fedperl|jobs fedperl
fedirm|jobs fedirm
ssfl|jobs ssfl
mdhfl|jobs mdhfl
statistics|jobs statistics
local_fixmatch|jobs local_fixmatch
fed_align_cl|jobs fed_align_cl
ridge|simulate ridge
local|simulate local
paper|simulate fedavg --preset paper
code|simulate fedavg --preset code
scratch|simulate fedavg --preset scratch
compact|simulate fedavg --backbone compact
efficientnet_lite0|simulate fedavg --image-size 64 --backbone efficientnet_lite0
--backbone|simulate fedavg --backbone compact
--workspace|simulate fedavg --workspace elsewhere
--image-size|simulate fedavg --image-size 32
--rounds|simulate fedavg --rounds 2
--preset|simulate fedavg --preset scratch
--sites|simulate fedavg --sites 3
--seed|simulate fedavg --seed 3
--engine|simulate fedavg --engine in-process
--workers|simulate fedavg --workers 1
--wire|simulate fedavg --wire
--no-reference|simulate fedavg --no-reference
--allow-overlap|simulate fedavg --allow-overlap
--overwrite|simulate fedavg --overwrite
--json|simulate fedavg --json
--images|simulate fedavg --image-size 32 --backbone compact --images images
--label-map|simulate fedavg --image-size 32 --backbone compact --label-map a=c --images images
--layout|simulate fedavg --image-size 32 --backbone compact --layout site/class --images images
--patient-pattern|simulate fedavg --image-size 32 --backbone compact --patient-pattern '(P[0-9]+)_' --images images
controller.rounds|simulate fedavg --set controller.rounds=3
controller.seed|simulate fedavg --set controller.seed=3
controller.min_sites|simulate fedavg --set controller.min_sites=3
controller.weighting|simulate fedavg --set controller.weighting=uniform
controller.sites_per_round|simulate fedavg --set controller.sites_per_round=3
controller.selection_metric|simulate fedavg --set controller.selection_metric=accuracy
executor.steps|simulate fedavg --set executor.steps=3
executor.batch_size|simulate fedavg --set executor.batch_size=8
executor.learning_rate|simulate fedavg --set executor.learning_rate=0.1
executor.class_weights|simulate fedavg --set executor.class_weights=none
executor.cosine_rounds|simulate fedavg --set executor.cosine_rounds=3
executor.weak_view|simulate fedavg --set executor.weak_view=turns
problem.image_size|simulate fedavg --set problem.image_size=32
problem.backbone|simulate fedavg --set problem.backbone=compact
ham10000|partition ham10000 --options
ham10000_malignancy|partition ham10000_malignancy --options
--options|partition pbc --options
images|import images --out OUT
--scheme|import images --out OUT --scheme iid
dirichlet|import images --out OUT --scheme dirichlet
--classes|import images --out OUT --classes a,b
--labelled|import images --out OUT --labelled 0.5
--task|import good/t.csv --root flat --out OUT --task single
--root|import good/t.csv --root flat --out OUT
--columns|import good/t.csv --root flat --out OUT --columns patient=patient
--skip-unusable|import gone/t.csv --root flat --out OUT --skip-unusable
class|import images --out OUT --layout site/class
validation|import images --out OUT --set validation=0.2
test|import images --out OUT --set test=0.2
melanom=nevus|import near/t.csv --root flat --out OUT --label-map melanom=nevus
simulate|simulate fedavg
jobs|jobs
partition|partition --options
import|import images --out OUT
report|report --help
doctor|doctor --help
advise|advise --help
evaluate|evaluate --help
predict|predict --help
export|export --help
submit|submit --help
status|status --help
provision|provision --help
overlay|overlay --help
approve|approve --help
sweep|sweep --help
figures|figures --help
ledger|ledger --help
weights|weights --help
"""
"""Right commands and the word of each that is typed with a slip."""


def slips():
    """Each command with a letter left out of a word."""
    for line in RIGHT.strip().splitlines():
        word, right = line.split("|")
        middle = len(word) // 2
        left_out = word[:middle] + word[middle + 1 :]
        yield pytest.param(right, word, left_out, id=right.replace(word, left_out, 1))


@pytest.mark.parametrize(("line", "word", "slip"), [*slips()])
def test_a_slip_is_refused_with_the_word_that_was_meant(line, word, slip, place, tmp_path):
    """The refusal names the word, and the command with it succeeds: it is the command that was meant."""
    right = [fill(part, tmp_path) for part in shlex.split(line)]
    wrong = [fill(part, tmp_path) for part in shlex.split(line.replace(word, slip, 1))]
    refused = run_command(*wrong)
    assert refused.exit_code in (1, 2), refused.output
    assert isinstance(refused.exception, SystemExit)
    assert not (tmp_path / "out").exists()
    said = " ".join(re.sub("[\u2500-\u257f]", " ", refused.output).split())
    meant = re.search(r"[Dd]id you mean '?([^'?]+)", said)
    assert meant, said
    assert [part.replace(slip, meant[1], 1) for part in wrong] == right
    made = run_command(*right)
    assert made.exit_code == 0, made.output


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
    "import list/t.csv --root patients --out OUT --sites 1": option("--columns"),
    "simulate fedavg --set executor.lr=0.01": meant("executor.lr"),
    "simulate fedavg --set executor.epochs=3": meant("executor.epochs"),
    "simulate fedavg --set executor.optimiser=kept": meant("executor.optimiser"),
    "simulate fedavg --set executor.learning_rate=1e-3x": named("--set executor.learning_rate"),
    "simulate fedavg --set executor.learning_rate=0,001": named("--set executor.learning_rate"),
    "simulate fedavg --set executor.steps=2.5.1": named("--set executor.steps"),
    "simulate fedavg --set controller.peers=3": command,
    "simulate fedavg --set executor.zzz=3": command,
    "simulate ridge --preset recommendd": meant("recommendd"),
    "simulate fedavg --image-size 64 --backbone resnet18.a1_in1k": meant("resnet18.a1_in1k"),
    "simulate fedavg --sites 1 --rounds 1": named("--set controller.min_sites"),
    "simulate fedavg --image-size 32 --backbone compact images": meant_option("--images", "images"),
    "simulate --images imags": meant("imags"),
    "simulate fedavg --sites-dir images": command,
    "simulate fedavg --epochs 3": replaced("--epochs", "--set executor.steps", 3),
    "simulate fedavg --lr 0.1": replaced("--lr", "--set executor.learning_rate", 0.1),
    "simulate fedavg --batch-size 8": replaced("--batch-size", "--set executor.batch_size", 8),
    "simulate fedavg --save-config run.yml": dropped("--save-config", 1),
    "simulate fedavg --cuda": dropped("--cuda"),
    "jobs fedavg ridge": dropped("ridge"),
    "doctor --sites-dir images": command,
    "advise --sites-dir images": command,
    "partition images --root images --out OUT": command,
    "partition folder --root images": command,
    "import imags --out OUT": meant("imags"),
    "import good/tt.csv --root flat --out OUT": meant("good/tt.csv"),
    "import images": added("--out", "OUT"),
    "import images --out OUT --sites 9": named("--sites"),
    "import images --out flat": another_folder,
    "import images --out OUT --test 0.3": replaced("--test", "--set test", 0.3),
    "import images --out OUT --validation 0.2": replaced("--validation", "--set validation", 0.2),
    "import images --out OUT --patient-pattern '(X[0-9]+)_'": named("--patient-pattern"),
    "import images --out OUT --classes a": lambda words, said: [[*words[:-1], "a,b"]] * ("add it to --classes" in said),
    "import images --out OUT --labelled half": named("--labelled"),
    "import flat --out OUT": listed,
    "import mixed --out OUT": listed,
    "import ragged/t.csv --root flat --out OUT": edited("ragged/t.csv", lambda line: line.removesuffix(",x")),
    "import quotes/t.csv --root flat --out OUT": edited("quotes/t.csv", lambda line: line.strip('"')),
    "import empty/t.csv --root flat --out OUT": option("--skip-unusable"),
    "import gone/t.csv --root flat --out OUT": option("--skip-unusable"),
    "import text/t.csv --root flat --out OUT": option("--skip-unusable"),
    "import towns/t.csv --root clinics/cam --out OUT": option("--skip-unusable"),
    "import town/t.csv --root clinics/cam --out OUT": valued("--merge"),
    "import town/t.csv --root clinics/cam/Jena --out OUT": valued("--merge"),
    "import either/t.csv --root clinics/amb --out OUT": option("--root"),
    "import onehot/t.csv --root flat --out OUT": option("--columns"),
    "import odd/t.csv --root flat --out OUT": filled(
        "--columns", {"image=HEADING": "image=picture of", "label=HEADING": "label=is it"}
    ),
    "import diagnosis/t.csv --root flat --out OUT": filled("--columns", HEADINGS),
    "import label/t.csv --root flat --out OUT": valued("--columns"),
    "import one/t.csv --root flat --out OUT": valued("--merge"),
    "import numbers/t.csv --root flat --out OUT": in_ranges,
    "import near/t.csv --root flat --out OUT": valued("--merge"),
    "import booleans/t.csv --root flat --out OUT": valued("--merge"),
    "import none/t.csv --root flat --out OUT": valued("--distinct"),
    "import placeholder/t.csv --root flat --out OUT": valued("--merge"),
    "import split/t.csv --root flat --out OUT": edited("split/t.csv", lambda line: line.replace("sometimes", "train")),
    "import flag/t.csv --root flat --out OUT": edited("flag/t.csv", lambda line: line.replace("perhaps", "1")),
    "import site/t.csv --root flat --out OUT": valued("--columns"),
    "import good/t.csv --root flat --out OUT --columns patient=patien": meant("patient=patien"),
}


def fill(word, place):
    """A word of a remedy, with a folder of the test for one that stands for any."""
    return str(place / word.lower()) if word in ("OUT", "DIR") else {"FOLDER": "images"}.get(word, word)


@pytest.mark.parametrize("line", REMEDIES)
def test_what_a_refusal_says_works(line, place, tmp_path):
    words = shlex.split(line.replace("OUT", str(tmp_path / "out")))
    refused = run_command(*words)
    assert refused.exit_code in (1, 2), refused.output
    assert isinstance(refused.exception, SystemExit)
    assert not (tmp_path / "out" / "partition.json").exists()
    said = " ".join(re.sub("[\u2500-\u257f]", " ", refused.output).split())
    for typed in REMEDIES[line](words, said):
        made = run_command(*(fill(word, tmp_path) for word in typed))
        assert made.exit_code == 0, f"{said}\n{typed}\n{made.output}"


@pytest.mark.parametrize(
    ("text", "kind", "near"),
    [
        ("0,001", "number", "0.001"),
        ("1e+3x", "number", "1e+3"),
        ("1E-3", "number", "1E-3"),
        (".5x", "number", ".5"),
        ("1,000", "integer", ""),
        ("1.000", "number", ""),
        ("224x224", "integer", "224"),
        ("half", "number", "1"),
    ],
)
def test_a_number_is_proposed_where_it_is_clear_which(text, kind, near):
    assert nearest_number(text, kind) == near


def test_no_remedy_makes_an_error_of_an_error(run, tmp_path):
    long = run("simulate", "fedavg", "x" * 300)
    assert (long.exit_code, type(long.exception)) == (2, SystemExit)
    assert "leave it out" in " ".join(long.stderr.replace("│", " ").split())
    quoted = example_pattern("a'b_12_x.png")
    assert shlex.split(quoted)[-1] == "(a'b_[0-9]+)_"
    assert missing(tmp_path / "no" / "such", "a folder") == f"{tmp_path / 'no' / 'such'} does not exist; name a folder"
