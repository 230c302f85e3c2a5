"""Manifests come back as they were written, and every mistake in one is named with its line."""

import csv
import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grandrounds.data.keys import canonical, is_missing
from grandrounds.data.manifest import (
    Record,
    manifest_digest,
    read_manifest,
    require_grouped,
    write_manifest,
)
from grandrounds.errors import DataError

HEADER = "image,label,split,patient\n"
CLASSES = ("melanoma", "nevus")


def written(tmp_path, text, name="manifest.csv"):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_reads_required_optional_and_further_columns(tmp_path):
    path = written(
        tmp_path,
        "age,image,label,split,patient,lesion,source,labelled\n"
        "50,a.png,nevus,train,p1,l1,device,0\n"
        "60,b.png,,val,,,,\n"
        "70,c.png,melanoma,test,p2,,,TRUE\n",
    )
    assert read_manifest(path, CLASSES) == (
        Record("a.png", "nevus", "train", "p1", "l1", "device", labelled=False, more=(("age", "50"),)),
        Record("b.png", "", "val", labelled=False, more=(("age", "60"),)),
        Record("c.png", "melanoma", "test", "p2", more=(("age", "70"),)),
    )


def test_further_columns_come_back_as_they_were_written(tmp_path):
    records = (
        Record("a.png", "nevus", more=(("age", "50"), ("sex", "f"))),
        Record("b.png", "nevus", more=(("device", "x"),)),
    )
    write_manifest(records, tmp_path / "m.csv")
    assert (tmp_path / "m.csv").read_text().splitlines()[0].endswith(",labelled,age,sex,device")
    found = [dict(record.more) for record in read_manifest(tmp_path / "m.csv")]
    assert found == [{"age": "50", "sex": "f", "device": ""}, {"age": "", "sex": "", "device": "x"}]


def test_a_label_without_a_flag_may_be_used(tmp_path):
    records = read_manifest(written(tmp_path, HEADER + "a.png,nevus,train,p\n"))
    assert records[0].labelled


def test_a_record_without_a_label_is_never_labelled():
    assert not Record("a.png", label="", labelled=True).labelled


def test_a_record_refuses_an_unknown_split():
    with pytest.raises(ValueError, match=r"split of image 'a\.png' must be one of train, val, test, got 'dev'"):
        Record("a.png", split="dev")


@pytest.mark.parametrize(
    ("record", "group"),
    [(Record("i", patient="p", lesion="l"), "p"), (Record("i", lesion="l"), "l"), (Record("i"), "i")],
)
def test_the_group_is_the_patient_else_the_lesion_else_the_image(record, group):
    assert record.group == group


def test_a_byte_order_mark_blank_lines_and_blanks_around_values_do_no_harm(tmp_path):
    path = written(tmp_path, b"\xef\xbb\xbfimage, label ,split,patient\r\n\r\n a.png ,nevus, train,p\r\n")
    assert read_manifest(path) == (Record("a.png", "nevus", "train", "p"),)


TEXT = st.text(st.characters(min_codepoint=33, max_codepoint=0x2FF, exclude_categories=["Cc", "Cf", "Zs"]), max_size=8)
NAME = TEXT.filter(lambda text: text == canonical(text) and not is_missing(text, "label"))


@given(
    st.lists(
        st.builds(Record, TEXT.filter(bool), NAME, labelled=st.booleans()), min_size=1, unique_by=lambda r: r.image
    )
)
def test_written_values_are_read_again(tmp_path_factory, records):
    path = tmp_path_factory.mktemp("manifest") / "m.csv"
    write_manifest(records, path)
    assert read_manifest(path) == tuple(records)


def test_writes_fixed_columns_with_unix_line_ends_and_returns_the_digest_of_the_bytes(tmp_path):
    path = tmp_path / "new" / "manifest.csv"
    digest = write_manifest([Record("a,b.png", "nevus", "val", "p", "l", "s"), Record("c.png")], path)
    content = path.read_bytes()
    assert content == (
        b'image,label,split,patient,lesion,source,labelled\n"a,b.png",nevus,val,p,l,s,1\nc.png,,train,,,,0\n'
    )
    assert digest == hashlib.sha256(content).hexdigest() == manifest_digest(path)


def test_a_failed_write_leaves_the_old_manifest_and_nothing_else(tmp_path):
    path = tmp_path / "manifest.csv"
    write_manifest([Record("a.png")], path)
    before = path.read_bytes()
    with pytest.raises(AttributeError):
        write_manifest([Record("b.png"), None], path)
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["manifest.csv"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"manifest\.csv is empty; expected a header with the columns image, label, split, patient"),
        (HEADER, r"manifest\.csv has a header but no rows"),
        ("image,label,split\na,b,train\n", r"line 1: column 'patient' is missing; .* found image, label, split"),
        ("image,label,split,patient,label\na,b,train,p,b\n", r"line 1: column 'label' occurs twice"),
        (HEADER + "a.png,nevus,train,p\n,nevus,train,p\n", r"line 3, column image: the image's name is missing"),
        (HEADER + "a.png,nevus,dev,p\n", r"line 2, column split: expected one of train, val, test, got 'dev'"),
        (
            HEADER + "a.png,nevus,train,p\nb.png,Melanom,train,p\n",
            r"line 3, column label: 'Melanom' is not one of the classes melanoma, nevus; did you mean 'melanoma'\?",
        ),
        (HEADER + "a.png,wart,train,p\n", r"'wart' is not one of the classes melanoma, nevus$"),
        (HEADER + "a.png,nevus,train,p\n\nb.png,nevus,train,p\na.png,,train,p\n", r"line 5, .* is already on line 2"),
        (HEADER + 'a.png,nevus,train,"p\nq"\nb.png,nevus,dev,p\n', r"line 4, column split"),
        (HEADER + "a.png,nevus,train\n", r"line 2 has 3 values, expected 4"),
        (HEADER + "a.png,nevus,train,p,x\n", r"line 2 has 5 values, expected 4"),
        (HEADER + 'a.png,"nevus"x,train,p\n', r"line 2 is not valid CSV"),
        (
            "image,label,split,patient,labelled\na.png,nevus,train,p,maybe\n",
            r"line 2, column labelled: expected 0, 1, true or false, got 'maybe'",
        ),
        (
            HEADER + "a.png,nevus,train,p7\n\nb.png,nevus,test,p7\n",
            r"patient 'p7' is in two splits, train \(line 2\) and test \(line 4\); keep all images of a patient",
        ),
        (
            "image,label,split,patient,lesion\na.png,nevus,val,p1,l\nb.png,nevus,train,p2,l\n",
            r"lesion 'l' is in two splits, val \(line 2\) and train \(line 3\)",
        ),
    ],
)
def test_a_mistake_is_named_with_file_and_line(tmp_path, text, message):
    path = written(tmp_path, text.encode("utf-8", "surrogateescape"))
    with pytest.raises(DataError, match=message) as caught:
        read_manifest(path, CLASSES)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("read", [read_manifest, manifest_digest])
def test_a_file_that_cannot_be_read_is_named(tmp_path, read):
    with pytest.raises(DataError, match=r"nowhere\.csv cannot"):
        read(tmp_path / "nowhere.csv")


def test_a_patient_and_a_lesion_of_the_same_name_are_different_things():
    require_grouped([Record("a", patient="7", split="train"), Record("b", lesion="7", split="test")], "site-1")


def test_grouping_counts_lines_of_the_file(tmp_path):
    records = [Record("a", patient="p"), Record("b"), Record("c", patient="p", split="val")]
    with pytest.raises(DataError, match=r"site-1.*'p'.*2\).*4\)"):
        require_grouped(records, "site-1")
    write_manifest(records, tmp_path / "m.csv")
    with (tmp_path / "m.csv").open(newline="") as stream:
        assert [row[0] for row in csv.reader(stream)][4 - 1] == "c"
