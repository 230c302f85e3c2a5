"""The page of a site's images: which are shown, by which rule, and that it stays private and harmless."""

import base64
import dataclasses
import io
import re
import stat

import numpy as np
import pytest
from PIL import Image

from grandrounds.data.images.cache import DecodedCache
from grandrounds.data.site import SiteData
from grandrounds.protocol.tasks import task_named
from grandrounds.reporting import local
from grandrounds.reporting.local import write_local_page
from grandrounds.seeding import numpy_generator

PICTURE = re.compile(r'<img src="data:image/png;base64,([^"]+)" alt="([^"]*)"')
TURNED, DEEP = ("orientation",), ("depth",)


def site_data(count=30, labels=None, rules=(), quarantined=(), **changes):
    """Noise images of two classes in turn."""
    pixels = numpy_generator("local page").integers(0, 256, (count, 8, 8, 3), dtype=np.uint8)
    return SiteData(
        cache=DecodedCache(pixels, quarantined, rules=rules or ((),) * count),
        labels=np.arange(count) % 2 if labels is None else labels,
        labelled=np.ones(count, np.bool_),
        split=np.array(["train"] * count),
        names=tuple(f"{row}.png" for row in range(count)),
        groups=tuple(f"p{row}" for row in range(count)),
        classes=("nevus", "melanoma"),
        **changes,
    )


@pytest.fixture
def written(tmp_path):
    """Write the page of these data; returns the finding and the page."""

    def write(data):
        finding = write_local_page(data, "site-1", tmp_path / "pages" / "look.html")
        return finding, (tmp_path / "pages" / "look.html").read_text()

    return write


def shown(page):
    """The pictures of the page by name."""
    return {name: Image.open(io.BytesIO(base64.b64decode(data))) for data, name in PICTURE.findall(page)}


def test_some_images_of_each_class_are_shown_as_the_network_sees_them(written):
    data = site_data()
    finding, page = written(data)
    pictures = shown(page)
    assert len(PICTURE.findall(page)) == 24  # twelve of each class, and no suspicions
    for name, picture in pictures.items():
        np.testing.assert_array_equal(np.asarray(picture), data.images[data.names.index(name)])
    assert "nevus: 15 images" in page
    assert (finding.level, finding.check) == ("ok", "page")
    assert written(data)[1] == page  # the same draw


def test_grey_images_are_shown_in_grey(written):
    data = site_data(4)
    _, page = written(dataclasses.replace(data, cache=dataclasses.replace(data.cache, images=data.images[..., :1])))
    assert {picture.mode for picture in shown(page).values()} == {"L"}


def test_every_rule_is_shown_and_counted(written):
    rules = [()] * 40
    rules[0], rules[2], rules[5] = TURNED, DEEP, TURNED
    finding, page = written(site_data(40, rules=tuple(rules)))
    assert {"0.png", "2.png", "5.png"} <= shown(page).keys()
    assert "depth: 1 images; orientation: 2 images; nothing suspicious (40 images looked at" in finding.message
    assert "shown as stored: 18 images, 10 drawn at random" in page  # of 20 nevi, beside two of other rules


def test_suspects_are_counted_and_at_most_eight_are_shown(written):
    data = site_data(30)
    data.images[10:20] //= 64
    finding, page = written(data)
    assert finding.level == "warning"
    assert "dark: 10 images" in finding.message
    section = page[page.index('id="suspicions"') : page.index('id="classes"')]
    assert len(PICTURE.findall(section)) == 16  # eight dark ones, eight flat ones
    assert "dark: 10 images, 8 shown" in section


def test_images_without_a_label_and_without_a_finding_have_a_place(written):
    labels = np.array([[1, 1], [1, 0], [0, 0], [-1, -1]])
    _, page = written(site_data(4, labels, task=task_named("multi")))
    heads = re.findall(r"<h2>([^<]*): (\d+) image", page)
    assert heads == [("nevus", "2"), ("melanoma", "1"), ("no finding", "1"), ("without a label", "1")]


def test_unreadable_images_are_not_shown(written):
    _, page = written(site_data(6, quarantined=((1, "1.png", "1.png is broken"),)))
    assert "1 of them cannot be read" in page
    assert len(shown(page)) == 5
    assert "1.png" not in shown(page)


def test_what_a_site_does_to_its_images_is_stated(tmp_path):
    write_local_page(site_data(4), "site-1", tmp_path / "look.html", preprocess="mammogram")
    assert "&#34;preprocess&#34;: &#34;mammogram&#34;" in (tmp_path / "look.html").read_text()


def test_a_large_site_is_sampled_and_the_page_says_so(written, monkeypatch):
    monkeypatch.setattr(local, "LOOKED_AT", 20)
    finding, page = written(site_data(30))
    assert "(20 images looked at" in finding.message
    assert "drawn at random; the counts are of these" in page
    assert "drawn at random; the counts" not in written(site_data(20))[1]


def test_the_page_is_for_its_owner_and_says_that_it_stays(written, tmp_path):
    _, page = written(site_data(4))
    assert stat.S_IMODE((tmp_path / "pages" / "look.html").stat().st_mode) == 0o600
    assert "This page stays at the site" in page


def test_names_are_text_and_nothing_is_loaded_or_run(written):
    names = ("<script>x</script>.png", 'a" onerror="x.png', "2.png", "3.png")
    _, page = written(dataclasses.replace(site_data(4), names=names))
    assert "&lt;script&gt;x&lt;/script&gt;.png" in page
    assert "<script" not in page
    assert 'onerror="' not in page
    assert "default-src 'none'" in page
    assert re.findall(r'(?:src|href)="(?!data:image/png)', page) == []
