"""``grandrounds figures`` draws what a record has, and reports what is wrong with one that it cannot read."""

import json

import numpy as np
import pytest
from PIL import Image

from grandrounds.data.manifest import Record
from grandrounds.data.partition.files import write_partition
from grandrounds.data.population import communities_of
from grandrounds.evaluation.history import RunHistory
from grandrounds.plotting import rounds_to_show
from grandrounds.reporting.figures.runs import training_drawings
from grandrounds.reporting.runs import read_history

SITES = ["site-1", "site-2", "site-10"]
LIKENESS = [[1.0, 0.8, 0.2], [0.8, 1.0, 0.4], [0.2, 0.4, 1.0]]
ALL = ["learning", "peer_frequency", "similarity", "pseudo_labels"]


def answer(number, site, score, task="train", **metrics):
    scored = {} if score is None else {"validation.n": 8, "validation.accuracy": score, "validation.log_loss": 1.0}
    return {"event": "answer", "round": number, "site": site, "task": task, "metrics": {**metrics, **scored}}


def round_of(number, peers, score):
    return [
        *(answer(number, site, score, accepted=0.5, pseudo_label_accuracy=0.75) for site in SITES),
        {"event": "similarity", "round": number, "sites": SITES, "matrix": LIKENESS},
        {"event": "round_end", "round": number, "answered": SITES, "peers": peers},
    ]


EVENTS = [
    {"event": "start", "rounds": 3, "sites": SITES},
    *round_of(1, {site: [] for site in SITES}, None),
    *round_of(2, {"site-1": ["site-2"], "site-2": ["site-1", "site-10"], "site-10": ["site-2"]}, 0.25),
    {"event": "score", "round": 1, "metric": "accuracy", "mean": 0.25},
    *round_of(3, {"site-1": ["site-2"], "site-2": ["site-1"], "site-10": []}, 0.5),
    answer(4, "site-1", 0.75, "validate"),
    answer(4, "site-1", None, "test", **{"common.accuracy": 1.0}),
]


@pytest.fixture
def record(tmp_path):
    """Write events as a simulation does; returns its workspace."""

    def write(events):
        folder = tmp_path / "run" / "results"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
        return tmp_path / "run"

    return write


@pytest.fixture
def partition(tmp_path):
    def write(sources, scheme="test"):
        sites = {
            site: [Record(f"{site}/{number}", "nevus", source=source) for number, source in enumerate(own)]
            for site, own in sources.items()
        }
        write_partition(sites, tmp_path / "sites", "skin", tmp_path, ("nevus",), {"scheme": scheme}, overwrite=True)
        return tmp_path / "sites"

    return write


def test_all_figures_of_a_fedperl_run_are_written_and_named(run, record, tmp_path):
    named = tmp_path / "groups.json"
    named.write_text(json.dumps(dict.fromkeys(SITES, "camera")))
    result = run("figures", record(EVENTS), "--out", tmp_path / "new" / "out", "--groups", named)
    assert result.exit_code == 0, result.output
    places = [tmp_path / "new" / "out" / f"{name}.png" for name in ALL]
    assert result.stdout.splitlines() == [str(place) for place in places]
    assert sorted(places) == sorted((tmp_path / "new" / "out").iterdir())
    for place in places:
        with Image.open(place) as image:
            assert image.width > 300


def test_the_folder_of_the_events_itself_is_accepted_as_a_run(record):
    history = read_history(record(EVENTS))
    assert history == read_history(record(EVENTS) / "results") == RunHistory(EVENTS, SITES, {}, ())


def test_a_method_without_peers_and_pseudo_labels_has_only_learning_curves(run, record, tmp_path):
    events = [
        {"event": "start", "sites": ["site-1"]},
        answer(2, "site-1", 0.5),
        {"event": "score", "round": 1, "metric": "accuracy", "mean": 0.5},
        {"event": "round_end", "round": 2, "answered": ["site-1"]},
    ]
    assert run("figures", record(events), "--out", tmp_path / "out").exit_code == 0
    assert [place.name for place in (tmp_path / "out").iterdir()] == ["learning.png"]


def test_figures_are_of_the_numbers_in_the_record():
    communities = {"site-1": "camera", "site-2": "film", "site-10": "camera"}
    drawings = training_drawings(RunHistory(EVENTS, SITES, communities, ()), "accuracy", SITES)
    drawn = {drawing.name: drawing.figure for drawing in drawings}
    matrix, own = drawn["peer_frequency"].get_axes()[:2]
    assert [label.get_text() for label in matrix.get_yticklabels()] == ["site-1", "site-10", "site-2"]
    shares = matrix.images[0].get_array().filled(0)
    np.testing.assert_allclose(shares, [[0, 0, 100], [0, 0, 100], [200 / 3, 100 / 3, 0]])
    # The site that has its community for itself could not pick from it.
    assert [text.get_text() for text in own.get_legend().get_texts()] == ["own community: 0 %", "by chance: 50 %"]
    assert [axes.get_title(loc="left") for axes in drawn["similarity"].get_axes()[:2]] == [
        "after round 2", "after round 3",
    ]  # fmt: skip
    assert drawn["learning"].get_axes()[0].lines[0].get_xydata().tolist() == [[1, 0.25], [2, 0.5], [3, 0.75]]
    assert drawn["pseudo_labels"].get_axes()[1].lines[-1].get_xydata().tolist() == [[1, 0.75], [2, 0.75], [3, 0.75]]


@pytest.mark.parametrize(
    ("rounds", "first", "shown"),
    [(range(1, 41), 11, [11, 18, 25, 40]), ([3, 4], None, [3, 4]), ([1], None, [1]), ([1, 2], 5, [2])],
)
def test_shown_are_the_first_round_with_peers_the_last_and_two_between(rounds, first, shown):
    assert rounds_to_show(list(rounds), first) == shown


def test_a_community_is_the_commonest_source_without_what_all_names_begin_with(partition):
    folder = partition({"site-1": ["HAM/a", "HAM/b", "HAM/b"], "site-2": ["HAM/b"], "site-3": ["HAM/a"]})
    expected = {"site-1": "b", "site-2": "b", "site-3": "a"}
    assert communities_of(folder, ["site-1", "site-2", "site-3"]) == expected
    assert communities_of(folder / "partition.json", ["site-1", "site-2"]) == {"site-1": "b", "site-2": "b"}


def test_communities_of_fedperls_clients_are_data_sets_whatever_their_devices(partition):
    folder = partition(
        {"site-1": ["ISIC2019"], "site-6": ["HAM10000/a"], "site-7": ["HAM10000/b", "HAM10000/c"]}, "fedperl"
    )
    assert communities_of(folder, ["site-1", "site-6", "site-7"]) == {
        "site-1": "ISIC2019", "site-6": "HAM10000", "site-7": "HAM10000",
    }  # fmt: skip


def test_communities_can_be_named_in_a_file(tmp_path):
    named = tmp_path / "groups.json"
    named.write_text(json.dumps({"site-1": "a", "site-2": "b", "site-10": "a", "elsewhere": "c"}))
    assert communities_of(named, SITES) == {"site-1": "a", "site-2": "b", "site-10": "a"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"site-1": "a"}', "has no community of site-2, site-10; add it"),
        ('{"site-1": 1}', "must be an object with a community's name for each site"),
        ("[]", "must be a JSON object, got list"),
        ("{", "is not valid JSON"),
        (None, "is not there; give a partition or a JSON file"),
    ],
)
def test_refuses_communities_that_do_not_fit(run, record, tmp_path, content, message):
    named = tmp_path / "groups.json"
    if content is not None:
        named.write_text(content)
    result = run("figures", record(EVENTS), "--out", tmp_path / "out", "--groups", named)
    assert result.exit_code == 1
    assert f"{named} {message}" in result.stderr
    assert not (tmp_path / "out").exists()


def test_refuses_a_folder_without_a_record(run, tmp_path):
    result = run("figures", tmp_path, "--out", tmp_path / "out")
    assert result.exit_code == 1
    assert f"{tmp_path} has no record of a run: neither it nor its folder results has events.jsonl" in result.stderr


def test_refuses_a_record_that_is_damaged(run, record, tmp_path):
    place = record(EVENTS)
    with (place / "results" / "events.jsonl").open("a") as stream:
        stream.write('["event"]\n')
    result = run("figures", place, "--out", tmp_path / "out")
    assert result.exit_code == 1
    assert "events.jsonl is damaged" in result.stderr


def test_refuses_a_record_in_which_nothing_has_happened_yet(run, record, tmp_path):
    result = run("figures", record(EVENTS[:1]), "--out", tmp_path / "out")
    assert result.exit_code == 1
    assert "there is nothing to draw yet" in result.stderr
