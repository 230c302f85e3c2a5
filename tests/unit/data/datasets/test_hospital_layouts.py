"""Collections of hospitals and competitions: a right manifest in two commands, the second as the first prints it."""

import json
import re
import shlex
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import pandas as pd
import pytest

from grandrounds.data.manifest import read_manifest
from tests.unit.data.datasets.test_published_layouts import (
    COUNT,
    NUMBERS,
    PAIRS,
    Images,
    Truth,
    cycle,
    draw,
    put,
    require_right,
    table,
    typed,
)

LABELS = cycle(["benign", "malignant", "benign"], 2)
PEOPLE = [f"P{number:03d}" for number in PAIRS]
SPLITS = cycle(["train", "train", "val", "test"], 2)
STEMS = [f"{number * 7919 % 65536:04x}a{number:02d}" for number in NUMBERS]
NAMES = [f"{stem}.png" for stem in STEMS]
EACH = slice(None, None, 2)
ABOUT = {
    "diagnosis": LABELS[EACH],
    "age": [*range(40, 64)],
    "sex": ["F", "M"] * 12,
    "site": ["Leeds"] * 12 + ["York"] * 12,
}
"""What a second sheet says of each patient."""


def of_images(labels=LABELS, groups=("",) * COUNT, splits=("",) * COUNT):
    return dict(zip(NAMES, map(Truth, labels, groups, splits), strict=True))


def kaggle_zip(root):
    draw(root / "x" / "train", NAMES)
    draw(root / "x" / "test", [f"t{number}.png" for number in range(6)])
    table(root / "x" / "train_labels.csv", {"id": STEMS, "label": [int(label == "malignant") for label in LABELS]})
    table(root / "x" / "sample_submission.csv", {"id": [f"t{number}" for number in range(6)], "label": 0})
    shutil.make_archive(str(root / "set"), "zip", root / "x")
    return of_images([str(int(label == "malignant")) for label in LABELS])


def coco(root, labels=tuple((label,) for label in LABELS)):
    draw(root / "images", NAMES)
    categories = {"benign": 3, "malignant": 7}
    content = {
        "info": {},
        "images": [{"id": 100 + number, "file_name": NAMES[number], "width": 12} for number in NUMBERS],
        "annotations": [
            {"image_id": 100 + number, "category_id": categories[label], "bbox": [0, 0, 4, 4]}
            for number in NUMBERS
            for label in labels[number]
            for _ in range(2)
        ],
        "categories": [{"id": number, "name": name} for name, number in categories.items()],
    }
    put(root / "instances.json", json.dumps(content))
    return of_images(["|".join(own) or "none" for own in labels])


def coco_of_findings(root):
    return coco(root, cycle([("benign",), ("benign", "malignant"), (), ("malignant",)]))


def reports_beside(root):
    draw(root, [f"{label}/{name}" for label, name in zip(LABELS, NAMES, strict=True)])
    for label, stem in zip(LABELS, STEMS, strict=True):
        put(root / label / f"{stem}.txt", "FINDINGS: the lesion is round, stable.\nIMPRESSION: benign or malignant.\n")
    return of_images()


def two_sheets(root, first="Images"):
    draw(root / "pics", NAMES)
    sheets = {"Images": {"image": NAMES, "patient": PEOPLE}, "Patients": {"patient": PEOPLE[EACH], **ABOUT}}
    with pd.ExcelWriter(root / "study.xlsx") as book:
        for name in sorted(sheets, key=lambda name: name != first):
            pd.DataFrame(sheets[name]).to_excel(book, sheet_name=name, index=False)
    return of_images(groups=PEOPLE)


def patients_first(root):
    return two_sheets(root, "Patients")


def two_tables(root):
    draw(root / "pics", NAMES)
    table(root / "images.csv", {"file": NAMES, "patient_id": PEOPLE})
    table(root / "patients.csv", {"patient_id": PEOPLE[EACH], **ABOUT})
    return of_images(groups=PEOPLE)


def json_lines(root):
    draw(root / "data", NAMES)
    rows = zip(NAMES, LABELS, PEOPLE, strict=True)
    lines = [json.dumps({"file_name": f"data/{name}", "label": own, "patient_id": who}) for name, own, who in rows]
    put(root / "metadata.jsonl", "\n".join(lines))
    return of_images(groups=PEOPLE)


def json_by_split(root):
    draw(root / "imgs", NAMES)
    rows = [
        {"image": f"./imgs/{name}", "label": int(own == "malignant")} for name, own in zip(NAMES, LABELS, strict=True)
    ]
    lists = {"training": "train", "validation": "val", "test": "test"}
    content = {name: [rows[n] for n in NUMBERS if SPLITS[n] == split] for name, split in lists.items()}
    put(root / "dataset.json", json.dumps({"labels": {"0": "benign", "1": "malignant"}, **content}))
    return of_images(splits=SPLITS)


def json_by_image(root):
    draw(root / "imgs", NAMES)
    rows = zip(NAMES, LABELS, PEOPLE, strict=True)
    put(root / "labels.json", json.dumps({name: {"label": own, "patient": {"id": who}} for name, own, who in rows}))
    return of_images(groups=PEOPLE)


def quoted_names(root):
    names = [f'scan "{stem}", left.png' for stem in STEMS]
    draw(root, names)
    columns = {"Image name": names, "Diagnosis": LABELS, "Patient ID": PEOPLE}
    table(root / "list.tsv", columns, sep="\t", quoting=1)
    return dict(zip(names, map(Truth, LABELS, PEOPLE), strict=True))


def no_finding_of_its_own(root):
    draw(root / "img", NAMES)
    mass, effusion = cycle([1, 0, 0, 1]), cycle([1, 0, 1, 0])
    none = [int(not a + b) for a, b in zip(mass, effusion, strict=True)]
    table(root / "labels.csv", {"image": NAMES, "mass": mass, "effusion": effusion, "No finding": none, "pid": PEOPLE})
    return of_images(cycle(["mass|effusion", "none", "effusion", "mass"]), PEOPLE)


def lists_of_lines(root):
    draw(root / "images", NAMES)
    for split in ("train", "val", "test"):
        own = [f"images/{NAMES[number]} {LABELS[number]}\n" for number in NUMBERS if SPLITS[number] == split]
        put(root / f"{split}.txt", "".join(own))
    put(root / "README.txt", "Made by hand.\n")
    return of_images(splits=SPLITS)


def folders_of_patients(root):
    draw(root, [f"{SPLITS[n]}/{PEOPLE[n]}/{NAMES[n]}" for n in NUMBERS])
    table(root / "labels.csv", {"patient": PEOPLE[EACH], "label": LABELS[EACH]})
    return of_images(groups=PEOPLE, splits=SPLITS)


def table_in_each_split(root):
    draw(root, [f"{SPLITS[n]}/{NAMES[n]}" for n in NUMBERS])
    for split in ("train", "val", "test"):
        own = [number for number in NUMBERS if SPLITS[number] == split]
        table(root / split / "metadata.csv", {"file_name": [NAMES[n] for n in own], "label": [LABELS[n] for n in own]})
    return of_images(splits=SPLITS)


def windows_paths(root):
    draw(root, [f"scans/{who}/{name}" for who, name in zip(PEOPLE, NAMES, strict=True)])
    paths = [f"D:\\Studie\\scans\\{who}\\{name}" for who, name in zip(PEOPLE, NAMES, strict=True)]
    table(root / "liste.csv", {"Pfad": paths, "Befund": LABELS}, sep=";")
    return of_images(groups=PEOPLE)


COLLECTIONS: Mapping[str, Callable[[Path], Images]] = {
    "a competition's zip": kaggle_zip,
    "COCO": coco,
    "COCO with findings": coco_of_findings,
    "reports beside images": reports_beside,
    "two sheets": two_sheets,
    "two sheets, patients first": patients_first,
    "two tables": two_tables,
    "lines of JSON": json_lines,
    "JSON by split": json_by_split,
    "JSON by image": json_by_image,
    "quoted names": quoted_names,
    "no finding": no_finding_of_its_own,
    "lists of lines": lists_of_lines,
    "folders of patients": folders_of_patients,
    "a table in each split": table_in_each_split,
    "paths of Windows": windows_paths,
}


@pytest.mark.parametrize("name", COLLECTIONS)
def test_a_collection_becomes_a_right_manifest_in_two_commands(name, tmp_path):
    if "sheets" in name:
        pytest.importorskip("openpyxl")
    root = tmp_path / "set"
    root.mkdir()
    truth = COLLECTIONS[name](root)
    made = typed(root / "set.zip" if (root / "set.zip").exists() else root, "--out", tmp_path / "out")
    if made.exit_code:
        command = shlex.split(re.search(r"grandrounds import .* --out DIR", made.stderr)[0])
        made = typed(*command[2:-1], tmp_path / "out")
    assert made.exit_code == 0, made.stderr
    require_right(tmp_path / "out", truth)


def test_names_with_quotes_stay_whole_in_json(tmp_path):
    names = cycle(['Barrett\'s "long" oesophagus', "none at all, healthy"], 2)
    draw(tmp_path, NAMES)
    put(tmp_path / "x.json", json.dumps([{"image": n, "label": [own]} for n, own in zip(NAMES, names, strict=True)]))
    made = typed(tmp_path / "x.json", "--out", tmp_path / "out")
    assert made.exit_code == 0, made.stderr
    require_right(tmp_path / "out", of_images(names))


def test_a_heading_with_an_apostrophe_is_proposed_as_a_shell_reads_it(tmp_path):
    draw(tmp_path, NAMES)
    table(tmp_path / "x.csv", {"file's name": NAMES, "diagnosis": LABELS})
    made = typed(tmp_path / "x.csv", "--out", tmp_path / "out")
    words = shlex.split(re.search(r"--columns (?:'[^']*'|\"'\")+", made.stderr)[0])
    made = typed(tmp_path / "x.csv", *words, "--out", tmp_path / "out")
    assert made.exit_code == 0, made.stderr
    require_right(tmp_path / "out", of_images())


def test_tables_in_two_splits_bring_the_images_beside_them(tmp_path):
    for split, part in (("train", slice(0, 40)), ("valid", slice(40, None))):
        draw(tmp_path / split, NAMES[part])
        table(tmp_path / split / "labels.csv", {"image": NAMES[part], "label": LABELS[part]})
    made = typed(tmp_path / "train" / "labels.csv", "--out", tmp_path / "out")
    assert made.exit_code == 0, made.stderr
    splits = ["train"] * 40 + ["val"] * (COUNT - 40)
    require_right(tmp_path / "out", of_images(LABELS, splits=splits))


def test_folders_of_splits_that_tear_patients_are_no_splits(tmp_path):
    for split, part in (("train", slice(0, None, 2)), ("test", slice(1, None, 2))):
        draw(tmp_path / split, NAMES[part])
    people = [f"P{number:03d}" for number in PAIRS]
    table(tmp_path / "labels.csv", {"image": NAMES, "label": LABELS, "patient": people})
    made = typed(tmp_path / "labels.csv", "--out", tmp_path / "out")
    assert made.exit_code == 0, made.stderr
    require_right(tmp_path / "out", of_images(LABELS, people))


def test_a_table_in_an_archive_takes_no_images_of_another_folder(tmp_path):
    draw(tmp_path / "x" / "A" / "img", NAMES[:30])
    draw(tmp_path / "x" / "B" / "img", NAMES[30:])
    table(tmp_path / "x" / "A" / "labels.csv", {"image": NAMES[:40], "label": LABELS[:40]})
    shutil.make_archive(str(tmp_path / "set"), "zip", tmp_path / "x")
    made = typed(tmp_path / "set.zip" / "A" / "labels.csv", "--out", tmp_path / "out")
    assert made.exit_code == 1
    assert f"B/img/{NAMES[30]}" in made.stderr


def test_what_a_second_table_says_of_patients_is_kept(tmp_path):
    two_tables(tmp_path)
    typed(tmp_path / "images.csv", "--metadata", "patients.csv", "--columns",
          "image=file,patient=patient_id,label=diagnosis", "--out", tmp_path / "out")  # fmt: skip
    records = [
        record for site in ("Leeds", "York") for record in read_manifest(tmp_path / "out" / site / "manifest.csv")
    ]
    assert {record.patient: dict(record.more)["age"] for record in records} == {
        who: str(age) for who, age in zip(PEOPLE[EACH], ABOUT["age"], strict=True)
    }


def test_reports_beside_images_are_counted_by_their_reason(tmp_path):
    reports_beside(tmp_path / "set")
    made = typed(tmp_path / "set", "--out", tmp_path / "out")
    assert f"{2 * COUNT} files found = {COUNT} used + {COUNT} left out ({COUNT} no images)" in made.output


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ('{"a.png": "x", "b.png": "y", "a.png": "z"}', "a.png"),
        ('[{"image": "a.png", "label": "x", "a_b": 1, "a": {"b": 2}}]', "a_b"),
        ('{"editor.tabSize": 2, "files.autoSave": "on"}', "COCO"),
        (
            '{"images": [{"id": 1, "file_name": "a.png"}], "annotations": [{"image_id": 2, "category_id": 3}], '
            '"categories": [{"id": 3, "name": "x"}]}',
            "image 2",
        ),
        ("[1, 2]", "COCO"),
        (json.dumps([{"image": "a.png", f"box{number}": 1} for number in range(5000)]), "5001 columns"),
        ("{broken", "no valid JSON"),
        ('{"images": [{"id": 1}], "annotations": [], "categories": []}', "file_name"),
    ],
)
def test_json_of_another_form_is_refused_by_name(content, named, tmp_path):
    put(tmp_path / "x.json", content)
    made = typed(tmp_path / "x.json", "--out", tmp_path / "out")
    assert made.exit_code
    assert named in made.stderr
