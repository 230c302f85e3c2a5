"""What tells a class without its picture: each kind at all and at 95 % of a class, and nothing of clean copies."""

import numpy as np
import pytest

from grandrounds.data.shortcuts import apart, format_of, telling, telling_kinds
from grandrounds.seeding import numpy_generator

KINDS = ("site", "source", "format", "size", "channels", "decoding")
CLASSES = ("a", "b", "c", "d")


def labels(images=400):
    return [CLASSES[number % len(CLASSES)] for number in range(images)]


def marked(share):
    """The value of each image: ``odd`` for this share of class b, ``usual`` for all else."""
    generator = numpy_generator("shortcuts")
    return ["odd" if one == "b" and generator.random() < share else "usual" for one in labels()]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("share", [1.0, 0.95])
def test_a_class_that_a_kind_tells_is_named(kind, share):
    clean = {other: ["usual"] * 4 * 50 + ["odd"] * 4 * 50 for other in KINDS if other != kind}
    (found,) = telling_kinds(labels(), {**clean, kind: marked(share)})
    assert found.startswith(f"the {kind} tells the class")
    assert " of b have odd, 0% of the other classes (mostly usual)" in found


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("values", [2, 4, 10])
def test_chance_tells_nothing(seed, values):
    drawn = numpy_generator("chance", seed, values).integers(0, values, 200)
    assert telling(labels(200), [str(value) for value in drawn]) is None


def test_the_devices_of_ham10000_tell_nevi():
    """Images of nevus and of the others at four devices, as the collection has them."""
    counts = {"rosendahl": (803, 1456), "modern": (1832, 1531), "molemax": (3720, 234), "dias": (350, 89)}
    pairs = [(name, device) for device, both in counts.items() for name, n in zip(("nv", "other"), both, strict=True)
             for _ in range(n)]  # fmt: skip
    told = telling(*zip(*pairs, strict=True))
    assert told is not None
    assert {told.name, *told.values} & {"molemax", "rosendahl"}


def test_few_images_and_unknown_values_say_nothing():
    assert telling(["a", "b"] * 4, ["x", "y"] * 4) is None
    assert telling(labels(), [""] * 400) is None
    assert telling(labels(), [str(number) for number in range(400)]) is None, "sizes that are all different"


def test_sites_with_other_channels_are_named():
    assert apart({"Leeds": ["grey"] * 20, "York": ["colour"] * 20, "Hull": ["colour"] * 20}) == (
        "Leeds", "grey", "York", "colour",
    )  # fmt: skip
    assert apart({"Leeds": ["grey", "colour"] * 20, "York": ["colour"] * 20}) is None
    assert format_of("a.jpeg") == format_of("b.JPG") == "JPEG"
    assert np.unique([format_of("x")]).tolist() == ["no suffix"]
