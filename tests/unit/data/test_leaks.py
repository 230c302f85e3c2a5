"""Pictures and patients that several sites have, and pictures with two labels, are found by what they show."""

import io

import numpy as np
import pytest
from PIL import Image

from grandrounds.data.doctor import compare_sites, examine
from grandrounds.data.leaks.comparison import Sharing, look
from grandrounds.data.site import SiteData
from grandrounds.protocol.tasks import FINDINGS, SINGLE

CLASSES = ("nevus", "melanoma")


def picture(number, size=32):
    """A smooth picture of its own."""
    coarse = np.random.default_rng(number).integers(0, 255, (5, 5, 3), np.uint8)
    return np.asarray(Image.fromarray(coarse).resize((size, size), Image.Resampling.BICUBIC))


def saved_again(pixels, quality):
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "JPEG", quality=quality)
    return np.asarray(Image.open(stream))


def site(*images, splits=None, labels=None, patients=None, names=None, task=SINGLE):
    count = len(images)
    patients = patients or ("",) * count
    names = names or tuple(f"{row}.png" for row in range(count))
    return SiteData(
        images=np.stack(images),
        labels=np.array(labels if labels is not None else [0] * count),
        labelled=np.ones(count, np.bool_),
        split=np.array(splits or ["train"] * count),
        names=names,
        groups=tuple(patient or name for patient, name in zip(patients, names, strict=True)),
        classes=CLASSES,
        patients=patients,
        task=task,
    )


def compared(**options):
    sites = {name: data for name, data in options.items() if isinstance(data, SiteData)}
    flags = {name: value for name, value in options.items() if name not in sites}
    return compare_sites({name: look(data, name) for name, data in sites.items()}, **flags)


def messages(findings, level):
    return [finding.message for finding in findings if finding.level == level]


def test_a_picture_at_two_sites_is_a_failure_with_both_places():
    a = site(picture(1), picture(2), splits=["train", "test"])
    b = site(picture(3), picture(1), splits=["train", "test"], names=("x.png", "y.png"))
    (message,) = messages(compared(a=a, b=b), "failure")
    assert "1 pictures are at two sites: a: 0.png (train) and b: y.png (test)" in message
    assert "--allow-overlap" in message
    assert messages(compared(a=a, b=b, overlap_allowed=True), "failure") == []
    assert len(messages(compared(a=a, b=b, overlap_allowed=True), "warning")) == 1


def test_different_pictures_and_patients_pass():
    a, b = (site(picture(2 * n), picture(2 * n + 1), patients=(f"{n}a", f"{n}b")) for n in range(2))
    assert {finding.level for finding in compared(a=a, b=b)} == {"ok"}
    assert compared(a=a) == []


def test_of_many_shared_pictures_three_are_named_and_all_counted():
    images = [picture(number) for number in range(9)]
    (message,) = messages(compared(a=site(*images), b=site(*images)), "failure")
    assert message.count("a: ") == 3
    assert "9 pictures" in message
    assert "and 6 more" in message


def test_a_patient_at_two_sites_is_a_failure_unless_the_partition_means_it():
    a, b = (site(picture(n), patients=("P7",), names=(f"{n}.png",)) for n in (1, 2))
    (message,) = messages(compared(a=a, b=b), "failure")
    assert "'P7' of a: 1.png (train) and b: 2.png (train)" in message
    assert messages(compared(a=a, b=b, sharing=Sharing(patients=True)), "failure") == []


def test_test_images_that_a_partition_gives_to_all_sites_are_one_set_and_no_leak():
    common = {"splits": ["train", "test"], "patients": ("", "T")}
    a = site(picture(1), picture(9), names=("a.png", "test.png"), **common)
    b = site(picture(2), picture(9), names=("b.png", "test.png"), **common)
    assert len(messages(compared(a=a, b=b), "failure")) == 2
    assert messages(compared(a=a, b=b, sharing=Sharing(tests=True)), "failure") == []
    b = site(picture(9), picture(9), names=("b.png", "test.png"), **common)
    (message,) = messages(compared(a=a, b=b, sharing=Sharing(tests=True)), "failure")
    assert "b: b.png (train)" in message
    assert "every site: test.png (test)" in message


@pytest.mark.parametrize("quality", [30, 75, 95])
def test_a_copy_that_was_saved_again_is_a_warning_over_sites_and_over_splits(quality):
    copy = saved_again(picture(1), quality)
    a, b = site(picture(1), picture(2)), site(copy, picture(3), names=("x.png", "y.png"))
    (message,) = messages(compared(a=a, b=b), "warning")
    assert "a: 0.png (train) and b: x.png (train)" in message
    here = site(picture(1), picture(2), copy, splits=["train", "train", "test"])
    assert any("0.png (train)" in one and "2.png (test)" in one for one in messages(examine(here, "s"), "warning"))


def test_pictures_of_one_patient_in_one_split_may_look_the_same():
    same = site(picture(1), saved_again(picture(1), 50), patients=("p", "p"))
    assert not any("look the same" in one for one in messages(examine(same, "s"), "warning"))


def test_one_picture_with_two_labels_is_a_failure_of_its_own():
    twice = site(picture(1), picture(2), picture(1), labels=[0, 1, 1], names=("i.png", "j.png", "./i.png"))
    (message,) = messages(examine(twice, "s"), "failure")
    assert "two labels: i.png is nevus and ./i.png is melanoma" in message
    same = site(picture(1), picture(2), picture(1), labels=[0, 1, 0])
    assert messages(examine(same, "s"), "failure") == []
    unknown = site(picture(1), picture(2), picture(1), labels=[0, 1, -1])
    assert messages(examine(unknown, "s"), "failure") == []


def test_a_contradiction_between_sites_is_no_overlap_that_can_be_allowed():
    a, b = site(picture(1), labels=[0]), site(picture(1), labels=[1], names=("x.png",))
    (message,) = messages(compared(a=a, b=b, overlap_allowed=True), "failure")
    assert "a: 0.png (train) is nevus and b: x.png (train) is melanoma" in message


@pytest.mark.parametrize(("melanomas", "differ"), [(12, False), (35, True)])
def test_different_mixes_of_classes_speak_against_statistics_of_each_site(melanomas, differ):
    a, b = (
        site(
            *(picture(100 * first + n, 8) for n in range(60)),
            labels=[1] * count + [0] * (60 - count),
            names=tuple(f"{first}-{n}.png" for n in range(60)),
        )
        for first, count in ((0, 6), (1, melanomas))
    )
    found = [one.message for one in compared(a=a, b=b) if one.check == "mixes of classes"]
    assert len(found) == differ
    assert all("a and b have different mixes of classes (48% apart)" in message for message in found)


def test_findings_contradict_where_both_are_known():
    def labelled(first, second):
        data = site(picture(1), picture(1), labels=[first, second], names=("i.png", "j.png"), task=FINDINGS)
        return messages(examine(data, "s"), "failure")

    assert "i.png is nevus and j.png is nevus|melanoma" in labelled([1, 0], [1, 1])[0]
    assert labelled([1, -1], [1, 1]) == []


def test_images_of_one_colour_and_unreadable_ones_identify_nobody():
    black = np.zeros((32, 32, 3), np.uint8)
    assert {finding.level for finding in compared(a=site(black, picture(1)), b=site(black, picture(2)))} == {"ok"}
