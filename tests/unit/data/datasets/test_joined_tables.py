"""What tables, headers and lists know of images is used, or asked about by an option that works as it is printed."""

import gzip
import re
import shlex
from collections import defaultdict

import pandas as pd
import pytest

from grandrounds.api.sites import Sites
from grandrounds.data.manifest import read_manifest
from grandrounds.errors import DataError
from tests.federations import write_pictures
from tests.unit.data.datasets.test_own_images import write_dicom

COUNT = 48
NAMES = [f"i{number:02d}.png" for number in range(COUNT)]
LABELS = ["ab"[number // 4 % 2] for number in range(COUNT)]
PATIENTS = [f"P{number // 4}" for number in range(COUNT)]


def csv(frame, place):
    frame.to_csv(place / "t.csv", index=False)
    return place / "t.csv"


def packed(frame, place):
    (place / "t.csv.gz").write_bytes(gzip.compress(frame.to_csv(index=False, sep=";").encode("utf-16")))
    return place / "t.csv.gz"


def workbook(frame, place):
    pytest.importorskip("openpyxl")
    frame.to_excel(place / "t.xlsx", index=False)
    return place / "t.xlsx"


def parquet(frame, place):
    frame.to_parquet(place / "t.parquet")
    return place / "t.parquet"


def data_frame(frame, place):
    return frame


WAYS = [csv, packed, workbook, parquet, data_frame]


@pytest.fixture
def sites_of(request, tmp_path):
    """Sites of a table, which is a CSV file or written in the way that is asked for."""
    write_pictures(tmp_path / "im", NAMES)
    way = getattr(request, "param", csv)

    def make(given, **options):
        table = way(pd.DataFrame({"image": NAMES, "label": LABELS, **given}), tmp_path)
        out = tmp_path / f"out{len(list(tmp_path.glob('out*')))}"
        return Sites.from_manifest(table, tmp_path / "im", out, **{"sites": 2, "warn": False, **options})

    return make


def records_of(sites):
    return {
        record.image: record for site in sites.names for record in read_manifest(sites.folder / site / "manifest.csv")
    }


def torn(sites, names):
    """Of these names, in the order of the images, those that are in two splits or at two sites."""
    places = defaultdict(set)
    for site in sites.names:
        for record in read_manifest(sites.folder / site / "manifest.csv"):
            places[names[NAMES.index(record.image.rpartition("/")[2])]].add((site, record.split))
    return [name for name, own in places.items() if len(own) > 1]


def printed_options(message):
    """The options of a refusal as Python takes them, from what the command line would read."""
    entries = re.findall(r"--(merge|distinct) ('[^']+'|\S+)", message)
    return [{option: shlex.split(value)[0].split(",")} for option, value in entries]


@pytest.mark.parametrize(
    "heading",
    ["patient_id", "PatientID", "Patienten-ID", "Probanden ID", "Fall", "numéro de patient", "Paciente", "Patiëntnummer"],
)  # fmt: skip
def test_patients_are_known_by_the_usual_headings(sites_of, heading):
    sites = sites_of({heading: PATIENTS})
    assert torn(sites, PATIENTS) == []
    assert "patients" not in sites.description
    assert any(repr(heading) in note for note in sites.description["import"]["notes"])
    assert sites_of({heading: PATIENTS}, columns=["patient="]).description["patients"] == "unknown"


@pytest.mark.parametrize("heading", ["lesion_id", "Läsions-ID", "tumor id", "lésion", "Lesione"])
def test_lesions_are_known_by_the_usual_headings(sites_of, heading):
    assert torn(sites_of({heading: PATIENTS}), PATIENTS) == []


def test_a_study_stands_for_the_patient_where_it_has_several_images(sites_of):
    assert torn(sites_of({"StudyInstanceUID": PATIENTS}), PATIENTS) == []
    assert sites_of({"study": NAMES}).description["patients"] == "unknown"


@pytest.mark.parametrize(
    ("heading", "words"),
    [("subset", ("train", "val", "test")), ("Phase", ("Training", "Validation", "Testing")),
     ("conjunto", ("entrenamiento", "validación", "prueba")), ("x", ("train_set", "dev", "test_set"))],
)  # fmt: skip
def test_a_published_split_is_kept_whatever_its_column_is_called(sites_of, heading, words):
    splits = [words[(0, 0, 1, 2)[number // 4 % 4]] for number in range(COUNT)]
    sites = sites_of({heading: splits})
    assert sum(record.split == "test" for record in records_of(sites).values()) == 12
    kept = {split: name for split, name in zip(words, ("train", "val", "test"), strict=True)}
    assert all(
        record.split == kept[splits[NAMES.index(image.rpartition("/")[2])]]
        for image, record in records_of(sites).items()
    )


@pytest.mark.parametrize("heading", ["Klinik", "hospital", "Centre", "ospedale", "ziekenhuis", "institution"])
def test_hospitals_are_the_sites(sites_of, heading):
    hospitals = [f"{'KJ'[number // 24]}" for number in range(COUNT)]
    assert set(sites_of({heading: hospitals, "patient": PATIENTS}).names) == {"K", "J"}
    numbered = sites_of({heading: [str(number) for number in range(COUNT)], "patient": PATIENTS})
    assert len(numbered.names) == 2
    assert any(f"unused: {heading}" in note for note in numbered.description["import"]["notes"])


@pytest.mark.parametrize("sites_of", WAYS, indirect=True, ids=lambda way: way.__name__)
@pytest.mark.parametrize(
    ("given", "options", "left_out"),
    [
        ({"patient_id": PATIENTS}, {}, {}),
        ({"lesion_id": PATIENTS, "subset": [("train", "train", "test")[n // 4 % 3] for n in range(COUNT)]}, {}, {}),
        (
            {"label": [*LABELS[:-2], "#REF!", "#¡VALOR!"], "patient": PATIENTS},
            {},
            {"error values of the spreadsheet": 2},
        ),
        ({"label": [f"['{label}', 'x']" for label in LABELS], "patient": PATIENTS}, {"task": "multi"}, {}),
    ],
    ids=["patient", "split", "error values", "lists"],
)
def test_each_kind_is_read_alike_in_each_way(sites_of, given, options, left_out):
    sites = sites_of(given, **options)
    assert torn(sites, PATIENTS) == []
    assert sites.description["classes"] == (["a", "b", "x"] if options else ["a", "b"])
    assert sites.description["import"]["left_out"] == left_out


@pytest.mark.parametrize("sites_of", WAYS, indirect=True, ids=lambda way: way.__name__)
@pytest.mark.parametrize(
    ("given", "question"),
    [
        ({"label": ["ja", "nein", "1", "0"] * 12}, "'ja' and '1'"),
        ({"label": ["a", "b"] * 24, "lesion": PATIENTS}, "12 lesions have two labels"),
        ({"patient": ["unbekannt" if n % 2 else f"p{n}" for n in range(COUNT)]}, "the patient 'unbekannt'"),
    ],
    ids=["booleans", "lesions", "placeholder"],
)
def test_each_kind_is_asked_about_alike_in_each_way(sites_of, given, question):
    with pytest.raises(DataError, match=question):
        sites_of(given)


@pytest.mark.parametrize("rows", [60, 8])
def test_the_refusal_proposes_every_column_that_is_known_and_the_option_works(tmp_path, rows):
    names = [f"{number}.png" for number in range(rows)]
    write_pictures(tmp_path / "im", names)
    table = {"Bild": names, "Diagnose": ["x", "y"] * (rows // 2), "Fall": [f"F{n // 2}" for n in range(rows)]}
    second(
        tmp_path, {**table, "Klinik": ["K", "K", "J", "J"] * (rows // 4), "Alter": range(rows), "Notiz": names}, "t.csv"
    )
    with pytest.raises(DataError) as refused:
        Sites.from_manifest(tmp_path / "t.csv", tmp_path / "im", tmp_path / "out")
    option = re.search("--columns '([^']+)'", str(refused.value))[1]
    assert option == "image=Bild,label=Diagnose,patient=Fall,site=Klinik"
    options = {"columns": option.split(","), "warn": False}
    assert rows < 60 or set(
        Sites.from_manifest(tmp_path / "t.csv", tmp_path / "im", tmp_path / "out", **options).names
    ) == {"K", "J"}


def second(place, columns, name="Metadata.csv"):
    pd.DataFrame(columns).to_csv(place / name, index=False)
    return place / name


def labels_in(place):
    write_pictures(place / "im", NAMES)
    pd.DataFrame({"image": [name[:-4] for name in NAMES], "label": LABELS}).to_csv(place / "Labels.csv", index=False)
    return place / "Labels.csv"


@pytest.mark.parametrize("written", ["{}", "im/{}.PNG", r"D:\export\im\{}.png"])
def test_patients_of_a_table_beside_are_joined_by_the_images_names(tmp_path, written):
    images = [written.format(name[:-4]) for name in NAMES][::-1]
    second(tmp_path, {"isic_id": images, "lesion_id": PATIENTS[::-1], "age": range(COUNT)})
    sites = Sites.from_manifest(labels_in(tmp_path), tmp_path / "im", tmp_path / "out", sites=2, warn=False)
    assert torn(sites, PATIENTS) == []
    assert any("Metadata.csv" in note for note in sites.description["import"]["notes"])
    apart = Sites.from_manifest(
        tmp_path / "Labels.csv", tmp_path / "im", tmp_path / "2", sites=2, warn=False, metadata=["none"]
    )
    assert apart.description["patients"] == "unknown"


@pytest.mark.parametrize(
    "columns",
    [{"image": ["other"] * COUNT, "patient": PATIENTS}, {"age": PATIENTS}, {"image": NAMES, "patient": [""] * COUNT}],
)
def test_a_table_beside_that_says_nothing_of_these_images_is_left_alone(tmp_path, columns):
    second(tmp_path, columns)
    (tmp_path / "broken.csv").write_bytes(b"\x81\x00")
    sites = Sites.from_manifest(labels_in(tmp_path), tmp_path / "im", tmp_path / "out", sites=2, warn=False)
    assert not any("Metadata.csv" in note for note in sites.description["import"]["notes"])


def test_a_named_table_gives_labels_splits_and_further_columns(tmp_path):
    write_pictures(tmp_path / "im", NAMES)
    images = second(tmp_path, {"image": NAMES, "Patient": PATIENTS, "sex": ["f", "m"] * (COUNT // 2)}, "images.csv")
    people = [f"P{number}" for number in range(COUNT // 4)]
    splits = ["train", "train", "val", "test"] * (len(people) // 4)
    second(tmp_path, {"PatientID": people, "Befund": list("xyyx") * 3, "subset": splits}, "people.csv")
    options = {"columns": ["label=Befund"], "metadata": ["people.csv"], "sites": 1, "warn": False}
    for number, (first, other) in enumerate((("images.csv", "people.csv"), ("people.csv", "images.csv"))):
        out = tmp_path / f"out{number}"
        sites = Sites.from_manifest(tmp_path / first, tmp_path / "im", out, **options | {"metadata": [other]})
        found = records_of(sites)
        assert {(found[name].label, found[name].split) for name in NAMES[4:8]} == {("y", "train")}
        assert {(found[name].label, found[name].split) for name in NAMES[12:16]} == {("x", "test")}
        assert dict(found["i05.png"].more)["sex"] == "m"
    assert images.exists()


@pytest.mark.parametrize("first", ["0", "1"])
def test_a_named_table_lets_training_use_a_label(tmp_path, first):
    write_pictures(tmp_path / "im", NAMES)
    flags = ["1"] * 40 + [first] * 8
    labels, splits = [*LABELS[:40], *[""] * 4, *LABELS[44:]], ["val"] * 8 + ["test"] * 8 + ["train"] * 32
    own = {"image": NAMES, "label": labels, "split": splits, "patient": PATIENTS, "labelled": flags}
    pd.DataFrame(own).to_csv(tmp_path / "t.csv", index=False)
    further = {"image": NAMES[38:46], "label": LABELS[38:46], "labelled": ["0"] * 2 + ["1"] * 6}
    pd.DataFrame(further).to_csv(tmp_path / "labels.csv", index=False)
    sites = Sites.from_manifest(
        tmp_path / "t.csv", tmp_path / "im", tmp_path / "out", sites=2, warn=False, metadata=["labels.csv"]
    )
    hidden = {image.rpartition("/")[2] for image, record in records_of(sites).items() if not record.labelled}
    assert hidden == ({*NAMES[46:]} if first == "0" else set())


def test_tables_that_contradict_each_other_or_have_nothing_in_common_are_refused_by_line(tmp_path):
    table = labels_in(tmp_path)
    second(tmp_path, {"image": NAMES, "label": ["b", *LABELS[1:]]})
    with pytest.raises(DataError, match=r"Labels\.csv line 2, column label: 'a', but \S+Metadata\.csv line 2 says 'b'"):
        Sites.from_manifest(table, tmp_path / "im", tmp_path / "out", metadata=["Metadata.csv"])
    second(tmp_path, {"image": ["z"] * 4, "patient": list("abcd")})
    with pytest.raises(DataError, match="has no image of"):
        Sites.from_manifest(table, tmp_path / "im", tmp_path / "out", metadata=["Metadata.csv"])
    second(tmp_path, {"age": [1, 2]})
    with pytest.raises(DataError, match="no column in common"):
        Sites.from_manifest(table, tmp_path / "im", tmp_path / "out", metadata=["Metadata.csv"])


def tree(root, patient_of=lambda number: f"PAT{number // 4}"):
    for number in range(40):
        write_dicom(root / f"PA{number // 4:04d}" / "SE0" / f"IM{number:04d}", patient_of(number))
    return root


def test_headers_fill_in_the_patients_that_a_table_lacks(tmp_path):
    root = tree(tmp_path / "im")
    names = sorted(path.relative_to(root).as_posix() for path in root.rglob("IM*"))
    second(tmp_path, {"image": names, "label": [f"{int(name[-4:]) // 4 % 2}" for name in names]}, "t.csv")
    sites = Sites.from_manifest(tmp_path / "t.csv", root, tmp_path / "out", sites=2, warn=False)
    assert all(record.patient == f"PAT{int(image[-4:]) // 4}" for image, record in records_of(sites).items())
    one = tree(tmp_path / "one", lambda number: "ANONYM")
    unknown = Sites.from_manifest(tmp_path / "t.csv", one, tmp_path / "out2", sites=2, warn=False)
    assert unknown.description["patients"] == "unknown"


@pytest.mark.parametrize(
    ("names", "known"),
    [
        ("train/patient{p:05d}/view{k}.png", True),
        ("PAT_{p}_{k}.png", True),
        ("x/p{k}.png", False),
        ("IMG_{k}.png", False),
    ],
)
def test_patients_in_the_names_of_images_are_known(tmp_path, names, known):
    images = [names.format(p=number // 4, k=number) for number in range(COUNT)]
    write_pictures(tmp_path, images)
    second(tmp_path, {"image": images, "label": LABELS}, "t.csv")
    sites = Sites.from_manifest(tmp_path / "t.csv", out=tmp_path / "out", sites=2, warn=False)
    assert (sites.description.get("patients") != "unknown") == known
    found = records_of(sites)
    assert len({found[name].patient for name in images}) == (COUNT // 4 if known else 1)


def test_a_series_names_its_only_file_and_an_image_that_is_listed_twice_is_one(tmp_path):
    write_pictures(tmp_path / "jpeg", [f"1.3.6.1.{number}/1-001.jpg" for number in range(COUNT)])
    rows = [number // 2 for number in range(2 * COUNT)]
    second(
        tmp_path,
        {"image": [f"Mass_{n}/1.2.3.4.{n}/1.3.6.1.{n}/000000.dcm" for n in rows], "label": [LABELS[n] for n in rows]},
        "t.csv",
    )
    sites = Sites.from_manifest(tmp_path / "t.csv", tmp_path / "jpeg", tmp_path / "out", sites=1, warn=False)
    account = sites.description["import"]
    assert (account["found"], account["used"], account["left_out"]) == (96, 48, {"images of an earlier line": 48})
    assert all(
        record.label == LABELS[int(name.split("/")[0].split(".")[-1])] for name, record in records_of(sites).items()
    )


@pytest.mark.parametrize(
    ("heading", "names", "options"),
    [
        ("PatientID", "PAT{}", {}),
        ("Patient", "PA{:04d}", {}),
        ("patient", "{:04d}", {"patient_pattern": "PA([0-9]+)"}),
    ],
)
def test_labels_of_patients_are_given_to_their_images(tmp_path, heading, names, options):
    root = tree(tmp_path / "im")
    people = [names.format(number) for number in range(12)]  # the last two have no image
    second(tmp_path, {heading: people, "Befund": ["x", "y"] * 6}, "list.csv")
    with pytest.raises(
        DataError, match=rf"--columns 'label=Befund{f',patient={heading}' if heading == 'PatientID' else ''}'"
    ):
        Sites.from_manifest(tmp_path / "list.csv", root, tmp_path / "out")
    sites = Sites.from_manifest(
        tmp_path / "list.csv", root, tmp_path / "out", columns=["label=Befund"], sites=1, warn=False, **options
    )
    found = records_of(sites)
    assert len(found) == 40
    assert all(record.label == "xy"[int(image[-4:]) // 4 % 2] for image, record in found.items())
    assert any("2 patients of the list have no image" in note for note in sites.description["import"]["notes"])


def test_images_of_others_are_left_out_and_a_list_of_strangers_is_refused(tmp_path):
    root = tree(tmp_path / "im")
    second(tmp_path, {"patient": [f"PAT{n}" for n in range(6)], "label": list("xyxyxy")}, "list.csv")
    sites = Sites.from_manifest(tmp_path / "list.csv", root, tmp_path / "out", sites=1, warn=False)
    account = sites.description["import"]
    assert (account["found"], account["used"], account["left_out"]) == (40, 24, {"of no patient in the list": 16})
    second(tmp_path, {"patient": ["a", "b"], "label": list("xy")}, "list.csv")
    with pytest.raises(DataError, match=r"the list has 'a', 'b', the files say .*'PAT0'"):
        Sites.from_manifest(tmp_path / "list.csv", root, tmp_path / "out2")
    second(tmp_path, {"patient": ["PAT1", "PAT1"], "label": list("xy")}, "list.csv")
    with pytest.raises(DataError, match=r"'PAT1' has two labels, 'x' \(line 2\) and 'y' \(line 3\)"):
        Sites.from_manifest(tmp_path / "list.csv", root, tmp_path / "out2")


@pytest.mark.parametrize(
    ("given", "classes"),
    [
        ({"label": ["True", "False", "1", "0"] * 12}, 2),
        ({"label": ["ja", "nein", "Ja!", "nein"] * 12}, 2),
        ({"label": ["nevus", "melanoma"] * 22 + ["melanom"] * 4}, 2),
        ({"label": ["nevus", "melanoma"] * 23 + ["nevus", "mealnoma"]}, 2),
        ({"label": [f"{number / 7:.4f}" for number in range(COUNT)]}, None),
        ({"label": [f"name {number}" for number in range(COUNT)]}, None),
        ({"patient": ["0000" if number % 2 else f"p{number}" for number in range(COUNT)]}, 2),
        ({"patient": ["anonymous" if number % 2 else f"p{number}" for number in range(COUNT)]}, 2),
        ({"patient": ["X17"] * COUNT}, 2),
        ({"patient": LABELS}, 2),
    ],
)
def test_a_doubt_is_asked_about_and_every_printed_answer_works(sites_of, given, classes):
    with pytest.raises(DataError) as refused:
        sites_of(given)
    answers = printed_options(str(refused.value))
    assert answers
    for answer in answers:
        if answer != {"distinct": [*given]} and "X17" not in str(answer):
            found = sites_of(given, **answer, sites=1).description["classes"]
            assert len(found) == classes or "distinct" in answer


@pytest.mark.parametrize(
    "labels",
    [
        ["grade 1"] * 40 + ["grade 2"] * 8,
        ["type a"] * 40 + ["type b"] * 8,
        ["male"] * 40 + ["female"] * 8,
        [str(number % 10) for number in range(COUNT)],
        ["0", "1"] * 24,
        ["melanoma"] * 25 + ["melanomas"] * 23,
    ],
)
def test_what_is_no_doubt_is_not_asked_about(sites_of, labels):
    assert len(sites_of({"label": labels}).description["classes"]) == len({*labels})


@pytest.mark.parametrize("word", ["No Finding", "normal", "kein Befund", "Sin hallazgos", "Healthy"])
def test_no_finding_is_asked_about_where_there_may_be_several(sites_of, word):
    labels = {"label": [word, "Effusion", "Effusion|Mass", "Mass"] * 12}
    with pytest.raises(DataError, match=word) as refused:
        sites_of(labels, task="multi")
    merge, distinct = printed_options(str(refused.value))
    assert sites_of(labels, task="multi", **merge).description["classes"] == ["Effusion", "Mass"]
    assert len(sites_of(labels, task="multi", **distinct).description["classes"]) == 3


def test_a_lesion_has_one_label_and_one_patient(sites_of):
    with pytest.raises(DataError, match=r"12 lesions have two labels, first 'P0': 'a' \(line \d+, i00.png\) and 'b'"):
        sites_of({"label": ["a", "b"] * 24, "lesion": PATIENTS})
    assert sites_of({"label": ["a", "b"] * 24, "lesion": PATIENTS}, contradictions="keep").names
    numbered = {"patient": PATIENTS, "lesion": [str(number % 4 // 2) for number in range(COUNT)], "label": LABELS}
    with pytest.raises(DataError, match="two labels"):
        sites_of(numbered)
    numbered["label"] = ["a", "a", "b", "b"] * 12
    with pytest.raises(DataError, match=r"2 lesions have two patients, first '0'.*--columns lesion= "):
        sites_of(numbered)
    assert torn(sites_of(numbered, columns=["lesion="]), PATIENTS) == []


def test_a_sheet_called_as_the_folder_of_the_images_is_read(tmp_path):
    pytest.importorskip("openpyxl")
    write_pictures(tmp_path / "images", NAMES)
    with pd.ExcelWriter(tmp_path / "t.xlsx") as book:
        pd.DataFrame({"image": NAMES, "label": LABELS}).to_excel(book, sheet_name="main", index=False)
        pd.DataFrame({"image": NAMES, "patient": PATIENTS}).to_excel(book, sheet_name="images", index=False)
    table, images, out = tmp_path / "t.xlsx", tmp_path / "images", tmp_path / "out"
    sites = Sites.from_manifest(table, images, out, sheet="main", metadata=["images"], sites=2, warn=False)
    patients = {
        record.image: record.patient for name in sites.names for record in read_manifest(out / name / "manifest.csv")
    }
    assert {patients[name] for name in NAMES[:4]} == {patients[NAMES[0]]}
