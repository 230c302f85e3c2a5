"""The public images as a site finds them: in the order that all sites have, with what tells two sets apart.

What counts is what the networks see. So a set is its images' names and the hashes of the decoded and resized images; a file
that differs in bytes and not in the picture does no harm.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from itertools import pairwise

import numpy as np

from grandrounds.data.partition.public_set import PublicImage, PublicSet
from grandrounds.data.site import SiteData
from grandrounds.errors import DataError
from grandrounds.methods.mutual.participant import PublicImages


def public_images(data: SiteData, site: str) -> tuple[PublicSet, PublicImages]:
    """List the public images of a site.

    Args:
        data: the data set, none of whose images is missing.
        site: whose it is, for errors.

    Returns:
        The list, without hashes of the files; and the images in its order, which is that of the names.

    Raises:
        DataError: if there is no image, or a name occurs twice.
    """
    order = sorted(range(len(data.names)), key=data.names.__getitem__)
    names = [data.names[row] for row in order]
    if not names:
        raise DataError(f"{site}: the public set has no image")
    for earlier, later in pairwise(names):
        if earlier == later:
            raise DataError(f"{site}: public image {later!r} is named twice; name each image once")
    # Manifests are sorted as a rule, and then the decoded images need not be copied out of their file.
    images = data.images if order == list(range(len(order))) else data.images[np.array(order)]
    entries = (PublicImage(name, "", _digest(image)) for name, image in zip(names, images, strict=True))
    public = PublicSet(tuple(entries))
    return public, PublicImages(images, public.digest)


def comparable(public: PublicSet, where: str) -> PublicSet:
    """A list from a file as sites make theirs.

    Raises:
        DataError: if the list was made without decoding the images.
    """
    if any(not image.pixels for image in public.images):
        raise DataError(
            f"{where} lists public images without hashes of the decoded images; divide the data with public_size set to "
            "the job's problem.image_size"
        )
    return PublicSet(tuple(replace(image, content="") for image in public.images))


def _digest(image: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(image).tobytes()).hexdigest()
