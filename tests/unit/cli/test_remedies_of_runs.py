"""Wrong inputs about runs, kits, policies, ledgers, weights and files of every type: what a refusal says works.

Each row is a command and how its refusal is followed; see ``test_remedies.py``, which has those about images.
"""

import difflib
import json
import re
import shlex
import shutil
import sys
import zipfile
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from nvflare.fuel.flare_api.api_spec import NoConnection

from grandrounds.api import evaluation, running
from grandrounds.deployment import job_watch
from grandrounds.deployment.kit import distributions, overlay
from grandrounds.deployment.kit import provision as provisioning
from grandrounds.deployment.kit.provision import PROJECT
from grandrounds.deployment.kit.shipped import OVERLAYS
from grandrounds.models.registry import build_model
from grandrounds.privacy.ledger.ledger import Ledger
from grandrounds.privacy.ledger.lines import DatasetIdentity, Purpose
from grandrounds.protocol.problem import ModelSpec
from grandrounds.protocol.spending import Mechanism, Spending, Unit
from tests.unit.cli.conftest import run_command, write_images
from tests.unit.cli.test_remedies import bound, command, dropped, helped, meant, named, option

TINY = ["--rounds=1", "--image-size=32", "--backbone=compact", "--set=executor.steps=1", "--set=executor.batch_size=2"]
FILES = {
    "notes.txt": "hello",
    "privacy.json": (OVERLAYS / "strict.json").read_text(),
    "grandrounds.json": json.dumps({"datasets": {}}),
    "partners.txt": f"hospital-b {'a' * 64}\n",
}
PERSON = "researcher@consortium.example"
UPDATE = Spending(Mechanism.GAUSSIAN, Unit.SITE, sensitivity=2.0, sigma=32.0)


def succeed(*words):
    made = run_command(*words)
    assert made.exit_code == 0, made.output


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A partition, a finished run, a place, kits, a ledger, a policy, weights, and files of other types."""
    place = tmp_path_factory.mktemp("runs")
    for folder, out, count, more in (
        ("images", "sites", 40, ("--sites", "2")),
        ("others", "clinic", 21, ("--scheme", "external")),
    ):
        for label in "ab":
            write_images(place / folder, label, count)
        succeed("import", place / folder, "--out", place / out, *more)
    succeed(
        "simulate", "fedavg", "--sites-dir", place / "sites", "--workspace", place / "done", "--no-reference", *TINY
    )
    succeed("build", "fedavg", "--out", place / "jobs")
    kits = provisioning.provision(PROJECT, place / "made")
    for name in ("server", "hospital-a", "hospital-b", PERSON):
        shutil.move(kits / name, place / name)
    shutil.copy(OVERLAYS / "strict.json", place / "hospital-a" / "local" / "privacy.json")
    ledger = Ledger.create(place / "privacy", "hospital-a")
    for name in ("skin", "blood"):
        ledger.book(Purpose("job", "run", 1, "update"), DatasetIdentity(name, name[0] * 64), UPDATE, 1e-5)
    shutil.copy(next((place / "sites").glob("*/manifest.csv")), place / "manifest.csv")
    names = [f"{label}/{number}.png" for label in "ab" for number in range(20)]
    pd.DataFrame({"image": names, "label": [name[0] for name in names]}).to_csv(place / "table.csv", index=False)
    torch.save(build_model(ModelSpec("compact", classes=2), seed=1).state_dict(), place / "own.pt")
    for name, content in FILES.items():
        (place / name).write_text(content)
    np.savez(place / "arrays.npz", images=np.zeros((4, 8, 8, 3), np.uint8))
    (place / "empty").mkdir()
    for name, members in {"documents.zip": ["a/t.txt"], "pack.zip": ["a/1.png", "b/2.png"]}.items():
        with zipfile.ZipFile(place / name, "w") as archive:
            for member in members:
                archive.writestr(member, "x")
    return place


@pytest.fixture
def place(prepared, tmp_path, monkeypatch):
    """The folder of the commands; a test may change its files, and the kits, which are copied."""
    for entry in prepared.iterdir():
        if entry.name in ("hospital-a", "server", "privacy"):
            shutil.copytree(entry, tmp_path / entry.name)
        elif entry.is_dir():
            (tmp_path / entry.name).symlink_to(entry)
        else:
            shutil.copy(entry, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GRANDROUNDS_WEIGHTS", str(tmp_path / "weights"))
    return tmp_path


@pytest.fixture(autouse=True)
def no_work(monkeypatch, prepared):
    """Training, evaluation and provisioning end before they begin; everything before is done."""
    monkeypatch.setattr(running, "simulate", lambda *_: sys.exit(0))
    monkeypatch.setattr(running, "shared_features", lambda *_: nullcontext())
    monkeypatch.setattr(running, "computed_start", lambda *_: nullcontext(()))
    monkeypatch.setattr(evaluation, "read_images", lambda *_: sys.exit(0))
    monkeypatch.setattr(provisioning, "provision", lambda project, out: sys.exit(0))
    monkeypatch.setattr(overlay, "installed_digest", lambda: "a" * 64)
    monkeypatch.setattr(distributions, "LIBRARIES", ("iniconfig",))
    monkeypatch.setattr(job_watch, "new_secure_session", raised(NoConnection("no server in these tests")))


def raised(error):
    """A function that raises this error."""

    def function(*_, **__):
        raise error

    return function


def instead(wrong, right, said):
    """The right value takes the place of the wrong one; ``said`` is what the refusal says of it."""

    def type_it(words, message):
        assert re.search(said, message), message
        whole = [word for old in words for word in (shlex.split(right) if old == wrong else [old])]
        return [whole if whole != words else [word.replace(wrong, right) for word in words]]

    return type_it


def without(name, values, said):
    """The option is left out; ``said`` is what the refusal says of it."""

    def type_it(words, message):
        assert re.search(said, message), message
        place = words.index(name)
        return [[*words[:place], *words[place + 1 + values :]]]

    return type_it


def most(words, message):
    """The largest value that is named takes the place of the wrong one."""
    largest = re.search(r"less than or equal to (\d+)", message)[1]
    return [[*words[:-1], largest]]


def more(*typed, said):
    """What is missing is added; ``said`` is what the refusal says of it."""

    def type_it(words, message):
        assert re.search(said, message), message
        return [[*words, *typed]]

    return type_it


def listed(wrong):
    """The nearest of the values that are listed takes the place of the wrong one."""

    def type_it(words, message):
        known = re.search(r"(?:must be|expected) (?:one of )?([^;]*?),? got", message) or re.search(
            r"is not one of (.*)", message
        )
        values = [value for value in re.findall(r"[\w.-]+", known[1]) if value != "or"]
        right = next(iter(difflib.get_close_matches(wrong, values, 1)), values[0])
        return [[word.replace(wrong, right) for word in words]]

    return type_it


def written(file, content, said):
    """The file that is named gets the content that is said to be expected."""

    def type_it(words, message):
        assert re.search(rf"{re.escape(file)}\S* .*{said}", message), message
        Path(file).write_text(content)
        return [words]

    return type_it


ROWS = {
    # kits
    "kits clean hospital-a": meant("kits"),
    "kit begin hospital-a": helped,
    "kit hospital-a": helped,
    "kit clean hospital-a --older-than never": named("--older-than"),
    "kit clean hospital-a --older-than -1": bound,
    "kit clean hospital-a --dry": meant("--dry"),
    "kit partners hospital-a --write": helped,
    "kit partners hospital-a --list partner.txt": meant("partner.txt"),
    "kit partners hospital-a --list notes.txt": written("notes.txt", f"hospital-b {'a' * 64}\n", "a SHA-256"),
    "kit support hospital-a": option("--dry-run"),
    "kit support hospital-a --out notes.txt --no-network": instead("notes.txt", "s.zip", r"must end in \.zip"),
    "kit renew hospital-a": helped,
    "overlay hospital-a --policy strickt": meant("strickt"),
    "overlay hospital-a --policy secret": instead("secret", "open", "policies: sums, open"),
    "overlay hospital-a --privacy privcy.json": meant("privcy.json"),
    "overlay hospital-a --datasets grandround.json": meant("grandround.json"),
    "overlay hospital-a --gpus many": named("--gpus"),
    "overlay hospital-a --gpus -1": bound,
    "overlay hospital-a --gpu-memory lots": named("--gpu-memory"),
    "overlay hospital-a --storage x": dropped("--storage", 1),
    "overlay hospital-a --network resnet50": instead("resnet50", "torchvision:resnet18", "torchvision:NAME"),
    "overlay server --gpus 1": dropped("--gpus", 1),
    "overlay server --policy strict": dropped("--policy", 1),
    "overlay server --max-sites 0": bound,
    "overlay server --max-site 3": meant("--max-site"),
    "provision projct.yml": meant("projct.yml"),
    "provision project.yml --policy strickt": meant("strickt"),
    "provision notes.txt": instead("notes.txt", "project.yml", "needs a name and participants"),
    "provision images": instead("images", "project.yml", "it is a folder: name a file"),
    "approve jobs/fedavg": more("--kit", "hospital-a", said="add --kit KIT"),
    "status": helped,
    f"submit fedavgg --kit {PERSON} --dry-run": meant("fedavgg"),
    "submit fedavg --kit hospital-a --dry-run": instead("hospital-a", PERSON, rf"such as .*/{PERSON}"),
    f"submit fedavg --kit {PERSON} --dry-run --gpu-memory h": instead("h", "h=8", "SITE=GIB"),
    f"submit fedavg --kit {PERSON} --dry-run --resume always": listed("always"),
    f"submit statistics --kit {PERSON} --dry-run --reference": dropped("--reference"),
    f"submit fedavg --kit {PERSON} --dry-run --sites a,a": instead("a,a", "a,b", "different names of sites"),
    f"submit fedavg --kit {PERSON} --dry-run --min-sites 5 --sites a,b": instead("5", "2", "only a, b take part"),
    f"submit fedavg --kit {PERSON} --dry-run --dataset x --classes a": instead("a", "a,b", "at least two different names"),
    f"submit fedavg --kit {PERSON} --dry-run --run-name ../x": instead("../x", "x", "letters, digits"),
    f"submit fedperl --kit {PERSON} --dry-run --start dne": meant("dne"),
    f"submit fedavg --kit {PERSON} --dryrun": meant("--dryrun"),
    "doctor --policy privcy.json": meant("privcy.json"),
    "doctor --site-config clinic.json": helped,
    # ledgers
    "ledger show privacy --last -1": bound,
    "ledger show privacy --last all": named("--last"),
    "ledger show privacy --verfy": meant("--verfy"),
    "ledger sho privacy": meant("sho"),
    "ledger privacy": helped,
    "ledger create OUT": more("--site", "hospital-a", said="add --site SITE"),
    "ledger create privacy --site hospital-b": instead("hospital-b", "hospital-a", "is the ledger of 'hospital-a'"),
    "ledger amend privacy skin --reason x": more("--manifest", "manifest.csv", said="give either --manifest or"),
    "ledger amend privacy skin --manifest manifest.csv": more("--reason", "x", said="add --reason REASON"),
    "ledger amend privacy skin --manifest manifst.csv --reason x": meant("manifst.csv"),
    "verify privacy": command,
    # results
    "report dne --out OUT": meant("dne"),
    "report done": more("--out", "r", said="add --out OUT"),
    "report done --out notes.txt": instead("notes.txt", "r", "it is a file: name a folder"),
    "report done done --out OUT": lambda words, said: [["report", "A=done", "B=done", *words[3:]]] * ("NAME=RUN" in said),
    "report A=done B=done --out OUT --reference a": meant("a"),
    "report done --out OUT --model all": listed("all"),
    "report done --out OUT --sites-dir stes": meant("stes"),
    "report done --out OUT --sites-dir images": instead("images", "sites", "is not a partition"),
    "report done --out OUT --examples": more("--sites-dir", "sites", said="name the folder of the partition.*--sites-dir"),
    "report done --out OUT --titel x": meant("--titel"),
    "figures done": more("--out", "f", said="add --out OUT"),
    "export dne --out OUT": meant("dne"),
    "export done": more("--out", "m", said="add --out OUT"),
    "export done --out OUT --formats torchscrpt": meant("torchscrpt"),
    "export done --out OUT --formats pth": listed("pth"),
    "export done --out notes.txt": instead("notes.txt", "m", "it is a file: name a folder"),
    "export done --out OUT --sites-dir stes": meant("stes"),
    "runs don": meant("don"),
    "runs notes.txt": instead("notes.txt", "done", "a folder with runs"),
    "run done": helped,
    "predict done": helped,
    "predict dne images": meant("dne"),
    "predict done imags": meant("imags"),
    "predict done empty": instead("empty", "images", "has no image that can be used"),
    "predict done notes.txt": instead("notes.txt", "images", "expected PNG, JPEG"),
    "predict images done": lambda words, said: [["predict", "done", "images"]] * ("is no run" in said),
    "predict done images --sites-dir stes": meant("stes"),
    "evaluate done": more("--sites-dir", "clinic", said="give either --sites-dir"),
    "evaluate dne --sites-dir clinic": meant("dne"),
    "evaluate done --sites-dir clinc": meant("clinc"),
    "evaluate done --sites-dir clinic --positive c": instead("c", "a", "one of the classes a, b"),
    "evaluate done --sites-dir clinic --groups a": instead("a", "x=a;y=b", "GROUP=CLASS,CLASS;GROUP=CLASS"),
    "evaluate done --sites-dir clinic --groups x=a": instead("x=a", "x=a;y=b", "at least two"),
    "evaluate done --sites-dir clinic --positive a --sensitivity 90": most,
    "evaluate done --sites-dir clinic --positive a --threshold 50": most,
    "evaluate done --sites-dir clinic --positive a --prevalence 10": instead("10", "0.1", "above 0 and below 1"),
    "evaluate done --sites-dir clinic --positive a --recalibrate 2": instead("2", "0.3", "a share from 0 to 0.9"),
    "evaluate done --sites-dir clinic --recalibrate label:5": instead("label:5", "labels:10", "labels:N .*N of at least 10"),
    "evaluate done --sites-dir clinic --site x": instead("x", "external", "it has external"),
    "evaluate done --sites-dir clinic --minimum 0": bound,
    "evaluate done --sites-dir clinic --sums own.pt": without("--sums", 1, "is for --recalibrate head:N"),
    "evaluate done --manifest manifest.csv": more("--root", "images", said="--manifest with --root"),
    # sweeps, weights, jobs, plug-ins, data sets
    "sweep fedavg": more("--workspace", "w", said="add --workspace WORKSPACE"),
    "sweep fedavgg --workspace OUT": meant("fedavgg"),
    "sweep fedavg --workspace OUT --seeds 1,x": instead("1,x", "1,2", "such as 1,2,3"),
    "sweep fedavg --workspace OUT --seeds 1,1": instead("1,1", "1,2", "different numbers"),
    "sweep fedavg --workspace OUT --vary executor.learning_rat=1": meant("executor.learning_rat"),
    "sweep fedavg --workspace OUT --vary learning_rate=1": meant("learning_rate"),
    "sweep fedavg --workspace OUT --preset recomended": meant("recomended"),
    "sweep fedavg --workspace OUT --sites-dir stes": meant("stes"),
    "sweep fedavg --workspace OUT --processes 0": bound,
    "weights lst": meant("lst"),
    "weights add ow.pt --name x --intensities scaled": meant("ow.pt"),
    "weights add own.pt --intensities scaled": more("--name", "x", said="it needs --name"),
    "weights add own.pt --name a:b --intensities scaled": instead("a:b", "a_b", "letters, digits"),
    "weights add own.pt --name x --intensities scaledd": meant("scaledd"),
    "weights add own.pt --name x": more("--intensities", "scaled", said=r"give --intensities \(scaled"),
    "weights list x": dropped("x"),
    "jobs --all": more("fedavg", said="need a job"),
    "new metod my_method --out OUT": meant("metod"),
    "new method Fed-Proto --out OUT": instead("Fed-Proto", "fed_proto", "lower-case letters, digits and _"),
    "new method fedproto --out images": instead("images", "plugin", "choose another folder"),
    "build fedavgg --out OUT": meant("fedavgg"),
    "build fedavg --out notes.txt": instead("notes.txt", "j", "it is a file: name a folder"),
    "build fedavg --set controller.rounds=0 --out OUT": bound,
    "advise --sites-dir stes": meant("stes"),
    "simulate fedavg --sites-dir sites --sites 9": named("--sites"),
    "simulate fedavg --root images": more("--images", "table.csv", said="--root needs --images"),
    "simulate fedavg --engine flar": meant("flar"),
    "simulate fedavg --workers 0": bound,
    "simulate fedavg --set problem.image_size=big": instead("big", "32", "must be an integer"),
    "simulate fedavg --set executor.weak_view=trns": listed("trns"),
    "simulate fedavg --set controller.weighting=uniforn": listed("uniforn"),
    # files that are imported
    "import table.cvs --root images --out OUT": meant("table.cvs"),
    "import imges --out OUT": meant("imges"),
    "import images/a/0.png --out OUT": instead("images/a/0.png", "images", "name the folder of all classes"),
    "import privacy.json --out OUT": instead("privacy.json", "table.csv --root images", "a table with the columns"),
    "import arrays.npz --out OUT": instead("arrays.npz", "table.csv --root images", "a table with the columns"),
    "import own.pt --out OUT": instead("own.pt", "images", "if images are in it"),
    "import documents.zip --out OUT": instead("documents.zip", "images", "no image that can be used .*CLASS/image"),
    "import empty --out OUT": instead("empty", "images", "expected empty/CLASS/image"),
    "import sites --out OUT": command,
}  # fmt: skip


@pytest.mark.parametrize("line", ROWS)
def test_what_a_refusal_says_works(line, place, tmp_path):
    shutil.copy(PROJECT, place / "project.yml")
    words = shlex.split(line.replace("OUT", str(tmp_path / "out")))
    refused = run_command(*words)
    assert refused.exit_code in (1, 2), refused.output
    assert isinstance(refused.exception, SystemExit), refused.exception
    said = " ".join(re.sub("[\u2500-\u257f]", " ", refused.output).split())
    typed = ROWS[line](words, said)
    assert typed, said
    for again in typed:
        made = run_command(*shlex.split(shlex.join(again).replace("\\", "")))
        assert made.exit_code == 0, f"{said}\n{again}\n{made.output}\n{made.exception!r}"
