"""An image has one budget: two data sets of a site share none, in whatever file or archive it lies, nor a patient."""

import hashlib
import io
import json
import zipfile
from itertools import zip_longest

import numpy as np
import pytest
from PIL import Image

from grandrounds.data.manifest import Record, write_manifest
from grandrounds.data.site import DatasetLocation
from grandrounds.errors import ConfigurationError, DataError
from grandrounds.privacy.gate.datasets import InventoryRequest, record, take_inventory
from grandrounds.privacy.gate.questions import count_question
from grandrounds.privacy.inventory import dataset_facts
from grandrounds.privacy.ledger.lines import DatasetIdentity, Purpose
from grandrounds.protocol.spending import no_guarantee

PIXELS = np.random.default_rng(5).integers(0, 256, (3, 9, 11, 3), np.uint8)


def png(pixels, **options):
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG", **options)
    return stream.getvalue()


def folder(root, contents):
    root.mkdir()
    for name, content in contents.items():
        (root / name).write_bytes(content)
    return root, list(contents)


def npz(root, pixels):
    np.savez(root, train_images=pixels)
    return root, [f"train_images/{number}" for number in range(len(pixels))]


def zipped(root, contents):
    with zipfile.ZipFile(root, "w") as archive:
        for name, content in contents.items():
            archive.writestr(name, content)
    return root, list(contents)


@pytest.fixture
def know(tmp_path, ledger):
    """Let the ledger know a data set, and check it."""

    def do(name, root, names, people=(), fingerprint="1" * 64):
        named = zip_longest(names, people, fillvalue="")
        records = [Record(image or f"{person} is not there", "nevus", patient=person) for image, person in named]
        write_manifest(records, tmp_path / "list.csv")
        facts = dataset_facts(name, DatasetLocation(tmp_path / "list.csv", root))
        facts = facts._replace(identity=DatasetIdentity(name, fingerprint))
        record(ledger, tmp_path / "privacy", facts)
        content = ledger.content()
        content.require_own_images(name, {line.dataset.name for line in content.known})

    return do


SKIN = {"a.png": png(PIXELS[0]), "b.png": png(PIXELS[1])}
COPIES = {
    "a file of another name": lambda path: folder(path, {"x.png": SKIN["b.png"]}),
    "a re-saved PNG": lambda path: folder(path, {"x.png": png(PIXELS[1], compress_level=0)}),
    "a zip archive": lambda path: zipped(path.with_suffix(".zip"), {"x.png": SKIN["b.png"]}),
    "an npz file": lambda path: npz(path.with_suffix(".npz"), PIXELS[1:]),
}


@pytest.mark.parametrize("copy", COPIES.values(), ids=COPIES)
def test_a_copy_has_no_budget_of_its_own(tmp_path, know, copy):
    know("skin", *folder(tmp_path / "skin", SKIN))
    with pytest.raises(ConfigurationError, match="1 images of data set 'new' are also in 'skin'"):
        know("new", *copy(tmp_path / "new"))


def test_a_copy_of_an_archive_has_no_budget_of_its_own(tmp_path, know):
    know("skin", *npz(tmp_path / "skin.npz", PIXELS))
    with pytest.raises(ConfigurationError, match="3 images of data set 'new' are also in 'skin'"):
        know("new", *npz(tmp_path / "new.npz", PIXELS))


def test_which_data_sets_share_an_image_does_not_depend_on_what_was_asked_first(tmp_path, ledger):
    """A public set shares what it likes, and one that cannot be read hides nothing of the others."""
    described = {}
    for name, pixels, more in (("skin", 0, {}), ("two", 0, {}), ("other", 1, {}), ("open", 1, {"public": True})):
        folder(tmp_path / name, {f"{name}.png": png(PIXELS[pixels])})
        write_manifest([Record(f"{name}.png", "nevus")], tmp_path / f"{name}.csv")
        described[name] = {"manifest": f"{name}.csv", "root": name, **more}
    described["lost"] = {"manifest": "nowhere.csv", "root": "nowhere"}
    (tmp_path / "grandrounds.json").write_text(json.dumps({"datasets": described}))
    question = InventoryRequest("site-1", (str(tmp_path),), str(tmp_path / "cache"), "skin", private=True)
    names = take_inventory(question, ledger, tmp_path / "privacy").described
    assert names == ("skin", "two", "other", "lost")
    for name in ("skin", "two"):
        with pytest.raises(ConfigurationError, match="1 images of data set"):
            ledger.content().require_own_images(name, names)
    ledger.content().require_own_images("other", names)


def test_a_data_set_that_is_described_no_more_counts_only_if_something_of_it_was_booked(tmp_path, know, ledger):
    """A site that has taken one of two out of its file goes on with the other."""
    know("skin", *folder(tmp_path / "skin", SKIN))
    with pytest.raises(ConfigurationError, match="describe one of them only"):
        know("new", *folder(tmp_path / "new", SKIN), fingerprint="2" * 64)
    ledger.content().require_own_images("new", ["new"])
    ledger.book(Purpose("job", "run", 1, "update"), DatasetIdentity("skin", "1" * 64), no_guarantee(), 1e-5)
    with pytest.raises(ConfigurationError, match="2 images of data set 'new' are also in 'skin'"):
        ledger.content().require_own_images("new", ["new"])


def test_other_images_and_flat_ones_have_budgets_of_their_own(tmp_path, know, ledger):
    flat = np.zeros((1, 9, 11, 3), np.uint8)
    know("skin", *npz(tmp_path / "skin.npz", np.concatenate([flat, PIXELS[:1]])))
    know("other", *npz(tmp_path / "other.npz", np.concatenate([flat, PIXELS[1:]])))
    assert {line.dataset.name for line in ledger.content().known} == {"skin", "other"}


def test_a_data_set_that_has_grown_keeps_all_that_it_was_known_by(tmp_path, know, ledger):
    know("skin", *folder(tmp_path / "skin", SKIN))
    know("skin", *folder(tmp_path / "grown", {"c.png": png(PIXELS[2])}), fingerprint="2" * 64)
    for number in (0, 2):
        with pytest.raises(ConfigurationError, match="1 images of data set"):
            know(f"new{number}", *folder(tmp_path / f"new{number}", {"x.png": png(PIXELS[number])}))


def test_images_are_read_once_for_each_state_of_files_and_manifest(tmp_path, know, ledger, monkeypatch):
    root, names = folder(tmp_path / "skin", SKIN)
    know("skin", root, names)
    know("skin", root, names)
    assert len(ledger.content().known) == 1
    (root / "a.png").write_bytes(png(PIXELS[2]))  # under its old name
    know("skin", root, names)
    assert len(ledger.content().known) == 2
    with pytest.raises(ConfigurationError, match="1 images"):
        know("new", *folder(tmp_path / "new", {"x.png": png(PIXELS[2])}))


def test_a_new_scheme_of_decoding_joins_and_replaces_nothing(tmp_path, know, ledger):
    know("skin", *folder(tmp_path / "skin", SKIN))
    ledger.join(DatasetIdentity("skin", "1" * 64), "another state", {"pixels-2:00"})
    assert {digest.partition(":")[0] for digest in ledger.content().digests("skin")} == {
        "bytes",
        "pixels-1",
        "pixels-2",
    }
    with pytest.raises(ConfigurationError, match="1 images"):
        know("new", *npz(tmp_path / "new.npz", PIXELS[1:]))


def test_a_patient_has_one_budget_unless_the_site_says_that_they_are_two_people(tmp_path, know, ledger):
    know("skin", *npz(tmp_path / "skin.npz", PIXELS[:1]), people={"17", "18"})
    other = npz(tmp_path / "other.npz", PIXELS[1:])
    with pytest.raises(ConfigurationError, match=r"1 patients of data set 'other' are also in 'skin'.* ledger amend"):
        know("other", *other, people={"18", "19"})
    with pytest.raises(ConfigurationError, match="the reason is missing"):
        ledger.distinguish("skin", "other", " ")
    with pytest.raises(ConfigurationError, match="knows no images of 'blood', only of other, skin"):
        ledger.distinguish("skin", "blood", "why not")
    ledger.distinguish("skin", "other", "numbers of two studies")
    know("other", *other, people={"18", "19"})
    with pytest.raises(ConfigurationError, match="1 images"):  # an image is never two
        know("third", *npz(tmp_path / "third.npz", PIXELS[:1]))
    assert "18" not in (tmp_path / "privacy/ledger.jsonl").read_text().split('"')


@pytest.mark.parametrize("spelled", ["p-007", "\uff30-007", "P_007"])
def test_a_patient_has_one_budget_in_whatever_way_two_lists_spell_the_name(tmp_path, know, spelled):
    know("skin", *folder(tmp_path / "a", {"a.png": png(PIXELS[0])}), people=["P-007"])
    with pytest.raises(ConfigurationError, match="skin"):
        know("other", *folder(tmp_path / "b", {"b.png": png(PIXELS[1])}), people=[spelled], fingerprint="2" * 64)


def test_files_of_earlier_versions_are_taken_in_by_a_line(tmp_path, know, ledger):
    earlier = tmp_path / "privacy/images" / f"{'7' * 64}.json"
    earlier.parent.mkdir()
    digest = hashlib.sha256(SKIN["a.png"]).hexdigest()[:32]
    earlier.write_text(json.dumps({"name": "skin", "images": [digest]}))
    with pytest.raises(ConfigurationError, match="1 images of data set 'new' are also in 'skin'"):
        know("new", *folder(tmp_path / "new", SKIN))
    assert next((line.dataset.name, line.state) for line in ledger.content().known) == ("skin", earlier.name)
    earlier.unlink()  # the ledger has them now
    with pytest.raises(ConfigurationError, match="1 images of data set 'new' are also in 'skin'"):
        ledger.content().require_own_images("new", ["skin"])


def test_what_is_known_cannot_be_removed_or_altered_unseen(tmp_path, know, ledger):
    know("skin", *folder(tmp_path / "skin", SKIN))
    (path,) = (tmp_path / "privacy/images").iterdir()
    path.write_text("[]")
    with pytest.raises(DataError, match="was altered; nothing may be released"):
        ledger.content().require_own_images("skin", [])
    path.unlink()
    with pytest.raises(DataError, match=r"No such file.* restored from a backup"):
        ledger.content().require_own_images("skin", [])


def test_scores_are_counted_by_job(tmp_path):
    assert [count_question(tmp_path, job) for job in ("a", "a", "b", "a")] == [1, 2, 1, 3]
