"""What a label is, task by task: cells, losses, pseudo-labels, decisions and questions against hand-computed numbers."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import log_loss

import grandrounds as gr
from grandrounds.errors import ConfigurationError, DataError
from grandrounds.protocol.task import Task
from grandrounds.protocol.tasks import FINDINGS, SINGLE, register_task, task_entry, task_named, task_of
from grandrounds.seeding import torch_generator
from tests.federation.ordinal import GRADES

TASKS = pytest.mark.parametrize("task", [SINGLE, FINDINGS], ids=lambda task: task.name)
CHEST = ("effusion", "mass", "nodule")
LN2, LN3, LN4 = math.log(2), math.log(3), math.log(4)
LOGITS = torch.tensor([[0.0, LN3], [-LN3, 0.0]])  # of findings: probabilities 1/2, 3/4, 1/4, 1/2
# Two logits (a, 0) of class 0 cost ln(1 + exp(-a)); these two cost 0.2 and 0.6.
COSTS_02_06 = torch.tensor([[-math.log(math.expm1(0.2)), 0.0], [-math.log(math.expm1(0.6)), 0.0]], dtype=torch.float64)
ZERO = torch.tensor([0, 0])
ONE = torch.tensor([[2.0, 0.0, 0.0]], dtype=torch.float64)
EVERY = torch.tensor([True, True])


@TASKS
def test_a_task_is_found_by_its_name_and_by_what_names_it(task):
    assert task_named(task.name) is task_of(task_entry(task)) is task
    assert task.default_metric in task.selectable
    assert set(task.scores) <= set(task.selectable)
    assert task.second_metric != task.default_metric


def test_without_a_name_each_image_has_one_class_and_a_name_of_the_package_cannot_be_taken():
    assert task_of({}) is SINGLE
    assert task_entry(SINGLE) == {}
    with pytest.raises(ConfigurationError, match=r"problem\.task .*got 'regression'"):
        task_of({"task": "regression"})
    with pytest.raises(TypeError, match="abstract"):
        register_task(Task())


def test_what_compares_classes_is_refused_for_findings_with_the_remedy():
    SINGLE.require_exclusive("FedAlignController")
    with pytest.raises(
        ConfigurationError, match=r"^problem\.task=multi is not supported by mdhfl; the jobs .* and ridge$"
    ):
        FINDINGS.require_exclusive("mdhfl")
    with pytest.raises(ConfigurationError, match=r"adaptive_thresholds; set it to false$"):
        FINDINGS.require_exclusive("adaptive_thresholds", "set it to false")


@pytest.mark.parametrize(
    ("task", "label", "row", "present", "mentioned"),
    [
        (SINGLE, "", -1, (), ()),
        (SINGLE, "mass", 1, ("mass",), ("mass",)),
        (SINGLE, "fracture", -1, ("fracture",), ("fracture",)),
        (FINDINGS, "", [-1, -1, -1], (), ()),
        (FINDINGS, "none", [0, 0, 0], (), ()),
        (FINDINGS, "mass|effusion", [1, 1, 0], ("mass", "effusion"), ("mass", "effusion")),
        (FINDINGS, "?mass", [0, -1, 0], (), ("mass",)),
        (FINDINGS, " mass ", [0, 1, 0], ("mass",), ("mass",)),
    ],
)
def test_a_cell_says_what_is_there_and_what_is_unknown(task, label, row, present, mentioned):
    labels = task.read_labels([label, "mass"], CHEST)
    assert labels[0].tolist() == row
    assert (task.names_in(label), task.mentioned_in(label)) == (present, mentioned)
    assert task.known(labels).tolist() == [bool((np.array(row) >= 0).any()), True]
    assert task.class_counts(labels, 3).tolist() == [("effusion" in present), 1 + ("mass" in present), 0]
    assert task.names_in(task.cell(["mass"])) == ("mass",)


@pytest.mark.parametrize(
    ("task", "label"),
    [
        (SINGLE, "masses"),
        *((FINDINGS, one) for one in ("none|mass", "mass|mass", "mass|?mass", "mass|", "fracture")),
    ],
)
def test_a_cell_that_contradicts_itself_or_the_vocabulary_is_refused(task, label):
    with pytest.raises(DataError, match=r"^here: .*'"):
        task.require_label(label, CHEST, "here")


@TASKS
def test_labels_of_no_image_have_the_shape_of_labels(task):
    labels = task.read_labels([], CHEST)
    assert labels.shape == (0, *task.read_labels([""], CHEST).shape[1:])
    assert {len(one.rows) for one in task.questions(labels, np.zeros((0, 3)))} == {0}


@pytest.mark.parametrize("weights", [None, torch.tensor([0.5, 2.0, 1.0])])
def test_uniform_logits_over_three_classes_cost_ln_3_whatever_the_weights(weights):
    assert SINGLE.loss(torch.zeros(3, 3), torch.tensor([0, 1, 2]), weights).item() == pytest.approx(LN3, rel=1e-6)


@pytest.mark.parametrize("weighted", [False, True])
def test_the_loss_of_classes_agrees_with_scikit_learns_weighted_log_loss(weighted):
    generator = torch_generator("supervised loss")
    logits = torch.randn(20, 4, generator=generator, dtype=torch.float64)
    labels = torch.randint(4, (20,), generator=generator)
    weights = torch.tensor([0.5, 2.0, 1.0, 100.0])
    sample_weight = weights[labels].numpy() if weighted else None
    expected = log_loss(labels, logits.softmax(dim=1), labels=range(4), sample_weight=sample_weight)
    assert SINGLE.loss(logits, labels, weights if weighted else None).item() == pytest.approx(expected, rel=1e-9)


def test_the_loss_of_findings_is_the_mean_over_those_that_are_known():
    labels = torch.tensor([[1, 0], [-1, 1]])
    # -ln 1/2, -ln 1/4 and -ln 1/2
    assert FINDINGS.loss(LOGITS, labels).item() == pytest.approx((LN2 + LN4 + LN2) / 3)
    weighted = FINDINGS.loss(LOGITS, labels, torch.tensor([2.0, 5.0]))
    assert weighted.item() == pytest.approx((2 * LN2 + LN4 + 5 * LN2) / 3), "only positive images are weighted"


@pytest.mark.parametrize(
    ("task", "labels", "weights"),
    [
        (SINGLE, ZERO, torch.tensor([0.0, 1.0])),
        (SINGLE, ZERO[:0], None),
        (SINGLE, ZERO[:0], torch.tensor([1.0, 1.0])),
        (FINDINGS, torch.full((2, 2), -1), None),
    ],
)
def test_a_batch_without_weight_or_answer_gives_zero_loss_and_zero_gradient(task, labels, weights):
    logits = torch.full((len(labels), 2), 3.0, requires_grad=True)
    loss = task.loss(logits, labels, weights)
    loss.backward()
    assert loss.item() == 0.0
    assert torch.equal(logits.grad, torch.zeros_like(logits))


@pytest.mark.parametrize(("smoothing", "expected"), [(0.0, 0.239545), (0.1, 0.372878), (1.0, 1.572878)])
def test_smoothing_matches_the_hand_computed_sample(smoothing, expected):
    assert SINGLE.smoothed_loss([ONE], torch.tensor([0]), smoothing).item() == pytest.approx(expected, abs=5e-7)


def test_views_are_added_and_samples_averaged():
    # The cross-entropies are 0.239545 and 2.239545 for the two samples of the first view, ln 3 for those of the other.
    loss = SINGLE.smoothed_loss([ONE.repeat(2, 1), torch.zeros(2, 3)], torch.tensor([0, 1]))
    assert loss.item() == pytest.approx((0.239545 + 2.239545) / 2 + LN3, abs=1e-6)
    assert SINGLE.smoothed_loss([torch.zeros(0, 3)] * 2, ZERO[:0], 0.1).item() == 0.0


def test_smoothing_is_shared_by_both_answers_to_a_finding():
    known, other = LN2 - math.log(0.75) + LN2, LN2 + LN4 + LN2
    loss = FINDINGS.smoothed_loss([LOGITS, LOGITS], torch.tensor([[1, -1], [0, 0]]), 0.2)
    assert loss.item() == pytest.approx(2 * (0.9 * known + 0.1 * other) / 3)


@pytest.mark.parametrize(
    ("prediction", "label", "accepted"),
    [
        ((0.65, 0.20, 0.15), 0, True),
        ((0.5, 0.3, 0.2), 0, False),
        ((0.375, 0.375, 0.25), 0, False),
        ((0.1, 0.2, 0.7), 2, True),
        ((0.6, 0.4), 0, True),
    ],
)
def test_a_class_is_accepted_from_the_threshold_on_and_the_lower_of_two_equal(prediction, label, accepted):
    pseudo = SINGLE.pseudo_labels(torch.tensor([prediction]), threshold=0.6)
    assert (pseudo.labels.tolist(), pseudo.accepted.tolist()) == ([label], [accepted])
    assert pseudo.confidence.tolist() == pytest.approx([max(prediction)])


def test_findings_are_accepted_as_present_and_as_absent_and_each_class_can_have_a_threshold():
    found = FINDINGS.pseudo_labels(torch.tensor([[0.75, 0.74, 0.25, 0.26, 0.5]]), 0.75)
    assert found.labels.tolist() == [[1, 1, 0, 0, 1]]
    assert found.accepted.tolist() == [[True, False, True, False, False]]
    pseudo = SINGLE.pseudo_labels(torch.tensor([[0.7, 0.3], [0.3, 0.7], [0.1, 0.9]]), torch.tensor([0.6, 0.8]))
    assert pseudo.accepted.tolist() == [True, False, True]


@TASKS
@given(low=st.floats(0, 1), high=st.floats(0, 1), mass=st.floats(0, 1))
def test_a_higher_threshold_never_accepts_more(task, low, high, mass):
    low, high = sorted((low, high))
    probabilities = torch.tensor([[mass, 1 - mass]], dtype=torch.float64)
    few, many = (task.pseudo_labels(probabilities, one).accepted for one in (high, low))
    assert (few <= many).all()


@TASKS
@pytest.mark.parametrize("threshold", [-0.1, 60.0, math.nan])
def test_a_threshold_outside_0_to_1_is_refused(task, threshold):
    with pytest.raises(ValueError, match="threshold must be between 0 and 1, got"):
        task.pseudo_labels(torch.tensor([[0.5, 0.5]]), threshold)


@pytest.mark.parametrize(
    ("task", "logits", "labels", "accepted", "reduction", "expected"),
    [
        (SINGLE, COSTS_02_06, ZERO, EVERY, "accepted_mean", 0.8 / 2),
        (SINGLE, COSTS_02_06, ZERO, EVERY, "batch_mean", 0.8 / 4),
        (
            FINDINGS,
            LOGITS,
            torch.tensor([[1, 1], [0, 0]]),
            torch.tensor([[True, True], [False, True]]),
            "accepted_mean",
            3,
        ),
        (
            FINDINGS,
            LOGITS,
            torch.tensor([[1, 1], [0, 0]]),
            torch.tensor([[True, True], [False, True]]),
            "batch_mean",
            8,
        ),
    ],
)
def test_reductions_of_a_batch_of_four_match_the_hand_computed_one(task, logits, labels, accepted, reduction, expected):
    loss = task.pseudo_label_loss(logits, labels, accepted, 4, reduction).item()
    wanted = (LN2 - math.log(0.75) + LN2) / expected if expected >= 1 else expected
    assert loss == pytest.approx(wanted)


@pytest.mark.parametrize("reduction", ["accepted_mean", "batch_mean"])
@pytest.mark.parametrize("batch_size", [0, 16])
def test_nothing_accepted_gives_zero_and_a_graph(reduction, batch_size):
    model = torch.nn.Linear(5, 3)
    loss = SINGLE.pseudo_label_loss(model(torch.zeros(0, 5)), ZERO[:0], EVERY[:0], batch_size, reduction)
    loss.backward()
    assert loss.item() == 0.0
    assert torch.equal(model.weight.grad, torch.zeros(3, 5))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: SINGLE.loss(torch.zeros(2, 3), torch.tensor([0])), r"got \(2, 3\) and \(1,\)"),
        (lambda: SINGLE.loss(torch.zeros(2, 3), torch.zeros(2, 3)), r"got \(2, 3\) and \(2, 3\)"),
        (
            lambda: SINGLE.loss(torch.zeros(2, 3), ZERO, torch.ones(2)),
            r"class_weights must have shape \(3,\), got \(2,\)",
        ),
        (lambda: SINGLE.smoothed_loss([ONE, ONE[0]], torch.tensor([0])), r"got \(3,\) in view 1 and \(1,\)"),
        (lambda: SINGLE.pseudo_labels(torch.tensor([[0.75, 0.75, 0.5]]), 0.6), "row 0 of probabilities sums to 2"),
        (lambda: SINGLE.pseudo_label_loss(COSTS_02_06, ZERO[:1], EVERY, 4, "batch_mean"), r"got \(2, 2\) and \(1,\)"),
        (lambda: SINGLE.pseudo_label_loss(COSTS_02_06, ZERO, EVERY, 1, "batch_mean"), "batch_size must be at least 2"),
        (lambda: SINGLE.questions(np.zeros(2, np.int64), np.ones((1, 2))), r"got \(2,\) and \(1, 2\)"),
        (lambda: FINDINGS.loss(LOGITS, ZERO), r"of shape \(batch, findings\), got \(2, 2\) and \(2,\)"),
        (lambda: FINDINGS.loss(LOGITS, torch.zeros(2, 2), torch.ones(3)), r"class_weights must have shape \(2,\)"),
        (lambda: FINDINGS.questions(np.zeros((1, 2), np.int64), np.full((1, 2), 1.5)), r"must be in \[0, 1\]"),
    ],
)
def test_what_does_not_fit_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_one_question_has_all_classes_and_a_finding_is_one_with_two():
    probabilities = np.array([[0.25, 0.75], [0.5, 0.5], [0.9, 0.1]], np.float32)
    (single,) = SINGLE.questions(np.array([1, -1, 1]), probabilities)
    assert [one.tolist() for one in single[:4]] == [
        [0, 2],
        [1, 1],
        [1, 0],
        probabilities[[0, 2]].astype(float).tolist(),
    ]
    first, second = FINDINGS.questions(np.array([[1, -1], [0, 1], [-1, -1]]), probabilities)
    assert [one.tolist() for one in first[:4]] == [[0, 1], [1, 0], [0, 1], [[0.75, 0.25], [0.5, 0.5]]]
    assert [one.tolist() for one in second[:4]] == [[1], [1], [1], [[0.5, 0.5]]]
    assert (single.scored, first.scored, second.scored) == ((0, 1), (1,), (1,))
    assert SINGLE.answered(np.array([1, -1, 1]), probabilities).tolist() == pytest.approx([0.75, 0.1])
    assert FINDINGS.answered(np.array([[1, -1], [0, 1]]), probabilities[:2]).tolist() == pytest.approx([0.25, 0.5, 0.5])


@TASKS
def test_the_entries_of_answers_have_names_and_labels_say_which(task):
    names = task.answer_names(CHEST)
    assert len(names) == math.prod(task.answers(3)) == task.relation_shape(3)[0]
    labels = task.read_labels(["mass", "", "effusion"], CHEST)
    images, entries = task.entries(labels)
    vectors, rows, known = task.as_answers(torch.zeros(3, 3), torch.from_numpy(labels))
    assert rows[known].tolist() == entries.tolist()
    assert vectors.shape[1] == task.relation_shape(3)[1]
    said = {names[entry] for image, entry in zip(images, entries, strict=True) if image == 0}
    assert said == ({"mass"} if len(names) == 3 else {"effusion absent", "mass present", "nodule absent"})


@TASKS
def test_a_row_of_the_table_of_predictions_is_read_as_it_was_written(task):
    labels = task.read_labels(["mass", "", "nodule", "mass"], CHEST)
    singles = np.array([[0.2, 0.5, 0.3], [1.0, 0.0, 0.0], [0.1, 0.2, 0.7], [1e-9, 0.7, 0.3]], np.float32)
    singles[3, 1] = np.nextafter(singles[2, 2], np.float32(1))  # the order of these two must not be lost
    decided = task.decide(singles[::-1])  # not those of the row's probabilities
    for label, row, called in zip(labels, singles.tolist(), decided, strict=True):
        cells = task.prediction_cells(label, row, called, CHEST)
        assert len(cells) == len(task.prediction_header(CHEST))
        again, probabilities, predicted = task.read_prediction(cells, CHEST)
        assert np.array_equal([again, predicted], [label, called])
        assert np.array_equal(np.array(probabilities, np.float32), np.array(row, np.float32))
        with pytest.raises(ValueError, match="cells after the image"):
            task.read_prediction(cells[:-1], CHEST)
        with pytest.raises(ValueError, match=r"sum to one|in \[0, 1\]"):
            task.read_prediction([*cells[:-1], "1.5"], CHEST)


@pytest.mark.parametrize("task", [SINGLE, FINDINGS, GRADES], ids=lambda task: task.name)
def test_every_task_keeps_the_public_contract(task):
    gr.testing.check_task(task)


def test_the_contract_names_what_a_wrong_task_breaks():
    class Forgetful(type(SINGLE)):
        name = "forgetful"

        def decide(self, probabilities):
            return probabilities

    with pytest.raises(AssertionError, match=r"task forgetful: decide has shape \(4, 3\), labels have \(4,\)"):
        gr.testing.check_task(Forgetful())


def test_predicted_cells_are_as_in_a_manifest_and_findings_can_have_thresholds():
    probabilities = np.array([[0.7, 0.1, 0.2], [0.1, 0.3, 0.6]])
    assert SINGLE.predicted_cells(probabilities, np.array([1, 2]), CHEST, {}) == ["mass", "nodule"]
    called, limits = np.array([[1, 1, 0], [0, 0, 1]]), {"mass": 0.3, "nodule": 0.7}
    assert FINDINGS.predicted_cells(probabilities, called, CHEST, limits) == ["effusion", "mass"]
    assert FINDINGS.predicted_cells(probabilities, called, CHEST, {}) == ["effusion|mass", "nodule"]
    for task, name in ((SINGLE, "mass"), (FINDINGS, "fracture")):
        with pytest.raises(ConfigurationError, match=f"thresholds: '{name}'"):
            task.predicted_cells(probabilities, task.decide(probabilities), CHEST, {name: 0.3})
