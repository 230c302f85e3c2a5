"""Miniatures of the published folders of data sets: real file names and columns, a few images."""

import io

import numpy as np
import pytest
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian, generate_uid

ISIC2019_HEADER = "image,MEL,NV,BCC,AK,BKL,DF,VASC,SCC,UNK"
ISIC2019_COLUMNS = ISIC2019_HEADER.split(",")[1:]
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


def put(root, path, content=None):
    """Write a file whose content is its own name, or the content given."""
    place = root / path
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(path if content is None else content)


def row_of(header, **values):
    return ",".join(values.get(name, "") for name in header.split(","))


@pytest.fixture
def isic2019():
    """Write ISIC 2019 from ``(image, column, lesion)``."""

    def make(root, rows, contents=None):
        truth = [
            ",".join([image, *("1.0" if c == column else "0.0" for c in ISIC2019_COLUMNS)]) for image, column, _ in rows
        ]
        put(root, "ISIC_2019_Training_GroundTruth.csv", "\n".join([ISIC2019_HEADER, *truth]) + "\n")
        about = [f"{image},55.0,anterior torso,{lesion},female" for image, _, lesion in rows]
        header = "image,age_approx,anatom_site_general,lesion_id,sex"
        put(root, "ISIC_2019_Training_Metadata.csv", "\n".join([header, *about]) + "\n")
        for image, _, _ in rows:
            put(root, f"ISIC_2019_Training_Input/{image}.jpg", (contents or {}).get(image))
        return root

    return make


@pytest.fixture
def ham10000():
    """Write HAM10000 from ``(lesion, image, dx)``."""

    def make(root, rows, contents=None):
        header = "lesion_id,image_id,dx,dx_type,age,sex,localization,dataset"
        about = [f"{lesion},{image},{dx},histo,80.0,male,scalp,vidir_modern" for lesion, image, dx in rows]
        put(root, "HAM10000_metadata.csv", "\n".join([header, *about]) + "\n")
        for _, image, _ in rows:
            put(root, f"HAM10000_images_part_1/{image}.jpg", (contents or {}).get(image))
        return root

    return make


@pytest.fixture
def pad_ufes_20():
    """Write PAD-UFES-20 from ``(patient, lesion, diagnostic, image)``."""

    def make(root, rows):
        about = [
            row_of(PAD_HEADER, patient_id=patient, lesion_id=lesion, diagnostic=diagnostic, img_id=image)
            for patient, lesion, diagnostic, image in rows
        ]
        put(root, "metadata.csv", "\n".join([PAD_HEADER, *about]) + "\n")
        for part, (_, _, _, image) in enumerate(rows):
            put(root, f"images/imgs_part_{part % 3 + 1}/{image}")
        return root

    return make


@pytest.fixture
def derm7pt():
    """Write Derm7pt from ``(case, diagnosis, dermoscopic image)``; every case has a clinical image as well."""

    def make(root, rows):
        about = [
            row_of(DERM7PT_HEADER, case_num=case, diagnosis=diagnosis, clinic=f"clinic/{case}.jpg", derm=derm)
            for case, diagnosis, derm in rows
        ]
        put(root, "meta/meta.csv", "\n".join([DERM7PT_HEADER, *about]) + "\n")
        for case, _, derm in rows:
            put(root, f"images/{derm}")
            put(root, f"images/clinic/{case}.jpg")
        return root

    return make


@pytest.fixture
def isic2018():
    """Write ISIC 2018 task 3 from ``(image, column, lesion)``; without the table of lesions if none is named."""

    def make(root, rows, contents=None):
        header = "image,MEL,NV,BCC,AKIEC,BKL,DF,VASC"
        truth = [
            ",".join([image, *("1.0" if name == column else "0.0" for name in header.split(",")[1:])])
            for image, column, _ in rows
        ]
        put(root, "ISIC2018_Task3_Training_GroundTruth.csv", "\n".join([header, *truth]) + "\n")
        if any(lesion for _, _, lesion in rows):
            about = [f"{image},{lesion},histopathology" for image, _, lesion in rows]
            header = "image,lesion_id,diagnosis_confirm_type"
            put(root, "ISIC2018_Task3_Training_LesionGroupings.csv", "\n".join([header, *about]) + "\n")
        for image, _, _ in rows:
            put(root, f"ISIC2018_Task3_Training_Input/{image}.jpg", (contents or {}).get(image))
        return root

    return make


@pytest.fixture
def ct_slice():
    """The bytes of a CT slice with these Hounsfield units, stored as value - intercept, and any attributes."""

    def make(hounsfield, intercept=-1024, **attributes):
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

    return make


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
