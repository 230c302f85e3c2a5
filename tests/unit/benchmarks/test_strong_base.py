"""The tables of the methods' pages are those of the committed results."""

from types import SimpleNamespace

import pytest

from benchmarks.experiment import read_configuration
from benchmarks.strong_base.report import NAME, PAGES, methods_of, tables
from benchmarks.tables import replace_section


@pytest.mark.parametrize("page", read_configuration(NAME)["pages"])
def test_a_methods_table_is_that_of_the_committed_results(page):
    text = (PAGES / f"{page}.md").read_text(encoding="utf-8")
    assert replace_section(text, NAME, tables()[page]) == text


def test_the_ensemble_has_the_scores_of_the_mean_prediction_of_own_heads():
    own = {"own_heads": {1: {"scores": {"accuracy": 0.5}, "ensemble": {"accuracy": 0.7}}}}
    made = SimpleNamespace(settings={"setting": own}, titles={"own_heads": "own heads"})
    found, titles = methods_of(made, "setting")
    assert found["ensemble"][1]["scores"] == {"accuracy": 0.7}
    assert set(found) == set(titles)
