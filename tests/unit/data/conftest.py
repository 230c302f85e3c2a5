"""Miniatures of the published folders of data sets: real file names and columns, a few images."""

import io

import numpy as np
import pytest
from PIL import Image
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian, generate_uid

from grandrounds import plugins
from grandrounds.data.families import OWN_DATASETS

_others = dict(OWN_DATASETS.entries)
import published_data  # noqa: E402

PUBLISHED = {name: entry for name, entry in OWN_DATASETS.entries.items() if name not in _others}
"""The data sets of the example, which are registered during the tests of data only."""
OWN_DATASETS.entries = _others
for module in [name for name in plugins._registering if name.startswith(published_data.__name__)]:
    del plugins._registering[module]

ISIC2019_HEADER = "image,MEL,NV,BCC,AK,BKL,DF,VASC,SCC,UNK"
PAD_HEADER = (
    "patient_id,lesion_id,smoke,drink,background_father,background_mother,age,pesticide,gender,skin_cancer_history,"
    "cancer_history,has_piped_water,has_sewage_system,fitspatrick,region,diameter_1,diameter_2,diagnostic,itch,grew,hurt,"
    "changed,bleed,elevation,img_id,biopsed"
)
DERM7PT_HEADER = (
    "case_num,diagnosis,seven_point_score,pigment_network,streaks,pigmentation,regression_structures,dots_and_globules,"
    "blue_whitish_veil,vascular_structures,level_of_diagnostic_difficulty,elevation,location,sex,management,clinic,derm,"
    "case_id,notes"
)


@pytest.fixture(autouse=True)
def _published_data(monkeypatch):
    monkeypatch.setattr(OWN_DATASETS, "entries", {**OWN_DATASETS.entries, **PUBLISHED})


def put(root, path, content=None):
    """Write a file whose content is its own name, or the content given."""
    place = root / path
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(path if content is None else content)


def row_of(header, **values):
    return ",".join(values.get(name, "") for name in header.split(","))


def write_rows(path, header, rows):
    """Write a table of rows that are already lines."""
    put(path.parent, path.name, "\n".join([header, *rows]) + "\n")


def write_isic(root, year, header, rows, contents):
    """The table of classes and the images of a challenge, whose names begin with the year."""
    columns = header.split(",")[1:]
    truth = [",".join([image, *(str(float(one == column)) for one in columns)]) for image, column, _ in rows]
    write_rows(root / f"{year}_Training_GroundTruth.csv", header, truth)
    for image, _, _ in rows:
        put(root, f"{year}_Training_Input/{image}.jpg", (contents or {}).get(image))
    return root


def write_isic2019(root, rows, contents=None):
    """Write ISIC 2019 from ``(image, column, lesion)``."""
    about = [f"{image},55.0,anterior torso,{lesion},female" for image, _, lesion in rows]
    header = "image,age_approx,anatom_site_general,lesion_id,sex"
    write_rows(root / "ISIC_2019_Training_Metadata.csv", header, about)
    return write_isic(root, "ISIC_2019", ISIC2019_HEADER, rows, contents)


def write_ham10000(root, rows, contents=None):
    """Write HAM10000 from ``(lesion, image, dx)``."""
    header = "lesion_id,image_id,dx,dx_type,age,sex,localization,dataset"
    about = [f"{lesion},{image},{dx},histo,80.0,male,scalp,vidir_modern" for lesion, image, dx in rows]
    put(root, "HAM10000_metadata.csv", "\n".join([header, *about]) + "\n")
    for _, image, _ in rows:
        put(root, f"HAM10000_images_part_1/{image}.jpg", (contents or {}).get(image))
    return root


def write_pad_ufes_20(root, rows):
    """Write PAD-UFES-20 from ``(patient, lesion, diagnostic, image)``."""
    about = [
        row_of(PAD_HEADER, patient_id=patient, lesion_id=lesion, diagnostic=diagnostic, img_id=image)
        for patient, lesion, diagnostic, image in rows
    ]
    put(root, "metadata.csv", "\n".join([PAD_HEADER, *about]) + "\n")
    for part, (_, _, _, image) in enumerate(rows):
        put(root, f"images/imgs_part_{part % 3 + 1}/{image}")
    return root


def write_derm7pt(root, rows):
    """Write Derm7pt from ``(case, diagnosis, dermoscopic image)``; every case also has a clinical image."""
    about = [
        row_of(DERM7PT_HEADER, case_num=case, diagnosis=diagnosis, clinic=f"clinic/{case}.jpg", derm=derm)
        for case, diagnosis, derm in rows
    ]
    put(root, "meta/meta.csv", "\n".join([DERM7PT_HEADER, *about]) + "\n")
    for case, _, derm in rows:
        put(root, f"images/{derm}")
        put(root, f"images/clinic/{case}.jpg")
    return root


def write_isic2018(root, rows, contents=None):
    """Write ISIC 2018 task 3 from ``(image, column, lesion)``; without the table of lesions if none is named."""
    if any(lesion for _, _, lesion in rows):
        about = [f"{image},{lesion},histopathology" for image, _, lesion in rows]
        header = "image,lesion_id,diagnosis_confirm_type"
        write_rows(root / "ISIC2018_Task3_Training_LesionGroupings.csv", header, about)
    return write_isic(root, "ISIC2018_Task3", "image,MEL,NV,BCC,AKIEC,BKL,DF,VASC", rows, contents)


def bytes_of_ct_slice(hounsfield, intercept=-1024, **attributes):
    """The bytes of a CT slice with these Hounsfield units, stored as value - intercept, and any attributes."""
    stored = (np.asarray(hounsfield) - intercept).astype(np.int16)
    meta = FileMetaDataset()
    meta.TransferSyntaxUID = ExplicitVRLittleEndian
    meta.MediaStorageSOPClassUID = CTImageStorage
    meta.MediaStorageSOPInstanceUID = generate_uid()
    data = Dataset()
    data.file_meta = meta
    data.SOPClassUID, data.SOPInstanceUID = meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID
    data.Rows, data.Columns = stored.shape
    data.SamplesPerPixel, data.PhotometricInterpretation = 1, "MONOCHROME2"
    data.BitsAllocated, data.BitsStored, data.HighBit, data.PixelRepresentation = 16, 16, 15, 1
    data.RescaleSlope, data.RescaleIntercept = "1", str(intercept)
    data.WindowCenter, data.WindowWidth = "30", "2000"
    data.PixelData = stored.tobytes()
    for keyword, value in attributes.items():
        if value is None:
            delattr(data, keyword)
        else:
            setattr(data, keyword, value)
    stream = io.BytesIO()
    data.save_as(stream, enforce_file_format=True)
    return stream.getvalue()


@pytest.fixture
def rsna_ich(ct_slice):
    """Write RSNA-ICH from ``(image, positive subtypes, patient)``."""

    def make(root, rows, folder="stage_2_train"):
        table = ["ID,Label"]
        (root / folder).mkdir(parents=True)
        for number, (image, positive, patient) in enumerate(rows):
            for subtype in ("epidural", "intraparenchymal", "intraventricular", "subarachnoid", "subdural", "any"):
                found = bool(positive) if subtype == "any" else subtype in positive
                table.append(f"{image}_{subtype},{int(found)}")
            content = ct_slice(np.arange(16).reshape(4, 4) + 10 * number, PatientID=patient)
            (root / folder / f"{image}.dcm").write_bytes(content)
        (root / "stage_2_train.csv").write_text("\n".join(table) + "\n")
        return root

    return make


def breast(height, width, generator=None):
    """Levels of a digital mammogram: half of an ellipse at the left, tissue of 300 to 4000, background 0."""
    generator = np.random.default_rng(0) if generator is None else generator
    rows, columns = np.mgrid[:height, :width]
    inside = ((rows - height / 2) / (height / 2)) ** 2 + (columns / (width * 0.8)) ** 2 <= 1
    tissue = 300 + 2700 * (1 - columns / width) + generator.uniform(0, 1000, inside.shape)
    return np.where(inside, np.rint(tissue), 0).astype(np.float32)


@pytest.fixture(name="breast")
def breast_levels():
    """What draws the levels of a mammogram of some height and width."""
    return breast


@pytest.fixture
def mammogram(ct_slice):
    """The bytes of a mammogram's DICOM file, with any attributes; without a window unless one is given."""

    def make(levels, **attributes):
        return ct_slice(levels, intercept=0, **{"WindowCenter": None, "WindowWidth": None, **attributes})

    return make


@pytest.fixture
def inbreast(mammogram):
    """Write INbreast from ``(number, patient, side, view, assessment)``."""

    def make(root, rows, delimiter=";"):
        header = ("Patient ID", "Patient age", "Laterality", "View", "Acquisition date", "File Name", "ACR", "Bi-Rads")
        about = [
            ("removed", "removed", side, view, "201001", number, "2", grade) for number, _, side, view, grade in rows
        ]
        put(root, "INbreast.csv", "\n".join(delimiter.join(row) for row in (header, *about)) + "\n")
        (root / "AllDICOMs").mkdir()
        for index, (number, patient, side, view, _) in enumerate(rows):
            short = "ML" if view == "MLO" else view
            content = mammogram(breast(48, 32, np.random.default_rng(index)))
            (root / "AllDICOMs" / f"{number}_{patient}_MG_{side}_{short}_ANON.dcm").write_bytes(content)
        return root

    return make


@pytest.fixture
def cbis_ddsm(mammogram):
    """Write CBIS-DDSM from ``(set, patient, side, view, pathology)``, where set is ``mass_train`` and so on."""

    def make(root, rows):
        header = "patient_id,breast_density,left or right breast,image view,abnormality id,pathology,image file path"
        tables = {f"{kind}_{part}": [header] for kind in ("mass", "calc") for part in ("train", "test")}
        for number, (table, patient, side, view, pathology) in enumerate(rows):
            kind, part = table.split("_")
            folder = f"{kind.title()}-{'Training' if part == 'train' else 'Test'}_{patient}_{side}_{view}"
            tables[table].append(f'{patient},2,{side},{view},1,{pathology},"{folder}/1.3.6/1.4.1/000000.dcm\n"')
            place = root / "CBIS-DDSM" / folder / "07-20-2016-DDSM-NA-1" / "1.000000-full mammogram images-2"
            place.mkdir(parents=True, exist_ok=True)
            (place / "1-1.dcm").write_bytes(mammogram(breast(48, 32, np.random.default_rng(number))))
            put(root, f"CBIS-DDSM/{folder}_1/07-20-2016-DDSM-NA-1/1.000000-cropped images-2/1-1.dcm")
        for table, lines in tables.items():
            kind, part = table.split("_")
            put(root, f"{kind}_case_description_{part}_set.csv", "\n".join(lines) + "\n")
        return root

    return make


@pytest.fixture
def cmmd(mammogram):
    """Write CMMD from breasts ``(patient, side, classification)`` and images ``(patient, side, view, manufacturer)``."""

    def make(root, breasts, images):
        header = "ID1,LeftRight,Age,number,abnormality,classification,subtype"
        about = [f"{patient},{side},44,2,mass,{found}," for patient, side, found in breasts]
        put(root, "CMMD_clinicaldata_revision.csv", "\n".join([header, *about]) + "\n")
        for number, (patient, side, view, maker) in enumerate(images):
            place = root / "CMMD" / patient / "07-18-2010-NA-NA-79377" / "1.000000-NA-70244"
            place.mkdir(parents=True, exist_ok=True)
            content = mammogram(
                breast(48, 32, np.random.default_rng(number)),
                ImageLaterality=side,
                ViewPosition=view,
                Manufacturer=maker,
            )
            (place / f"1-{number + 1}.dcm").write_bytes(content)
        return root

    return make


def write_mini_mias(root, rows):
    """Write mini-MIAS from the rows of ``Info.txt``; a film is listed on one or more of them."""
    put(root, "Info.txt", "INFORMATION:\n\n1st column: MIAS database reference number.\n\n" + "\n".join(rows) + "\n")
    for row in rows:
        number = int(row[3:6])
        levels = breast(64, 64, np.random.default_rng(number))
        levels = levels[:, ::-1] if number % 2 else levels
        Image.fromarray((levels / 16).astype(np.uint8)).save(root / f"{row[:6]}.pgm")
    return root


isic2019 = pytest.fixture(lambda: write_isic2019, name="isic2019")
ham10000 = pytest.fixture(lambda: write_ham10000, name="ham10000")
pad_ufes_20 = pytest.fixture(lambda: write_pad_ufes_20, name="pad_ufes_20")
derm7pt = pytest.fixture(lambda: write_derm7pt, name="derm7pt")
isic2018 = pytest.fixture(lambda: write_isic2018, name="isic2018")
ct_slice = pytest.fixture(lambda: bytes_of_ct_slice, name="ct_slice")
mini_mias = pytest.fixture(lambda: write_mini_mias, name="mini_mias")
