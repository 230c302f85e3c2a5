import numpy as np
import pytest

from grandrounds.data.partition.public_set import PublicImage, PublicSet, fingerprints, first_unlike
from grandrounds.data.site import SiteData
from grandrounds.errors import DataError
from grandrounds.methods.mutual.public import comparable, public_images

PICTURES = np.arange(3 * 4 * 4 * 3, dtype=np.uint8).reshape(3, 4, 4, 3)


def data(names, pictures=PICTURES):
    count = len(names)
    return SiteData(
        images=pictures,
        labels=np.full(count, -1),
        labelled=np.zeros(count, bool),
        split=np.full(count, "train"),
        names=tuple(names),
        groups=tuple(names),
        classes=("a", "b"),
    )


def test_images_are_in_the_order_of_their_names_whatever_the_manifest_says():
    public, images = public_images(data(["c", "a", "b"]), "site-1")
    assert [image.image for image in public.images] == ["a", "b", "c"]
    assert np.array_equal(images.images, PICTURES[[1, 2, 0]])
    same, _ = public_images(data(["a", "b", "c"], PICTURES[[1, 2, 0]]), "site-2")
    assert same.digest == public.digest == images.digest


def test_a_sorted_manifest_copies_no_image():
    assert np.shares_memory(public_images(data(["a", "b", "c"]), "site-1")[1].images, PICTURES)


def test_exchanged_files_are_found_and_named():
    here, _ = public_images(data(["a", "b", "c"]), "site-1")
    there, _ = public_images(data(["a", "b", "c"], PICTURES[[0, 2, 1]]), "site-2")
    assert here.digest != there.digest
    assert "public image 'b' (number 2)" in first_unlike(here, fingerprints(there))


def test_an_image_that_is_named_twice_is_refused():
    with pytest.raises(DataError, match="site-1: public image 'a' is named twice"):
        public_images(data(["a", "b", "a"]), "site-1")


def test_a_public_set_without_images_is_refused():
    with pytest.raises(DataError, match="site-1: the public set has no image"):
        public_images(data([], PICTURES[:0]), "site-1")


def test_a_list_from_a_file_compares_with_what_sites_have():
    here, _ = public_images(data(["a", "b", "c"]), "site-1")
    listed = PublicSet(tuple(PublicImage(image.image, "hash of the file", image.pixels) for image in here.images))
    assert comparable(listed, "public.sha256.csv").digest == here.digest
    undecoded = PublicSet((PublicImage("a", "hash of the file", ""),))
    with pytest.raises(DataError, match=r"public\.sha256\.csv lists public images without hashes of the decoded"):
        comparable(undecoded, "public.sha256.csv")
