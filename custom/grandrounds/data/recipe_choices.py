"""What ``make_partition`` can be told beside what to divide and where to write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypedDict


class Choices(TypedDict, total=False):
    """Choices of a partition; what is left out, or None, is a default.

    Attributes:
        labelled: share of each site's training images that keep their label; 0.25, for ``mdhfl`` all.
        validation: share of each site's images for validation; 0.125, for ``mdhfl`` 0.1.
        test: share of each site's images for testing, the rest is for training; 0.375. For ``mdhfl`` the share of all images
            that are the test set of every site; 0.2. For benign and malignant images all labels, 0.1 and 0.2.
        alpha: concentration for ``dirichlet`` and ``mdhfl``: the smaller, the more the sites differ; 0.5.
        seed: of all random choices; 1.
        variant: of ``lesions``: ``clean`` (default) without the images of HAM10000 in ISIC 2019, patients and lesions kept
            together; ``paper`` with them, image by image. Under ``clean`` the counts of ``fedperl`` are scaled to what
            remains; the description says which (``scaled``).
        server_images: images of the party ``server``, in split ``val``, drawn before the sites are divided. ``fedperl``
            has its own 1000.
        server_training: share of the server's images in split ``train``, stratified by class; None is 0.8 under
            ``server_labels`` and else 0.
        scenario: who has labels, see :func:`~grandrounds.data.scenarios.relabel`.
        labelled_sites: for ``few_labels``: who; None is ``site-2`` and ``site-10`` for ``fedperl``.
        few_labels_use: for ``few_labels``: ``pool`` (default) or ``labelled``.
        group_by: of ``ham10000`` and ``isic2018``: ``lesion`` (default) keeps the images of one together; ``image`` divides
            image by image, as the FedIRM paper does, so that one lesion may be in training and test.
        multi: of ``rsna_ich``: slices with several subtypes are left out (``drop``, default) or count as of the ``first``.
        slices: of ``rsna_ich``: how many are drawn, patient by patient; None is 25,000.
        patients: of ``rsna_ich``: where the patients are written down, see
            :func:`~grandrounds.data.rsna_patients.find_patients`; None is ``patients.csv`` in ``root``.
        client_partition: of ``rsna_ich`` under ``iid``: whether a ``patient`` (default) is at one site, or each ``slice``
            goes to any, as in the FedIRM paper. No patient is in two splits, whatever the site.
        windows: of ``rsna_ich`` and of DICOM files with a ``manifest``: centre and width in Hounsfield units of each
            channel; None is brain, subdural and soft tissue for ``rsna_ich``, and else what the files say.
        normals: of mammograms: images without a finding count as ``benign`` (default), are a ``class`` of their own, or are
            left out (``drop``).
        birads_3: of ``inbreast``: what an assessment of 3 counts as, ``malignant`` (default), ``benign``, or nothing
            (``drop``).
        published_test: of ``cbis_ddsm``: its published test set is the test set; ``validation`` is a share of the rest.
        simulated_vendors: of ``mini_mias``: a folder for its films as three imaginary vendors show them, which are its
            sources then.
        preprocess: of a ``manifest``: ``mammogram`` crops, turns and pads.
        noise: of ``mdhfl``, as what follows; see :class:`~grandrounds.data.mutual_options.MutualOptions`.
        noise_rate: of the label noise.
        noise_eligible: whose labels can be wrong.
        public: where the public set comes from.
        public_share: how much of the data set it is.
        public_root: where its images are.
        public_images: how many are drawn.
        private_images: how many images are divided.
        public_size: at which the decoded images are hashed.
    """

    labelled: float | None
    validation: float | None
    test: float | None
    alpha: float
    seed: int
    variant: str | None
    server_images: int
    server_training: float | None
    scenario: str
    labelled_sites: Sequence[str] | None
    few_labels_use: str | None
    group_by: str | None
    multi: str | None
    slices: int | None
    patients: Path | str | None
    client_partition: str | None
    windows: Sequence[Sequence[float]] | None
    normals: str | None
    birads_3: str | None
    published_test: bool | None
    simulated_vendors: Path | str | None
    preprocess: str | None
    noise: str | None
    noise_rate: float | None
    noise_eligible: float | None
    public: str | None
    public_share: float | None
    public_root: Path | str | None
    public_images: int | None
    private_images: int | None
    public_size: int | None


DEFAULTS: Mapping[str, Any] = MappingProxyType(
    {
        **dict.fromkeys(Choices.__annotations__),
        "alpha": 0.5,
        "seed": 1,
        "server_images": 0,
        "scenario": "standard",
    }
)


def completed(choices: Choices) -> dict[str, Any]:
    """The choices with their defaults; None is a default that depends on others.

    Raises:
        TypeError: if there is no such choice.

    Example:
        >>> completed({"seed": 7})["seed"], completed({})["seed"], completed({})["windows"]
        (7, 1, None)
    """
    for name in choices:
        if name not in DEFAULTS:
            raise TypeError(f"there is no choice {name!r} of a partition; choices are {', '.join(DEFAULTS)}")
    return {**DEFAULTS, **choices}
