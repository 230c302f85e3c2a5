"""Kept features are those of the documented views, are made once, and are bounded, private and removed."""

import stat
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from grandrounds.data.images import tensors
from grandrounds.data.images.augmentation import draw_views, sample_generator
from grandrounds.data.images.tensors import to_tensor
from grandrounds.errors import ConfigurationError
from grandrounds.federation.site import features
from grandrounds.federation.site.features import FeatureOptions, Features, remove_features
from grandrounds.models.partial import Front, front_of
from grandrounds.models.registry import build_model
from grandrounds.protocol.problem import ModelSpec
from grandrounds.seeding import derive_seed, numpy_generator

IMAGES = numpy_generator("features").integers(0, 256, (24, 32, 32, 3), dtype=np.uint8)
ALL = np.arange(len(IMAGES))
STRONG = {"equalize_noop": False, "strong_levels": None}
# The front's output is 16 x 16 x 16 in half precision.
VIEW_BYTES = 16 * 16 * 16 * 2


@pytest.fixture(scope="module")
def network():
    return build_model(ModelSpec("compact", classes=3, trainable="from:0"), seed=1)


@pytest.fixture
def make(network, tmp_path, monkeypatch):
    """A cache in a folder of the site; ``make(views=2)``."""
    monkeypatch.delenv("GRANDROUNDS_FEATURES", raising=False)

    def cache(views=2, mib=64, folder="run", of=network, seed=1, form="exact"):
        return Features(tmp_path / folder, FeatureOptions(views, mib), of, seed, "site-1", form)

    return cache


@pytest.fixture
def passes(monkeypatch):
    """The number of images in each pass through a front."""
    counted, in_form = [], Front.in_form

    def counting(compute, inputs):
        counted.append(len(inputs))
        return compute(inputs)

    monkeypatch.setattr(Front, "in_form", lambda self, form: partial(counting, in_form(self, form)))
    return counted


def features_of(network, rows, view, numbers, **options):
    """What the front makes of these views, which are drawn under the documented key."""
    key = derive_seed(1, "features", "site-1", "own", view, *map(str, sorted(options.items())))
    views = [
        draw_views(IMAGES, ALL, view, key, number, positions=np.array([row]), **options)
        for row, number in zip(rows, numbers, strict=True)
    ]
    with torch.no_grad():
        return front_of(network)(to_tensor(np.concatenate(views)))


@pytest.mark.parametrize(
    ("view", "options"), [("weak", {}), ("strong", STRONG), ("mild", {}), ("turns", {}), ("none", {})]
)
def test_a_kept_view_is_what_the_front_makes_of_the_documented_one(make, network, view, options):
    rows = np.array([7, 0, 23, 7])
    numbers = [int(sample_generator(view, 5, 3, place).integers(1 if view == "none" else 2)) for place in range(4)]
    found = make().draw("own", IMAGES, rows, view, 5, 3, **options)
    expected = features_of(network, rows, view, numbers, **options)
    assert found.dtype == torch.float32
    assert found.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(found, expected, rtol=2e-3, atol=2e-3)
    if view == "none":
        with torch.no_grad():
            torch.testing.assert_close(found, front_of(network)(to_tensor(IMAGES[rows])), rtol=2e-3, atol=2e-3)


def test_features_that_stay_on_the_device_are_those_of_the_file(make, monkeypatch):
    rows = np.array([7, 0, 23, 7])
    file, before = make(folder="file"), make(folder="held")
    before.draw("own", IMAGES, rows[:2], "weak", 5, 0)
    monkeypatch.setattr(features, "may_stay", lambda device, size: True)
    held = make(folder="held")  # goes on with what is in the file
    for step in range(3):
        expected = file.draw("own", IMAGES, rows, "weak", 5, step)
        assert torch.equal(held.draw("own", IMAGES, rows, "weak", 5, step), expected)
    assert torch.equal(make(folder="held").draw("own", IMAGES, rows, "weak", 5, 2), expected)
    (stored,) = held._stored.values()
    stored._features[:] = 0
    assert torch.equal(held.draw("own", IMAGES, rows, "weak", 5, 2), expected), "read from the file"


def test_features_that_another_process_has_added_are_read_from_the_file(make, monkeypatch):
    monkeypatch.setattr(features, "may_stay", lambda device, size: True)
    first, second, rows = make(folder="shared"), make(folder="shared"), np.arange(24)
    first.draw("own", IMAGES, rows[:2], "weak", 5, 0)
    second.draw("own", IMAGES, rows[:2], "weak", 5, 0)
    expected = [second.draw("own", IMAGES, rows, "weak", 5, step) for step in range(3)]
    second.close()
    for step in range(3):
        assert torch.equal(first.draw("own", IMAGES, rows, "weak", 5, step), expected[step])


def test_views_are_chosen_with_equal_probability(make, network):
    cache, four = make(views=4), features_of(network, [3] * 4, "weak", range(4))
    drawn = torch.cat([cache.draw("own", IMAGES, np.full(50, 3), "weak", 5, step) for step in range(8)])
    nearest = (drawn[:, None] - four[None]).flatten(2).abs().amax(dim=2).argmin(dim=1)
    counts = torch.bincount(nearest, minlength=4)
    # Four standard deviations of a binomial count of 400 with probability 1/4 are 35.
    assert (counts - 100).abs().max() <= 35, counts
    torch.testing.assert_close(drawn, four[nearest], rtol=2e-3, atol=2e-3)


def test_the_composition_of_batches_does_not_count(make):
    together, apart = make(folder="together"), make(folder="apart")
    rows = np.array([4, 9, 2, 11, 5])
    whole = together.draw("own", IMAGES, rows, "weak", 5, 0)
    some = np.array([3, 1])
    apart.draw("own", IMAGES, rows[::-1].copy(), "weak", 6, 1)
    torch.testing.assert_close(
        apart.draw("own", IMAGES, rows, "weak", 5, 0, positions=some), whole[some], rtol=2e-3, atol=2e-3
    )
    torch.testing.assert_close(apart.draw("own", IMAGES, rows, "weak", 5, 0), whole, rtol=2e-3, atol=2e-3)
    assert torch.equal(together.draw("own", IMAGES, rows, "weak", 5, 0), whole)
    other = make(folder="other", seed=2).draw("own", IMAGES, rows, "weak", 5, 0)
    assert not torch.allclose(other, whole, rtol=2e-3, atol=2e-3)


def test_features_of_another_form_are_others(make, tmp_path, passes):
    """Kept by each form for itself: what one has made is not read by another."""
    exact, rows = make(), np.array([4, 9])
    first = exact.draw("own", IMAGES, rows, "none", 5, 0)
    exact.close()
    computed = len(passes)
    again = make().draw("own", IMAGES, rows, "none", 5, 0)
    assert len(passes) == computed + 1  # the shape alone
    other = make(form="bfloat16").draw("own", IMAGES, rows, "none", 5, 0)
    assert len(list((tmp_path / "run").rglob("own-none-*.features"))) == 2
    assert torch.equal(again, first)
    # A processor without instructions for it computes the other form in single precision, so that their bits may agree.
    assert torch.allclose(other, first, atol=0.2)
    torch.testing.assert_close(other, first, rtol=0.05, atol=0.05)


def test_the_bits_of_features_do_not_depend_on_the_order_in_which_they_were_needed(make, passes):
    # The last bits of this front depend on the number of images in a pass, if these are few.
    of = build_model(ModelSpec("efficientnet_lite0", classes=3, weights="imagenet", trainable="from:15"), seed=1)
    images = numpy_generator("larger features").integers(0, 256, (24, 96, 96, 3), dtype=np.uint8)
    all_at_once, one_by_one = make(folder="together", of=of), make(folder="apart", of=of)
    expected = all_at_once.draw("own", images, ALL, "none", 5, 7)
    with torch.autocast("cpu", torch.bfloat16):
        for row in (11, 3, 20):
            one_by_one.draw("own", images, np.array([row]), "none", 5, 0)
    assert torch.equal(one_by_one.draw("own", images, ALL, "none", 5, 7), expected)
    assert [count for count in passes if count > 1] == [32] * 5


def test_a_batch_is_filled_up_with_views_of_the_same_images(make, passes):
    cache = make(views=16)
    for step in range(40):
        cache.draw("own", IMAGES, np.array([5, 7, 5]), "weak", 5, step)
    assert passes == [1, 32], "the shape, and all 32 views of the two images"


def test_without_a_cache_each_view_is_drawn_anew(make, network, tmp_path):
    rows, some = np.array([7, 0, 23]), np.array([2, 0])
    found = make(views=0).draw("own", IMAGES, rows, "strong", 5, 3, positions=some, **STRONG)
    views = draw_views(IMAGES, rows, "strong", 5, 3, positions=some, **STRONG)
    with torch.no_grad():
        assert torch.equal(found, front_of(network)(to_tensor(views)))
    assert not (tmp_path / "run").exists()


def test_a_batch_may_be_empty(make):
    assert make().draw("own", IMAGES, ALL[:0], "weak", 5, 0).shape == (0, 16, 16, 16)
    assert make().draw("own", IMAGES, ALL, "weak", 5, 0, positions=ALL[:0]).shape == (0, 16, 16, 16)


def test_each_view_passes_the_front_once_also_after_a_restart(make, passes):
    cache = make()
    for step in range(20):
        cache.draw("own", IMAGES, ALL, "weak", 5, step)
    assert passes[0] == 1, "one image for the shape"
    assert passes[1:] == [32, 32], "all 48 views, the second batch filled up"
    cache.close()
    passes.clear()
    again = make()
    for step in range(20, 30):
        again.draw("own", IMAGES, ALL, "weak", 5, step)
    assert passes == [1]


def test_features_are_written_once_a_task_and_count_from_then_on(make, passes, monkeypatch):
    flushed, flush = [], np.memmap.flush
    monkeypatch.setattr(np.memmap, "flush", lambda file: flushed.append(file) or flush(file))
    cache = make()
    for row in range(5):
        cache.draw("own", IMAGES, ALL[row : row + 1], "weak", 5, 0)
    assert not flushed
    make().draw("own", IMAGES, ALL[:5], "weak", 5, 0)
    assert passes == [1, *[32] * 5, 1, 32], "of a task that was cut off nothing counts"
    cache.close()
    cache.close()
    assert len(flushed) == 1


def test_a_device_that_holds_the_images_makes_their_views(make, tmp_path, monkeypatch):
    """What the host does for an image in front of a GPU: it drew each image by itself."""
    images = np.memmap(tmp_path / "images", np.uint8, "w+", shape=IMAGES.shape)
    images[:] = IMAGES
    expected = [make(folder="host").draw("own", IMAGES, ALL, view, 5, 0) for view in ("none", "half_turn")]
    drawn = []
    monkeypatch.setattr(tensors, "may_stay", lambda device, size: True)
    monkeypatch.setattr(features, "draw_views", lambda *given, **options: pytest.fail("drawn on the host"))
    monkeypatch.setattr(tensors, "sample_generator", lambda *given: drawn.append(given) or sample_generator(*given))
    cache = make(folder="device")
    found = [cache.draw("own", images, ALL, view, 5, 0) for view in ("none", "half_turn")]
    assert all(map(torch.equal, found, expected))
    assert len(drawn) <= 2 * len(ALL) / 10


def test_another_front_or_another_number_of_images_gives_other_features(make, network):
    first = make().draw("own", IMAGES, ALL, "none", 0, 0)
    other = build_model(ModelSpec("compact", classes=3, trainable="from:0"), seed=2)
    with torch.no_grad():
        expected = front_of(other)(to_tensor(IMAGES))
    torch.testing.assert_close(make(of=other).draw("own", IMAGES, ALL, "none", 0, 0), expected, rtol=2e-3, atol=2e-3)
    assert not torch.allclose(first, expected, rtol=2e-3, atol=2e-3)
    later = make().draw("own", IMAGES[4:], ALL[:-4], "none", 0, 0)
    torch.testing.assert_close(later, first[4:], rtol=2e-3, atol=2e-3)


def test_files_are_the_sites_alone_and_are_removed(make, tmp_path):
    make().draw("own", IMAGES, ALL[:2], "weak", 5, 0)
    folder = tmp_path / "run" / "features"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    files = sorted(folder.iterdir())
    assert [file.suffix for file in files] == [".computed", ".features"]
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    size = 2 * len(IMAGES) * VIEW_BYTES
    assert [file.stat().st_size for file in files] == [2 * len(IMAGES), size]
    assert files[1].stat().st_blocks * 512 >= size, "the space is taken before the first view is written"
    remove_features(tmp_path / "run")
    assert not folder.exists()
    remove_features(tmp_path / "run")


def test_features_can_outlast_a_run_and_belong_to_their_images(make, passes, tmp_path, monkeypatch):
    monkeypatch.setenv("GRANDROUNDS_FEATURES", str(tmp_path / "kept"))
    cache = make(folder="one")
    first = cache.draw("own", IMAGES, ALL, "none", 0, 0)
    cache.close()
    remove_features(tmp_path / "one")
    passes.clear()
    assert torch.equal(make(folder="two").draw("own", IMAGES, ALL, "none", 0, 0), first)
    assert passes == [1], "only the image for the shape"
    assert not torch.equal(make(folder="two").draw("own", 255 - IMAGES, ALL, "none", 0, 0), first)


def test_other_numbers_of_views_do_not_share_kept_features(make, tmp_path, monkeypatch):
    alone = make(views=1, folder="alone").draw("own", IMAGES, ALL, "weak", 0, 0)
    monkeypatch.setenv("GRANDROUNDS_FEATURES", str(tmp_path / "kept"))
    make(views=3, folder="one").draw("own", IMAGES, ALL, "weak", 0, 0)
    assert torch.equal(make(views=1, folder="two").draw("own", IMAGES, ALL, "weak", 0, 0), alone)


def test_a_cache_above_its_limit_is_refused_with_its_size(make):
    cache = make(views=3, mib=1)
    cache.draw("own", IMAGES, ALL[:1], "weak", 5, 0)
    message = (
        r"^site-1: the features of 24 images x 3 strong views of own take 1 MiB beside 1 MiB, more than "
        r"executor\.feature_cache_mib=1; raise it, or lower executor\.feature_cache$"
    )
    with pytest.raises(ConfigurationError, match=message):
        cache.draw("own", IMAGES, ALL[:1], "strong", 5, 0, **STRONG)


def test_a_cache_above_the_free_disk_is_refused_with_both_sizes(make, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=300 << 10))
    message = (
        r"^site-1: the features of 24 images x 8 weak views of own take 2 MiB and the disk of \S+/run/features has 0 MiB "
        r"free; lower executor\.feature_cache$"
    )
    with pytest.raises(ConfigurationError, match=message):
        make(views=8).draw("own", IMAGES, ALL[:1], "weak", 5, 0)


def test_a_network_without_frozen_layers_has_no_features_to_keep(make):
    message = (
        r"^executor\.feature_cache keeps what frozen layers make of images, and no layer is frozen: set problem\.trai"
    )
    with pytest.raises(ConfigurationError, match=message):
        make(of=build_model(ModelSpec("compact", classes=3), seed=1))
