"""A site without labels: the update of the textbook loop, no unnecessary pass, and the reported metrics."""

import copy
import dataclasses
import math

import numpy as np
import pytest
import scipy.special
import torch
from small_site import (
    BATCH,
    COUNTS,
    DIVIDING,
    DRAWS,
    LABELS,
    STEPS,
    TARGET,
    fit_unlabelled,
    flat,
    in_groups,
    network_of,
    sgd,
    softened,
)

from grandrounds.data.batches import index_batches
from grandrounds.data.images.augmentation import draw_views
from grandrounds.data.images.tensors import to_tensor
from grandrounds.errors import ConfigurationError, GrandRoundsError
from grandrounds.methods.fedirm.options import ClientOptions, RelationOptions
from grandrounds.methods.fedirm.relation import Relation
from grandrounds.models.split import head_of


def textbook(network, context, teacher):
    """One round as the paper writes it: every draw passes the whole network, in double precision."""
    optimizer = sgd(network)
    rows = index_batches(context.data.rows("unlabelled"), BATCH, STEPS, context.generator("unlabelled batches"))
    keys = [context.key(f"unlabelled {name} view") for name in ("first", "second")]
    for step, batch in enumerate(rows):
        x, other = (to_tensor(draw_views(context.data.images, batch, "mild", key, step)) for key in keys)
        z = network(x)
        with torch.no_grad():
            taught = teacher(other).softmax(1)
            caught, spare = [], copy.deepcopy(network)
            head_of(spare).register_forward_pre_hook(lambda _, inputs, into=caught: into.append(inputs[0]))
            state = torch.random.get_rng_state()
            for _ in range(DRAWS):
                spare(x)
            # The masks of all draws come from where one pass of the head would take them.
            torch.random.set_rng_state(state)
            mean = head_of(network)(torch.cat(caught)).softmax(1).reshape(DRAWS, len(batch), -1).mean(0)
        keep = -(mean * mean.log()).sum(1) < DIVIDING
        p, label = z.softmax(1), z.argmax(1)
        matching = 0
        for c in range(3):  # the labelled sites do not know the fourth class
            mine = keep & (label == c)
            if mine.any():
                s, m = (z[mine].mean(0) / 2).softmax(0), TARGET.matrix[c].double()
                matching = matching + ((m * (m / s).log()).sum() + (s * (s / m).log()).sum()) / 4
        loss = 15 * (((p - taught) ** 2).sum() / len(batch) + 0.5 * matching)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        alpha = min(1 - 1 / (step + 1), 0.99)
        for theirs, ours in zip(teacher.parameters(), network.parameters(), strict=True):
            theirs.data = alpha * theirs.data + (1 - alpha) * ours.data


def test_the_update_is_that_of_the_loop_that_passes_the_network_for_every_draw(context, monkeypatch):
    # Losses are computed in single precision, which would hide differences.
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    start = network_of().double()
    start.register_forward_pre_hook(lambda module, arguments: (arguments[0].double(),))
    ours, plain, teacher = copy.deepcopy(start), copy.deepcopy(start), copy.deepcopy(start)
    metrics, _, kept = fit_unlabelled(ours, context, relation_weight=0.5)
    assert 0 < metrics["kept"] < 1, "the filter keeps some and drops others"
    with context.torch_seeded("training"):
        textbook(plain, context, teacher)
    moved = flat(plain) - flat(start)
    assert (flat(ours) - flat(plain)).abs().max() < 1e-12 * moved.abs().max()
    for name, value in kept.network.named_parameters():
        torch.testing.assert_close(value, dict(teacher.named_parameters())[name], rtol=0, atol=1e-13)


def passes(network):
    """Batch sizes that go through the first layer and through the head from now on, also of copies of the network."""
    first, last = [], []
    network.stem[0].register_forward_pre_hook(lambda _, inputs: first.append((len(inputs[0]), torch.is_grad_enabled())))
    head_of(network).register_forward_pre_hook(lambda _, inputs: last.append(len(inputs[0])))
    return first, last


@pytest.mark.parametrize(("mc_dropout", "further"), [("head", 0), ("full", DRAWS - 1), ("none", 0)])
def test_a_step_passes_the_student_once_with_gradient_and_the_teacher_once(context, mc_dropout, further):
    network = network_of()
    first, last = passes(network)
    fit_unlabelled(network, context, mc_dropout=mc_dropout)
    step = [(BATCH, True), (BATCH, False)] + [(BATCH, False)] * further
    assert first == step * STEPS
    draws = {"head": [DRAWS * BATCH], "full": [BATCH] * further, "none": []}[mc_dropout]
    assert last == [BATCH, BATCH, *draws] * STEPS


@pytest.mark.parametrize(("options", "forwards"), [({"draws": 8}, 4), ({"mc_dropout": "full", "draws": 12}, 15)])
def test_a_step_with_draws_of_the_head_costs_four_forward_passes_and_the_released_loop_fifteen(
    context, options, forwards
):
    """A backward pass costs two forward ones; the released loop draws eleven times beside the pass of the loss."""
    network = network_of()
    first, _ = passes(network)
    fit_unlabelled(network, context, local=ClientOptions(batch_size=BATCH, steps=1), **options)
    assert len(first) + 2 * sum(gradient for _, gradient in first) == forwards


def test_without_a_certain_prediction_nothing_is_matched_and_nothing_breaks(context):
    updates = []
    for options in ({"uncertainty_threshold": 0.0}, {"relation_weight": 0.0}):
        network = network_of()
        metrics, own, _ = fit_unlabelled(network, context, **options)
        updates.append(flat(network))
        if "uncertainty_threshold" in options:
            assert metrics["kept"] == 0
            assert metrics["empty_batches"] == STEPS
            assert metrics["relation_loss"] == 0
            assert "relation_distance" not in metrics
            assert "pseudo_label_accuracy" not in metrics
            assert not own.known.any()
    assert torch.equal(*updates)
    assert not torch.equal(updates[0], flat(network_of()))


def test_before_there_is_a_target_a_site_learns_consistency_alone(context):
    first, second = network_of(), network_of()
    metrics = fit_unlabelled(first, context, target=None)[0]
    fit_unlabelled(second, context, relation_weight=0.0)
    assert metrics["relation_loss"] == 0
    assert torch.equal(flat(first), flat(second))


def test_a_class_without_support_is_not_matched(context):
    nothing = Relation(TARGET.matrix, torch.zeros(4, dtype=torch.int64))
    first, second = network_of(), network_of()
    metrics = fit_unlabelled(first, context, target=nothing)[0]
    fit_unlabelled(second, context, relation_weight=0.0)
    assert metrics["kept"] > 0
    assert metrics["matched_rows"] == 0
    assert torch.equal(flat(first), flat(second))


def test_hidden_labels_give_the_accuracy_of_pseudo_labels(context):
    """A network whose bias makes every prediction the second class is right as often as the class occurs."""
    network = network_of(dropout=0.01)
    with torch.no_grad():
        head_of(network).bias[1] += 50
    metrics, own, _ = fit_unlabelled(network, context, uncertainty_threshold=math.log(2))
    assert metrics["kept"] == 1
    assert metrics["pseudo_label_accuracy"] == pytest.approx(COUNTS[1] / len(LABELS))
    assert own.support.tolist() == [-1, len(LABELS), -1, -1]
    expected = np.abs(own.matrix[1].numpy() - TARGET.matrix[1].numpy()).mean()
    assert metrics["relation_distance"] == pytest.approx(expected)
    assert metrics["matched_rows"] == 1
    assert metrics["samples"] == len(LABELS)


def test_images_without_a_known_label_give_no_accuracy(context):
    unknown = dataclasses.replace(context.data, labels=np.full(len(LABELS), -1))
    metrics = fit_unlabelled(network_of(), dataclasses.replace(context, data=unknown), uncertainty_threshold=2.0)[0]
    assert metrics["kept"] == 1
    assert "pseudo_label_accuracy" not in metrics


def test_a_confident_class_is_needed_where_the_code_asks_for_it(context):
    everything = fit_unlabelled(network_of(), context, mc_dropout="none")[0]
    assert everything["kept"] == 1
    assert fit_unlabelled(network_of(), context, mc_dropout="none", min_confidence=1.0)[0]["kept"] == 0


def test_rows_of_few_predictions_do_not_leave_an_unlabelled_site(context):
    own = fit_unlabelled(network_of(), context, uncertainty_threshold=2.0, relations=RelationOptions(min_support=0))[1]
    assert own.support.sum() == len(LABELS)
    least = int(own.support.max())
    shown = fit_unlabelled(
        network_of(), context, uncertainty_threshold=2.0, relations=RelationOptions(min_support=least)
    )[1]
    assert torch.equal(shown.support, torch.where(own.support == least, own.support, -1))
    assert (shown.matrix[own.support < least] == 0.25).all()


def test_a_withheld_row_is_not_in_the_reported_distance(context):
    """Every prediction is the second class, and all images are of one patient."""
    network = network_of(dropout=0.01)
    with torch.no_grad():
        head_of(network).bias[1] += 50
    metrics, own, _ = fit_unlabelled(network, in_groups(context, ["p"] * len(LABELS)), uncertainty_threshold=1.0)
    assert metrics["kept"] == 1
    assert own.support.tolist() == [-1] * 4
    assert "relation_distance" not in metrics


def test_support_of_an_unlabelled_sites_row_counts_patients_not_predictions(context):
    """Every prediction is the second class; the first eight images are of one patient, the next two have no group."""
    network = network_of(dropout=0.01)
    with torch.no_grad():
        head_of(network).bias[1] += 50
    names = context.data.names
    one = in_groups(context, ["p"] * 8 + ["", ""] + list(names[10:]))
    local = ClientOptions(batch_size=BATCH, epochs=2)
    relations = RelationOptions(min_support=0)
    metrics, own, _ = fit_unlabelled(network, one, local=local, relations=relations, uncertainty_threshold=1.0)
    assert own.support.tolist() == [0, 1 + 2 + len(names) - 10, 0, 0]
    assert metrics["kept"] == 1, "a share, however often an image was seen"


def test_a_short_batch_is_divided_by_the_full_size_in_the_code(context):
    local = ClientOptions(batch_size=48, steps=1)
    divided = [
        fit_unlabelled(network_of(), context, local=local, consistency_divisor=by)[0]["consistency"]
        for by in ("images", "batch_size")
    ]
    assert divided[1] == pytest.approx(divided[0] * len(LABELS) / 48)


def test_a_single_remaining_image_joins_a_batch_and_its_divisor(context):
    local = ClientOptions(batch_size=len(LABELS) - 1, steps=1)
    divided = [
        fit_unlabelled(network_of(), context, local=local, consistency_divisor=by)[0]["consistency"]
        for by in ("images", "batch_size")
    ]
    assert divided[0] == divided[1] > 0


def test_the_loss_is_weighed_by_the_ramp(context):
    """Three rounds came before, of thirty until the weight is full."""
    local = ClientOptions(batch_size=48, steps=1)

    def first_loss(**options):
        return fit_unlabelled(network_of(), context, local=local, **options)[0]["loss"]

    full = first_loss()
    assert full > 0
    assert first_loss(ramp_length=30.0) == pytest.approx(full * math.exp(-5 * 0.9**2))
    assert first_loss(ramp_length=30.0, ramp_kind="printed") == pytest.approx(full * math.exp(-5 * 0.9))


def test_the_step_size_follows_the_ramp_where_that_is_asked_for(context):
    """Three rounds came before, of four until the weight is full."""
    local, moved = ClientOptions(batch_size=48, steps=1), []
    for follows in (False, True):
        network = network_of()
        ramped = {"ramp_length": 4.0, "ramp_learning_rate": follows, "unlabelled_learning_rate": 0.05}
        fit_unlabelled(network, context, local=local, **ramped)
        moved.append(head_of(network).weight.detach() - head_of(network_of()).weight.detach())
    assert moved[0].abs().max() > 1e-4
    torch.testing.assert_close(moved[1], moved[0] * math.exp(-5 * 0.25**2), rtol=1e-3, atol=1e-7)


@pytest.mark.parametrize(("source", "temperature"), [("logits", 2.0), ("probabilities", 2.0), ("logits", 0.5)])
def test_an_own_matrix_is_made_of_logits_or_of_probabilities_as_asked(context, source, temperature):
    network, outputs = network_of(), []
    head_of(network).register_forward_hook(lambda _, inputs, output: outputs.append(output.detach().numpy()))
    relations = RelationOptions(min_support=0, relation_source=source, temperature=temperature)
    local = ClientOptions(batch_size=48, steps=1)
    own = fit_unlabelled(network, context, local=local, relations=relations, mc_dropout="none")[1]
    # The student's pass comes before the teacher's.
    logits = outputs[0].astype(float)
    vectors = logits if source == "logits" else scipy.special.softmax(logits, axis=1)
    np.testing.assert_allclose(own.matrix, softened(vectors, logits.argmax(axis=1), temperature), atol=1e-6)


def test_dropout_that_is_not_there_cannot_be_drawn(context):
    with pytest.raises(ConfigurationError, match="the head has no dropout"):
        fit_unlabelled(network_of(dropout=None), context)


def test_divergence_of_the_student_is_reported_with_its_step(context):
    network = network_of()
    with torch.no_grad():
        head_of(network).bias[0] = float("nan")
    with pytest.raises(GrandRoundsError, match="training diverged: the prediction of step 0 is not finite"):
        fit_unlabelled(network, context)
