"""The options of ``grandrounds partition``: their types and what the help says of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from grandrounds.commands.choices import (
    BiradsThreeChoice,
    ClientPartitionChoice,
    DatasetChoice,
    FewLabelsChoice,
    GroupByChoice,
    MultiChoice,
    NoiseChoice,
    NormalsChoice,
    PreprocessChoice,
    PublicChoice,
    ScenarioChoice,
    SchemeChoice,
    VariantChoice,
)

DatasetArgument = Annotated[DatasetChoice, typer.Argument(help="What to divide, see above.")]
RootOption = Annotated[
    Path, typer.Option(help="Folder of the data set; for manifest: folder or archive of the images.")
]
OutOption = Annotated[Path, typer.Option(help="Folder of the partition; it must hold nothing else.")]
SchemeOption = Annotated[
    SchemeChoice | None,
    typer.Option(
        help="By source, by class (Dirichlet), at random, FedPerl's ten clients, MDH-FL's sites (of equal size, with label "
        "noise and a public set), or one unseen site with test images; default: sites, for isic2018 and rsna_ich iid, for "
        "isic2020 unseen, for blood cells and cifar10 mdhfl.",
        show_default=False,
    ),
]
SitesOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Number of sites; default: 10, for mdhfl and ham10000_malignancy 4, for mammograms 3, for unseen 1.",
        show_default=False,
    ),
]
AlphaOption = Annotated[
    float, typer.Option(help="Concentration for dirichlet and mdhfl: the smaller, the more sites differ.")
]
LabelledOption = Annotated[
    float | None,
    typer.Option(
        min=0,
        max=1,
        help="Share of the training images that keep their label; default: 0.25, for mdhfl, mammograms and "
        "ham10000_malignancy all.",
        show_default=False,
    ),
]
ValidationOption = Annotated[
    float | None,
    typer.Option(
        min=0, max=1, help="Share of a site's images for validation; default: 0.125, for mdhfl 0.1.", show_default=False
    ),
]
TestOption = Annotated[
    float | None,
    typer.Option(
        min=0,
        max=1,
        help="Share of a site's images for testing; default: 0.375, for mdhfl 0.2 of all images, the same at every site.",
        show_default=False,
    ),
]
SeedOption = Annotated[int, typer.Option(help="Of all random choices.")]
ManifestOption = Annotated[Path | None, typer.Option(help="For manifest: the CSV file that lists the images.")]
DatasetNameOption = Annotated[str | None, typer.Option(help="For manifest: how jobs call the data set.")]
ClassesOption = Annotated[
    str | None, typer.Option(help="For manifest: the vocabulary, a,b,c; default: the labels that occur.")
]
VariantOption = Annotated[
    VariantChoice | None,
    typer.Option(
        help="For lesions: without the images that two of its data sets share, or with them as in the paper, image "
        "by image; default: clean.",
        show_default=False,
    ),
]
ServerImagesOption = Annotated[
    int, typer.Option(min=0, help="Images of the server itself, for validation; fedperl has its own 1000.")
]
ServerTrainingOption = Annotated[
    float | None,
    typer.Option(
        min=0,
        max=1,
        help="Share of the server's images for training; default: 0.8 for server_labels, else 0.",
        show_default=False,
    ),
]
ScenarioOption = Annotated[
    ScenarioChoice, typer.Option(help="Labels at every site, at the server alone, or at few sites.")
]
LabelledSitesOption = Annotated[
    str | None,
    typer.Option(
        help="For few_labels: who has labels, a,b,c; default for fedperl: site-2,site-10.", show_default=False
    ),
]
FewLabelsUseOption = Annotated[
    FewLabelsChoice | None,
    typer.Option(
        help="For few_labels: labels of all training images there, or of the labelled part; default: pool.",
        show_default=False,
    ),
]
GroupByOption = Annotated[
    GroupByChoice | None,
    typer.Option(
        help="For ham10000 and isic2018: keep the images of a lesion together, or divide image by image as in the "
        "FedIRM paper; default: lesion.",
        show_default=False,
    ),
]
MultiOption = Annotated[
    MultiChoice | None,
    typer.Option(
        help="For rsna_ich: leave slices with several subtypes out, or take their first; default: drop.",
        show_default=False,
    ),
]
SlicesOption = Annotated[
    int | None,
    typer.Option(min=1, help="For rsna_ich: how many to draw, by patients; default: 25000.", show_default=False),
]
PatientsOption = Annotated[
    Path | None,
    typer.Option(
        help="For rsna_ich: table image,patient; what it lacks is read from the DICOM headers and added; default: "
        "patients.csv in the root.",
        show_default=False,
    ),
]
ClientPartitionOption = Annotated[
    ClientPartitionChoice | None,
    typer.Option(
        help="For rsna_ich with iid: give whole patients to a site, or single slices as in the FedIRM paper (no "
        "patient is in two splits either way); default: patient.",
        show_default=False,
    ),
]
WindowsOption = Annotated[
    str | None,
    typer.Option(
        help="For rsna_ich, and for manifest with CT slices in DICOM files: CENTRE:WIDTH in Hounsfield units for each "
        "channel; default: 40:80,80:200,40:380 for rsna_ich, else what the files say.",
        show_default=False,
    ),
]
NormalsOption = Annotated[
    NormalsChoice | None,
    typer.Option(
        help="For inbreast, mini_mias and mammograms: images without a finding count as benign, are a class of their own, "
        "or are left out; default: benign.",
        show_default=False,
    ),
]
BiradsThreeOption = Annotated[
    BiradsThreeChoice | None,
    typer.Option(
        "--birads-3",
        help="For inbreast and mammograms: what BI-RADS 3 counts as; default: malignant, as in the Fed-Align-CL paper.",
        show_default=False,
    ),
]
PublishedTestOption = Annotated[
    bool | None,
    typer.Option(
        "--published-test",
        help="For cbis_ddsm and mammograms: CBIS-DDSM's own test set, less the patients who are in training too.",
        show_default=False,
    ),
]
SimulatedVendorsOption = Annotated[
    Path | None,
    typer.Option(
        help="For mini_mias: an empty folder for its films as three imaginary vendors show them; those are the sites.",
        show_default=False,
    ),
]
PreprocessOption = Annotated[
    PreprocessChoice | None,
    typer.Option(help="For manifest: mammograms are cropped, turned and padded; default: none.", show_default=False),
]
OverwriteOption = Annotated[bool, typer.Option("--overwrite", help="Replace another partition in the folder.")]
NoiseOption = Annotated[
    NoiseChoice | None,
    typer.Option(
        help="For mdhfl: wrong labels of training and validation images, any other class or the next; default: none.",
        show_default=False,
    ),
]
NoiseRateOption = Annotated[
    float | None, typer.Option(min=0, max=1, help="For mdhfl: how many labels are wrong.", show_default=False)
]
NoiseEligibleOption = Annotated[
    float | None,
    typer.Option(
        min=0, max=1, help="For mdhfl: share of the images whose label can be wrong; default: 1.", show_default=False
    ),
]
PublicOption = Annotated[
    PublicChoice | None,
    typer.Option(
        help="For mdhfl: the public set, a share of the data set itself, any folder or archive, or another data set; "
        "default: share.",
        show_default=False,
    ),
]
PublicShareOption = Annotated[
    float | None, typer.Option(min=0, max=1, help="For mdhfl: which share; default: 0.5.", show_default=False)
]
PublicRootOption = Annotated[
    Path | None,
    typer.Option(help="For mdhfl: where the public images are, unless they are a share.", show_default=False),
]
PublicImagesOption = Annotated[
    int | None, typer.Option(min=1, help="For mdhfl: how many public images to draw; default: all.", show_default=False)
]
PrivateImagesOption = Annotated[
    int | None,
    typer.Option(min=1, help="For mdhfl: how many private images to draw; default: all.", show_default=False),
]
PublicSizeOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="For mdhfl: image size of the jobs, in pixels, at which hashes of the decoded public images are noted.",
        show_default=False,
    ),
]
