"""Every scheme keeps the public contract, and the contract finds what a scheme does wrong."""

import pytest

import grandrounds as gr
from grandrounds.data.own_schemes import OWN_SCHEMES, SCHEME_NAMES
from grandrounds.data.partition.groups import divide_groups
from grandrounds.data.partition.schemes import SCHEMES, SiteScheme
from grandrounds.errors import ConfigurationError, DataError
from tests.federations import write_pictures


@pytest.fixture(autouse=True)
def own_schemes(monkeypatch):
    """Each test has a registry of its own."""
    monkeypatch.setattr(OWN_SCHEMES, "entries", {})


def names(options):
    return [f"site-{number + 1}" for number in range(options.site_count)]


class Halves:
    def sites(self, records, options, generator):
        return divide_groups(records, dict.fromkeys(names(options), 1 / options.site_count), generator)


class Torn:
    def sites(self, records, options, generator):
        return {name: records[number :: options.site_count] for number, name in enumerate(names(options))}


class Twice:
    def sites(self, records, options, generator):
        return dict.fromkeys(names(options), records)


class Empty:
    def sites(self, records, options, generator):
        return {"site-1": records, "site-2": ()}


class Restless:
    drawn = 0

    def sites(self, records, options, generator):
        Restless.drawn += 1
        return {f"site-{Restless.drawn}": records}


@pytest.mark.parametrize("name", [name for name, scheme in SCHEMES.items() if isinstance(scheme, SiteScheme)])
def test_every_scheme_of_the_package_that_names_sites_keeps_the_contract(name):
    class Built:
        def sites(self, records, options, generator):
            return SCHEMES[name].sites(records, [record.source for record in records], options)

    gr.testing.check_scheme(Built)


def test_the_package_has_a_class_for_each_name():
    assert set(SCHEME_NAMES) == {*SCHEMES, "auto"}


@pytest.mark.parametrize(
    ("scheme", "fault"),
    [
        (Torn, "patient p0 is at site-1 and site-2"),
        (Twice, "0.png is at site-1 and site-2"),
        (Empty, "gives no record to site-2"),
        (Restless, "other sites for one state"),
    ],
)
def test_a_scheme_that_breaks_the_contract_is_named_with_its_fault(scheme, fault):
    with pytest.raises(AssertionError, match=f"scheme {scheme.__name__}.*{fault}"):
        gr.testing.check_scheme(scheme)


@pytest.fixture
def table(tmp_path):
    write_pictures(tmp_path / "images", [f"{i}.png" for i in range(120)])
    path = tmp_path / "all.csv"
    rows = [f"{i}.png,{'ab'[i % 2]},train,p{i // 2},clinic-{i % 3 // 2}" for i in range(120)]
    path.write_text("image,label,split,patient,source\n" + "\n".join(rows) + "\n")
    return path


def divide(table, out, **options):
    return gr.Sites.from_manifest(table, table.parent / "images", out, splits="draw", **options).counts()


def test_a_registered_scheme_divides_a_data_set_and_splits_are_drawn_for_it(table, tmp_path):
    gr.register_scheme("halves")(Halves)
    counts = divide(table, tmp_path / "out", scheme="halves", sites=2)
    assert counts[["training", "validation", "test"]].to_numpy().sum() == 120
    assert (counts[["training", "validation", "test"]] > 0).all().all()


def test_a_scheme_is_refused_with_what_is_wrong(table, tmp_path):
    with pytest.raises(ConfigurationError, match="must be a class with a method sites"):
        gr.register_scheme("other")(object)
    gr.register_scheme("empty")(Empty)
    with pytest.raises(DataError, match="scheme empty gives no image to site-2"):
        divide(table, tmp_path / "out", scheme="empty", sites=2)
    with pytest.raises(ConfigurationError, match=r"scheme .*got 'halves'"):
        divide(table, tmp_path / "out", scheme="halves", sites=2)
    gr.register_scheme("iid")(Halves)
    with pytest.raises(ConfigurationError, match="scheme 'iid' is one of the package's own"):
        divide(table, tmp_path / "out", scheme="halves", sites=2)
