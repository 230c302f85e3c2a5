"""Images that stay on an accelerator give the views that are drawn on the host, to the bit."""

import numpy as np
import pytest
import torch

from grandrounds.data.images import tensors
from grandrounds.data.images.augmentation import draw_views
from grandrounds.data.images.tensors import HeldImages
from grandrounds.data.images.views import Mild, RegisteredView
from grandrounds.seeding import numpy_generator

COUNT = 60


def in_file(tmp_path, shape):
    images = np.memmap(tmp_path / "images", np.uint8, "w+", shape=(COUNT, *shape))
    images[:] = numpy_generator("held", *shape).integers(0, 256, images.shape, dtype=np.uint8)
    return images


@pytest.fixture
def room(monkeypatch):
    """How many bytes fit; the CPU stands for the accelerator."""

    def has(size):
        monkeypatch.setattr(tensors, "may_stay", lambda device, needed: needed <= size)

    has(1 << 30)
    return has


@pytest.mark.parametrize("view", ["none", "mild", "turns", "half_turn"])
@pytest.mark.parametrize("shape", [(64, 64, 3), (33, 33, 1), (8, 8, 3), (40, 57, 3)])
def test_views_that_move_pixels_are_those_of_the_host(tmp_path, room, monkeypatch, view, shape):
    monkeypatch.setattr(tensors, "COPIED_IMAGES", 7)
    images, held = in_file(tmp_path, shape), HeldImages(torch.device("cpu"))
    rows = numpy_generator("rows").permutation(COUNT)
    if view == "turns" and shape[0] != shape[1]:
        with pytest.raises(ValueError, match="quarter turns need square images"):
            held.views(images, rows, view, 5, 0)
        return
    for step in range(8):
        found = held.views(images, rows, view, 5, step)
        assert np.array_equal(found.numpy(), draw_views(images, rows, view, 5, step))
    some = np.array([3, 1, 17])
    found = held.views(images, rows, view, 5, 1, some)
    assert np.array_equal(found.numpy(), draw_views(images, rows, view, 5, 1, some))
    assert held.views(images, rows, view, 5, 1, some[:0]).shape == (0, *shape)


def test_a_part_of_a_file_is_not_taken_for_another(tmp_path, room):
    images, held = in_file(tmp_path, (8, 8, 3)), HeldImages(torch.device("cpu"))
    for part in (images[:30], images[30:]):
        assert np.array_equal(held.views(part, np.arange(30), "none", 5, 0).numpy(), part)


class Inverted(Mild):
    """Draws otherwise than the class that it derives from."""

    def draw(self, image, generator):
        return 255 - image


@pytest.mark.parametrize(("made", "there"), [(Mild, True), (Inverted, False)])
def test_a_derived_view_is_drawn_on_the_host(tmp_path, room, monkeypatch, made, there):
    monkeypatch.setattr(tensors, "view_named", lambda name: RegisteredView(made, 100))
    assert HeldImages(torch.device("cpu")).makes(in_file(tmp_path, (8, 8, 3)), "any") is there


@pytest.mark.parametrize("view", ["weak", "strong"])
def test_views_that_change_colours_are_drawn_on_the_host(tmp_path, room, view):
    images, held = in_file(tmp_path, (8, 8, 3)), HeldImages(torch.device("cpu"))
    assert not held.makes(images, view)
    assert held.views(images, np.arange(3), view, 5, 0) is None


def test_images_that_do_not_fit_or_are_in_no_file_stay_on_the_host(tmp_path, room):
    images, held = in_file(tmp_path, (8, 8, 3)), HeldImages(torch.device("cpu"))
    assert not held.makes(np.array(images), "none")
    assert held.makes(images, "none")
    room(images.nbytes - 1)
    assert not HeldImages(torch.device("cpu")).makes(images, "none")


def test_a_quarter_of_the_free_memory_of_a_gpu_may_be_taken_and_none_of_a_cpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (400, 1000))
    gpu = torch.device("cuda", 1)
    assert [tensors.may_stay(device, size) for device, size in ((gpu, 100), (gpu, 101), (torch.device("cpu"), 1))] == [
        True,
        False,
        False,
    ]
