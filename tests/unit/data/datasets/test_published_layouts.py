"""Published collections as people download them: a right manifest in at most two commands, no torn patient, no lost split.

Each writer draws a few tiny images and lays them and their tables out as the collection's public description says. It gives
the true label, patient (or lesion) and split of every image, with nothing where the collection says nothing. The first
command names the folder or table alone; the second adds an option as the refusal prints it.
"""

import io
import re
import shlex
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from typer.testing import CliRunner

from grandrounds.cli import build_app
from grandrounds.data.manifest import read_manifest
from tests.unit.data.conftest import DERM7PT_HEADER, ISIC2019_HEADER, PAD_HEADER, bytes_of_ct_slice

COUNT = 48
OPTION = re.compile(r"--skip-unusable|--[a-z-]+ (?:'[^']+'|[^\s;,)]+)")


class Truth(NamedTuple):
    """What a collection says of an image."""

    label: str
    group: str = ""
    split: str = ""


Images = dict[str, Truth]


@dataclass(frozen=True)
class Layout:
    """A collection in small.

    Attributes:
        write: lays it out below a folder; returns the truth of each image by the end of its path.
        source: what the first command names.
        more: options of the first command.
        remedy: how the option begins that the second command takes from the refusal.
        instead: what the refusal says that another column may be, and what it then takes the place of.
    """

    write: Callable[[Path], Images]
    source: str = ""
    more: Sequence[str] = ()
    remedy: str = "--columns '"
    instead: tuple[str, str] = ("", "")


def picture(number, form="PNG", size=12):
    out = io.BytesIO()
    pixels = np.random.default_rng(number).integers(0, 255, (size, size, 3), np.uint8)
    Image.fromarray(pixels).save(out, form)
    return out.getvalue()


def put(path, data):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data if isinstance(data, bytes) else data.encode())


def draw(root, names):
    for number, name in enumerate(names):
        put(root / name, picture(number, "JPEG" if name.casefold().endswith(("jpg", "jpeg")) else "PNG"))


def table(path, columns, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(columns).to_csv(path, index=False, **options)


def one_hot(names, labels):
    return {name: [f"{float(label == name)}" for label in labels] for name in names}


def cycle(values, each=1, count=COUNT):
    """Each value for that many images, again and again."""
    return [values[number // each % len(values)] for number in range(count)]


NUMBERS = range(COUNT)
PAIRS = [number // 2 for number in NUMBERS]
"""The person or lesion of each image: two images each."""


def isic_2018(root):
    classes = ["MEL", "NV", "BCC", "AKIEC", "BKL", "DF", "VASC"]
    truth, number = {}, 0
    for part, split, count in (("Training", "train", 28), ("Validation", "val", 14), ("Test", "test", 14)):
        names = [f"ISIC_{24000 + number + own:07d}" for own in range(count)]
        labels = cycle(classes, 2, count)
        lesions = [f"HAM_{(number + own) // 2:07d}" for own in range(count)]
        draw(root / f"ISIC2018_Task3_{part}_Input", [f"{name}.jpg" for name in names])
        put(root / f"ISIC2018_Task3_{part}_Input" / "LICENSE.txt", "CC-BY-NC")
        folder = root / f"ISIC2018_Task3_{part}_GroundTruth"
        table(folder / f"ISIC2018_Task3_{part}_GroundTruth.csv", {"image": names, **one_hot(classes, labels)})
        if part == "Training":
            about = {"image": names, "lesion_id": lesions, "diagnosis_confirm_type": ["histopathology"] * count}
            table(folder / "ISIC2018_Task3_Training_LesionGroupings.csv", about)
        for name, label, lesion in zip(names, labels, lesions, strict=True):
            truth[f"{name}.jpg"] = Truth(label, lesion if part == "Training" else "", split)
        number += count
    return truth


def isic_2019(root):
    classes = ISIC2019_HEADER.split(",")[1:]
    names = [f"ISIC_{number:07d}" for number in NUMBERS]
    labels = cycle(classes[:-1], 2)
    draw(root / "ISIC_2019_Training_Input" / "ISIC_2019_Training_Input", [f"{name}.jpg" for name in names])
    table(root / "ISIC_2019_Training_GroundTruth.csv", {"image": names, **one_hot(classes, labels)})
    about = {"image": names, "age_approx": cycle([55, 60]), "anatom_site_general": ["torso"] * COUNT}
    lesions = [f"BCN_{pair:07d}" for pair in PAIRS]
    table(root / "ISIC_2019_Training_Metadata.csv", {**about, "lesion_id": lesions, "sex": cycle(["male", "female"])})
    return {f"{name}.jpg": Truth(*of) for name, *of in zip(names, labels, lesions, strict=True)}


def isic_2020(root):
    names = [f"ISIC_{2637000 + number:07d}" for number in NUMBERS]
    people = [f"IP_{7000000 + number // 4}" for number in NUMBERS]
    labels = cycle(["benign", "malignant"], 4)
    draw(root / "train", [f"{name}.jpg" for name in names])
    about = {"image_name": names, "patient_id": people, "sex": ["male"] * COUNT, "age_approx": [45.0] * COUNT}
    about |= {"anatom_site_general_challenge": ["torso"] * COUNT, "diagnosis": cycle(["unknown", "nevus"])}
    target = [int(label == "malignant") for label in labels]
    table(root / "train.csv", {**about, "benign_malignant": labels, "target": target})
    return {f"{name}.jpg": Truth(*of) for name, *of in zip(names, labels, people, strict=True)}


def pad_ufes(root):
    names = [f"PAT_{pair + 8}_{number}_{100 + number}.png" for number, pair in enumerate(PAIRS)]
    labels = cycle(["BCC", "NEV", "ACK", "MEL"], 2)
    for part in range(3):
        draw(root / "images" / f"imgs_part_{part + 1}", names[part::3])
    rows = dict.fromkeys(PAD_HEADER.split(","), [""] * COUNT)
    rows |= {"patient_id": [f"PAT_{pair + 8}" for pair in PAIRS], "lesion_id": NUMBERS, "age": cycle([40, 50])}
    table(root / "metadata.csv", {**rows, "diagnostic": labels, "img_id": names})
    return {name: Truth(*of) for name, *of in zip(names, labels, rows["patient_id"], strict=True)}


def derm7pt(root):
    parts = [("NEL/NEL{:03d}.JPG", "NEL/Nel{:03d}.jpg")[number % 2].format(number) for number in NUMBERS]
    labels = cycle(["clark nevus", "melanoma (in situ)", "basal cell carcinoma"], 2)
    draw(root / "images", [*parts, *[f"clinic/{number}.jpg" for number in NUMBERS]])
    rows = dict.fromkeys(DERM7PT_HEADER.split(","), ["absent"] * COUNT)
    rows |= {"case_num": NUMBERS, "diagnosis": labels, "derm": parts, "case_id": [""] * COUNT, "notes": [""] * COUNT}
    table(root / "meta" / "meta.csv", {**rows, "clinic": [f"clinic/{number}.jpg" for number in NUMBERS]})
    splits = cycle(["train", "train", "valid", "test"])
    for split in ("train", "valid", "test"):
        table(root / "meta" / f"{split}_indexes.csv", {"indexes": [n for n in NUMBERS if splits[n] == split]})
    kept = {"valid": "val"}
    return {
        name: Truth(label, str(number), kept.get(split, split))
        for number, (name, label, split) in enumerate(zip(parts, labels, splits, strict=True))
    }


def ddi(root):
    names = [f"{number + 1:06d}.png" for number in NUMBERS]
    labels = cycle(["True", "False"], 2)
    draw(root, names)
    about = {"": NUMBERS, "DDI_ID": [number + 1 for number in NUMBERS], "DDI_file": names}
    table(
        root / "ddi_metadata.csv", {**about, "skin_tone": cycle([56, 12]), "malignant": labels, "disease": cycle("vw")}
    )
    return {name: Truth(label) for name, label in zip(names, labels, strict=True)}


def fitzpatrick(root):
    names = [f"{number * 7919:032x}" for number in range(1, COUNT + 1)]
    labels = cycle(["psoriasis", "lupus erythematosus", "acne vulgaris"])
    draw(root / "images", [f"{name}.jpg" for name in names])
    about = {
        "md5hash": names,
        "fitzpatrick_scale": cycle([1, 2, 5]),
        "fitzpatrick_centaur": cycle([1, 3]),
        "label": labels,
    }
    about |= {"nine_partition_label": ["inflammatory"] * COUNT, "three_partition_label": ["non-neoplastic"] * COUNT}
    urls = [f"https://www.example.org/images/{name}.jpg" for name in names]
    table(root / "fitzpatrick17k.csv", {**about, "qc": [""] * COUNT, "url": urls, "url_alphanum": names})
    return {f"{name}.jpg": Truth(label) for name, label in zip(names, labels, strict=True)}


def nih(root):
    people = [number // 3 for number in NUMBERS]
    names = [f"{person + 1:08d}_{number % 3:03d}.png" for number, person in enumerate(people)]
    findings = cycle(["No Finding", "Effusion", "Effusion|Mass", "Mass"])
    for part in range(2):
        draw(root / f"images_{part + 1:03d}" / "images", names[part::2])
    about = {"Image Index": names, "Finding Labels": findings, "Follow-up #": [n % 3 for n in NUMBERS]}
    about |= {
        "Patient ID": [person + 1 for person in people],
        "Patient Age": [50] * COUNT,
        "Patient Gender": cycle("MF"),
    }
    about |= {"View Position": ["PA"] * COUNT, "OriginalImage[Width": [2682] * COUNT, "Height]": [2749] * COUNT}
    about |= {"OriginalImagePixelSpacing[x": [0.143] * COUNT, "y]": [0.143] * COUNT, "": [""] * COUNT}
    table(root / "Data_Entry_2017.csv", about)
    test = [person % 4 == 3 for person in people]
    put(root / "train_val_list.txt", "\n".join(name for name, own in zip(names, test, strict=True) if not own))
    put(root / "test_list.txt", "\n".join(name for name, own in zip(names, test, strict=True) if own))
    return {
        name: Truth(label.replace("No Finding", "none"), str(person), "test" if own else "train")
        for name, label, person, own in zip(names, findings, people, test, strict=True)
    }


def chexpert(root):
    findings = ["No Finding", "Cardiomegaly", "Edema", "Pleural Effusion", "Support Devices"]
    truth = {}
    for split, kept, start, count in (("train", "train", 0, 40), ("valid", "val", 40, 12)):
        people = [f"patient{start + number // 2:05d}" for number in range(count)]
        names = [f"{split}/{who}/study1/view{n % 2 + 1}_frontal.jpg" for n, who in enumerate(people)]
        marks = [("1.0", "", "", "", ""), ("", "1.0", "0.0", "", "1.0"), ("", "0.0", "1.0", "-1.0", "")]
        values = cycle(marks, 2, count)
        rows = {"Path": [f"CheXpert-v1.0-small/{name}" for name in names], "Sex": ["Male"] * count, "Age": [68] * count}
        rows |= {"Frontal/Lateral": ["Frontal"] * count, "AP/PA": ["AP"] * count}
        rows |= {finding: [own[place] for own in values] for place, finding in enumerate(findings)}
        draw(root / "CheXpert-v1.0-small", names)
        table(root / "CheXpert-v1.0-small" / f"{split}.csv", rows)
        for name, who, own in zip(names, people, values, strict=True):
            present = [f for f, mark in zip(findings[1:], own[1:], strict=True) if mark == "1.0"]
            truth[name] = Truth("|".join(present) or "none", who, kept)
    return truth


def padchest(root):
    names = [f"{2164000 + number}_00-163-{number:03d}.png" for number in NUMBERS]
    findings = cycle(
        ["['normal']", "['cardiomegaly', 'pleural effusion']", "['cardiomegaly']", "['pleural effusion']"], 2
    )
    folders = [str(number % 3) for number in NUMBERS]
    draw(root, [f"{folder}/{name}" for folder, name in zip(folders, names, strict=True)])
    about = {"": NUMBERS, "ImageID": names, "ImageDir": folders, "StudyDate_DICOM": [20140915] * COUNT}
    about |= {"StudyID": PAIRS, "PatientID": [f"8386{pair}" for pair in PAIRS], "PatientBirth": [1930.0] * COUNT}
    about |= {"PatientSex_DICOM": cycle("MF"), "Projection": ["PA"] * COUNT, "Report": ["sin hallazgos"] * COUNT}
    about |= {"MethodLabel": ["Physician"] * COUNT, "Labels": findings, "Localizations": ["[]"] * COUNT}
    table(root / "PADCHEST_chest_x_ray_images_labels_160K_01.02.19.csv", about)
    plain = [re.sub(r"[\[\]']", "", text).replace(", ", "|").replace("normal", "none") for text in findings]
    return {name: Truth(*of) for name, *of in zip(names, plain, about["PatientID"], strict=True)}


def rsna(root):
    types = ("epidural", "intraparenchymal", "intraventricular", "subarachnoid", "subdural", "any")
    truth, rows = {}, []
    for number, pair in enumerate(PAIRS):
        own = [(), ("epidural",), ("subdural", "subarachnoid")][number % 3]
        image = f"ID_{number * 9973:09x}"
        rows += [(f"{image}_{kind}", int(kind in own or (kind == "any" and bool(own)))) for kind in types]
        levels = np.random.default_rng(number).integers(0, 80, (12, 12))
        put(root / "stage_2_train" / f"{image}.dcm", bytes_of_ct_slice(levels, PatientID=f"ID_p{pair}", Modality="CT"))
        present = [kind for kind in types if kind in own or (kind == "any" and own)]
        truth[f"{image}.dcm"] = Truth("|".join(present) or "none", f"ID_p{pair}")
    table(root / "stage_2_train.csv", {"ID": [name for name, _ in rows], "Label": [value for _, value in rows]})
    return truth


def cbis(root):
    truth, number = {}, 0
    for part, split, count in (("train", "train", 36), ("test", "test", 12)):
        rows = defaultdict(list)
        for own in range(count):
            who, series = f"P_{(number + own) // 2:05d}", f"1.3.6.1.4.1.9590.{number + own}"
            crop, label = f"1.3.6.1.4.1.9999.{number + own}", ("MALIGNANT", "BENIGN")[(number + own) // 2 % 2]
            about = f"Mass-{'Training' if part == 'train' else 'Test'}_{who}_LEFT_{('CC', 'MLO')[own % 2]}"
            put(root / "jpeg" / series / f"1-{own:03d}.jpg", picture(number + own, "JPEG"))
            put(root / "jpeg" / crop / f"2-{own:03d}.jpg", picture(1000 + number + own, "JPEG"))
            values = {"patient_id": who, "breast_density": 3, "left or right breast": "LEFT"}
            values |= {"image view": ("CC", "MLO")[own % 2], "abnormality id": 1, "abnormality type": "mass"}
            values |= {"mass shape": "OVAL", "assessment": 4, "pathology": label, "subtlety": 4}
            values["image file path"] = f"{about}/1.3.6.1.4.1.77.{number + own}/{series}/000000.dcm"
            values["cropped image file path"] = f"{about}_1/1.3.6.1.4.1.78.{number + own}/{crop}/000000.dcm"
            for name, value in values.items():
                rows[name].append(value)
            truth[f"{series}/1-{own:03d}.jpg"] = Truth(label, who, split)
        table(root / "csv" / f"mass_case_description_{part}_set.csv", rows)
        number += count
    return truth


def vindr(root):
    rows, truth = defaultdict(list), {}
    for number in NUMBERS:
        study, image = f"{number // 4 + 1:032x}", f"{number + 5000:032x}"
        grade, split = f"BI-RADS {number // 4 % 3 + 1}", ("training", "training", "test")[number // 4 % 3 - 1]
        levels = np.random.default_rng(number).integers(0, 3000, (12, 12))
        put(root / "images" / study / f"{image}.dicom", bytes_of_ct_slice(levels, 0, Modality="MG", PatientID=""))
        values = {"study_id": study, "series_id": f"{number + 900:032x}", "image_id": image, "laterality": "L"}
        values |= {"view_position": "CC", "height": 3518, "width": 2800, "breast_birads": grade}
        values |= {"breast_density": "DENSITY C", "split": split}
        for name, value in values.items():
            rows[name].append(value)
        truth[f"{image}.dicom"] = Truth(grade, study, split.removesuffix("ing"))
    table(root / "breast-level_annotations.csv", rows)
    return truth


def aptos(root):
    names = [f"{number * 7919 + 5:012x}" for number in NUMBERS]
    grades = cycle(list("01234"))
    draw(root / "train_images", [f"{name}.png" for name in names])
    draw(root / "test_images", [f"{number + 77:012x}.png" for number in range(8)])
    table(root / "train.csv", {"id_code": names, "diagnosis": grades})
    table(root / "test.csv", {"id_code": [f"{number + 77:012x}" for number in range(8)]})
    return {f"{name}.png": Truth(grade) for name, grade in zip(names, grades, strict=True)}


def odir(root):
    classes = list("NDGCAHMO")
    labels = cycle(["N", "D", "C", "M"], 2)
    names = [f"{pair}_{('left', 'right')[number % 2]}.jpg" for number, pair in enumerate(PAIRS)]
    draw(root / "preprocessed_images", names)
    about = {"ID": PAIRS, "Patient Age": [60] * COUNT, "Patient Sex": cycle(["Male", "Female"], 2)}
    about |= {
        "Left-Fundus": [f"{pair}_left.jpg" for pair in PAIRS],
        "Right-Fundus": [f"{pair}_right.jpg" for pair in PAIRS],
    }
    about |= {"Left-Diagnostic Keywords": ["normal fundus"] * COUNT, "Right-Diagnostic Keywords": ["cataract"] * COUNT}
    about |= {name: [int(label == name) for label in labels] for name in classes}
    about |= {"filepath": [f"../input/ocular-disease-recognition-odir5k/{name}" for name in names]}
    about |= {"labels": [f"['{label}']" for label in labels], "target": ["[1, 0]"] * COUNT, "filename": names}
    table(root / "full_df.csv", about)
    return {name: Truth(label, str(pair)) for name, label, pair in zip(names, labels, PAIRS, strict=True)}


def odir_pairs(root):
    people = range(COUNT // 2)
    labels = cycle(["N", "D", "C", "M"], 1, len(people))
    files = {side: [f"{person}_{side}.jpg" for person in people] for side in ("left", "right")}
    draw(root / "ODIR-5K_Training_Images", [*files["left"], *files["right"]])
    about = {"ID": people, "Patient Age": [60] * len(people), "Patient Sex": ["Male"] * len(people)}
    about |= {"Left-Fundus": files["left"], "Right-Fundus": files["right"]}
    about |= {name: [int(label == name) for label in labels] for name in "NDGCAHMO"}
    table(root / "ODIR-5K_Training_Annotations.csv", about)
    return {
        name: Truth(labels[person], str(person))
        for own in files.values()
        for person, name in zip(people, own, strict=True)
    }


def breakhis(root):
    truth = {}
    for number in range(16):
        kind, short, folder = [("benign", "B", "adenosis"), ("malignant", "M", "ductal_carcinoma")][number % 2]
        slide = f"14-{22549 + number}AB"
        for zoom in ("40", "100"):
            for own in range(2):
                name = f"SOB_{short}_A-{slide}-{zoom}-{own:03d}.png"
                place = f"breast/{kind}/SOB/{folder}/SOB_{short}_A_{slide}/{zoom}X"
                put(root / "BreaKHis_v1" / "histology_slides" / place / name, picture(len(truth)))
                truth[name] = Truth(kind, slide)
    return truth


def lc25000(root):
    truth = {}
    for kinds, folder in ((("aca", "n"), "colon"), (("aca", "n", "scc"), "lung")):
        for kind in kinds:
            for number in range(10):
                name = f"{folder}{kind}{number + 1}.jpeg"
                place = root / "lung_colon_image_set" / f"{folder}_image_sets" / f"{folder}_{kind}"
                put(place / name, picture(len(truth), "JPEG"))
                truth[name] = Truth(f"{folder}_{kind}")
    return truth


def pbc(root):
    kinds = {"basophil": "BA", "eosinophil": "EO", "erythroblast": "ERB", "ig": "MMY", "platelet": "PLATELET"}
    names = {f"{kind}/{short}_{number * 1000 + 47}.jpg": kind for kind, short in kinds.items() for number in range(10)}
    draw(root / "PBC_dataset_normal_DIB", names)
    put(root / "PBC_dataset_normal_DIB" / "ig" / ".DS_169665.jpg", b"Mac")
    return {name: Truth(kind) for name, kind in names.items()}


def raabin(root):
    truth = {}
    for folder, split, count in (("Train", "train", 12), ("TestA", "test", 4)):
        for kind in ("Basophil", "Eosinophil", "Lymphocyte"):
            for number in range(count):
                name = f"{folder}/{kind}/20190527_{split}_{kind[0]}_{number}.jpg"
                put(root / name, picture(len(truth), "JPEG"))
                truth[name] = Truth(kind, split=split)
    return truth


def busi(root):
    truth = {}
    mask = io.BytesIO()
    Image.fromarray(np.kron([[0, 0], [0, 255]], np.ones((6, 6))).astype(np.uint8)).save(mask, "PNG")
    for kind in ("benign", "malignant", "normal"):
        for number in range(1, 15):
            folder = root / "Dataset_BUSI_with_GT" / kind
            put(folder / f"{kind} ({number}).png", picture(len(truth)))
            put(folder / f"{kind} ({number})_mask.png", mask.getvalue())
            truth[f"{kind} ({number}).png"] = Truth(kind)
    put(root / "Dataset_BUSI_with_GT" / "benign" / "benign (4)_mask_1.png", mask.getvalue())
    return truth


def hyperkvasir(root):
    truth, rows = {}, []
    kinds = ["lower-gi-tract/anatomical-landmarks/cecum", "lower-gi-tract/pathological-findings/polyps"]
    kinds += ["upper-gi-tract/anatomical-landmarks/pylorus", "upper-gi-tract/anatomical-landmarks/z-line"]
    for kind in kinds:
        organ, group, name = kind.split("/")
        for _ in range(12):
            file = f"{len(truth) * 7919:08x}-3aaa-4c5e-8c0a"
            put(root / "labeled-images" / kind / f"{file}.jpg", picture(len(truth), "JPEG"))
            rows.append((file, organ, name, group))
            truth[f"{file}.jpg"] = Truth(name)
    pd.DataFrame(rows, columns=["Video file", "Organ", "Finding", "Classification"]).to_csv(
        root / "labeled-images" / "image-labels.csv", index=False
    )
    return truth


LAYOUTS: Mapping[str, Layout] = {
    "ISIC 2018": Layout(isic_2018, "ISIC2018_Task3_Training_GroundTruth/ISIC2018_Task3_Training_GroundTruth.csv"),
    "ISIC 2019": Layout(isic_2019, "ISIC_2019_Training_GroundTruth.csv"),
    "ISIC 2020": Layout(isic_2020, "train.csv"),
    "PAD-UFES-20": Layout(pad_ufes, "metadata.csv"),
    "Derm7pt": Layout(derm7pt, "meta/meta.csv", instead=("image=derm", "image=clinic|derm")),
    "DDI": Layout(ddi, "ddi_metadata.csv"),
    "Fitzpatrick17k": Layout(fitzpatrick, "fitzpatrick17k.csv"),
    "NIH": Layout(nih, "Data_Entry_2017.csv"),
    "CheXpert": Layout(chexpert, "CheXpert-v1.0-small/train.csv"),
    "PadChest": Layout(padchest, "PADCHEST_chest_x_ray_images_labels_160K_01.02.19.csv"),
    "RSNA": Layout(rsna, "stage_2_train.csv"),
    "CBIS-DDSM": Layout(cbis, "csv/mass_case_description_train_set.csv"),
    "VinDr-Mammo": Layout(vindr, "breast-level_annotations.csv"),
    "APTOS": Layout(aptos, "train.csv"),
    "ODIR": Layout(odir, "full_df.csv"),
    "ODIR, an eye a column": Layout(odir_pairs, "ODIR-5K_Training_Annotations.csv"),
    "BreakHis": Layout(breakhis, remedy="--layout 'class/*/*/patient/*"),
    "LC25000": Layout(lc25000, remedy="--layout '*/class"),
    "PBC": Layout(pbc),
    "Raabin": Layout(raabin),
    "BUSI": Layout(busi),
    "HyperKvasir": Layout(hyperkvasir, "labeled-images", remedy="--layout '*/*/class"),
}  # fmt: skip


def typed(*words):
    return CliRunner().invoke(build_app("import"), ["import", *map(str, words)])


def options_in(refusal, begin):
    """The option of the refusal that begins so, as it is printed, and those that follow it."""
    return shlex.split(re.search(rf"{re.escape(begin)}[^']*'(?: --[a-z-]+ (?:'[^']+'|[^\s;,)]+))*", refusal)[0])


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_published_layout_becomes_a_right_manifest_in_two_commands(name, tmp_path):
    layout = LAYOUTS[name]
    truth = layout.write(tmp_path / "set")
    words = [tmp_path / "set" / layout.source, "--out", tmp_path / "out", *layout.more]
    made = typed(*words)
    if made.exit_code:
        other, first = layout.instead
        assert other in made.stderr
        made = typed(*words, *(word.replace(first, other) for word in options_in(made.stderr, layout.remedy)))
    assert made.exit_code == 0, made.stderr
    require_right(tmp_path / "out", truth)


def test_a_folder_that_is_called_after_a_split_does_not_hide_lists_of_splits(tmp_path):
    truth = nih(tmp_path / "test")
    words = [tmp_path / "test" / "Data_Entry_2017.csv", "--out", tmp_path / "out"]
    made = typed(*words, *options_in(typed(*words).stderr, LAYOUTS["NIH"].remedy))
    assert made.exit_code == 0, made.stderr
    require_right(tmp_path / "out", truth)


def require_right(out, truth):
    """The manifests of a partition have the label of each image, no torn group and the published splits."""
    records = {}
    for manifest in out.glob("*/manifest.csv"):
        for record in read_manifest(manifest):
            ends = [record.image.split("/")[-parts:] for parts in range(1, record.image.count("/") + 2)]
            own = next("/".join(end) for end in ends if "/".join(end) in truth)
            records[own] = (record, manifest.parent.name)
    assert set(records) == set(truth)
    labels = {
        name: {part for part in record.label.split("|") if not part.startswith("?")} or {"none"}
        for name, (record, _) in records.items()
    }
    assert labels == {name: {*own.label.split("|")} for name, own in truth.items()}
    places = defaultdict(set)
    for name, (record, site) in records.items():
        places[truth[name].group].add((site, record.split))
    assert [group for group, own in places.items() if group and len(own) > 1] == []
    assert {name for name, (record, _) in records.items() if not kept(truth[name].split, record.split, truth)} == set()


def kept(published, split, truth):
    """Whether a published split is kept; what is for validation is taken from the training images if there is none."""
    drawn = "val" not in {own.split for own in truth.values()}
    return not published or published == split or (drawn and (published, split) == ("train", "val"))
