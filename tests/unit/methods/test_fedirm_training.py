"""What FedIRM's sites do in a round: the update of the textbook loop, no pass too many, and what is told of it."""

import copy
import dataclasses
import math

import numpy as np
import pytest
import scipy.special
import torch

from grandrounds.data.augment import draw_views, to_tensor
from grandrounds.data.batches import index_batches
from grandrounds.data.phantom import PHANTOM_CLASSES, draw_phantom
from grandrounds.data.site import SiteData
from grandrounds.errors import ConfigurationError, DataError, GrandRoundsError
from grandrounds.federation.context import SiteContext, StateCache
from grandrounds.federation.problem import Problem
from grandrounds.methods.fedirm.options import LabelledOptions, LocalOptions, RelationOptions, UnlabelledOptions
from grandrounds.methods.fedirm.relation import Relation
from grandrounds.methods.fedirm.self_training import train_on_own_labels
from grandrounds.methods.fedirm.training import train_labelled
from grandrounds.methods.fedirm.unlabelled import SiteTeacher, statistics_of_passes, train_unlabelled
from grandrounds.models.registry import build_model, head_of
from grandrounds.seeding import numpy_generator, torch_generator

SIZE, BATCH, DRAWS = 32, 8, 5
COUNTS = (12, 9, 2, 1)
LABELS = np.repeat(np.arange(4), COUNTS)
LOCAL = LocalOptions(batch_size=BATCH)
STEPS = LOCAL.pass_steps(len(LABELS))
# Untrained predictions lie close together; this threshold divides them.
DIVIDING = 1.36
TARGET = Relation(torch.eye(4) * 0.6 + 0.1, torch.tensor([2, 2, 2, 0]))


@pytest.fixture(scope="module")
def data():
    generator = numpy_generator("fedirm images")
    drawn = [draw_phantom(PHANTOM_CLASSES[label], "device-1", SIZE, generator) for label in LABELS]
    names = tuple(str(number) for number in range(len(LABELS)))
    return SiteData(
        images=np.stack(drawn),
        labels=LABELS,
        labelled=np.zeros(len(LABELS), bool),
        split=np.full(len(LABELS), "train"),
        names=names,
        groups=names,
        classes=PHANTOM_CLASSES,
    )


@pytest.fixture
def context(data, tmp_path):
    problem = Problem("phantom", PHANTOM_CLASSES, SIZE, dropout=0.5)
    return SiteContext(
        "site-1", 4, problem, 7, data, torch.device("cpu"), "float32", lambda: False, StateCache(tmp_path)
    )


@pytest.fixture
def labelled(context):
    known = dataclasses.replace(context.data, labelled=np.ones(len(LABELS), bool))
    return dataclasses.replace(context, data=known)


def network_of(seed=0, dropout=0.5):
    return build_model(Problem("phantom", PHANTOM_CLASSES, SIZE, dropout=dropout).model_spec(pretrained=False), seed)


def sgd(network, rate=0.05):
    return torch.optim.SGD(network.parameters(), lr=rate)


def listen(network, context, *, target=TARGET, local=LOCAL, relations=RelationOptions(), kept=None, **options):  # noqa: B008
    chosen = UnlabelledOptions(**{"draws": DRAWS, "ramp_length": 0.0, "uncertainty_threshold": DIVIDING, **options})
    teacher = SiteTeacher(network, chosen, kept or {})
    metrics, own = train_unlabelled(network, sgd(network), context, local, chosen, relations, target, teacher)
    return metrics, own, teacher


def tell(network, context, relations=None, local=LOCAL, rate=0.05, **options):
    chosen = LabelledOptions(**{"two_views": False, **options})
    return train_labelled(network, sgd(network, rate), context, local, chosen, relations or RelationOptions())


def flat(network):
    return torch.cat([value.flatten() for value in network.state_dict().values() if value.is_floating_point()])


# Sites without labels.


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
    metrics, _, kept = listen(ours, context, relation_weight=0.5)
    assert 0 < metrics["kept"] < 1, "the filter keeps some and drops others"
    with context.torch_seeded("training"):
        textbook(plain, context, teacher)
    moved = flat(plain) - flat(start)
    assert (flat(ours) - flat(plain)).abs().max() < 1e-12 * moved.abs().max()
    for name, value in kept.network.named_parameters():
        torch.testing.assert_close(value, dict(teacher.named_parameters())[name], rtol=0, atol=1e-13)


def passes(network):
    """Batch sizes that go through the first layer and through the head from now on, of copies of the network as well."""
    first, last = [], []
    network.stem[0].register_forward_pre_hook(lambda _, inputs: first.append((len(inputs[0]), torch.is_grad_enabled())))
    head_of(network).register_forward_pre_hook(lambda _, inputs: last.append(len(inputs[0])))
    return first, last


@pytest.mark.parametrize(("mc_dropout", "further"), [("head", 0), ("full", DRAWS - 1), ("none", 0)])
def test_a_step_passes_the_student_once_with_gradient_and_the_teacher_once(context, mc_dropout, further):
    network = network_of()
    first, last = passes(network)
    listen(network, context, mc_dropout=mc_dropout)
    step = [(BATCH, True), (BATCH, False)] + [(BATCH, False)] * further
    assert first == step * STEPS
    draws = {"head": [DRAWS * BATCH], "full": [BATCH] * further, "none": []}[mc_dropout]
    assert last == [BATCH, BATCH, *draws] * STEPS


def test_without_a_certain_prediction_nothing_is_matched_and_nothing_breaks(context):
    updates = []
    for options in ({"uncertainty_threshold": 0.0}, {"relation_weight": 0.0}):
        network = network_of()
        metrics, own, _ = listen(network, context, **options)
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
    metrics = listen(first, context, target=None)[0]
    listen(second, context, relation_weight=0.0)
    assert metrics["relation_loss"] == 0
    assert torch.equal(flat(first), flat(second))


def test_a_class_that_nobody_supports_is_not_matched(context):
    nothing = Relation(TARGET.matrix, torch.zeros(4, dtype=torch.int64))
    first, second = network_of(), network_of()
    listen(first, context, target=nothing)
    listen(second, context, relation_weight=0.0)
    assert torch.equal(flat(first), flat(second))


def test_hidden_labels_tell_how_many_pseudo_labels_are_right(context):
    """A network whose bias makes every prediction the second class is right as often as the class occurs."""
    network = network_of(dropout=0.01)
    with torch.no_grad():
        head_of(network).bias[1] += 50
    metrics, own, _ = listen(network, context, uncertainty_threshold=math.log(2))
    assert metrics["kept"] == 1
    assert metrics["pseudo_label_accuracy"] == pytest.approx(COUNTS[1] / len(LABELS))
    assert own.support.tolist() == [-1, len(LABELS), -1, -1]
    expected = np.abs(own.matrix[1].numpy() - TARGET.matrix[1].numpy()).mean()
    assert metrics["relation_distance"] == pytest.approx(expected)
    assert metrics["samples"] == len(LABELS)


def test_images_without_a_known_label_tell_nothing_of_accuracy(context):
    unknown = dataclasses.replace(context.data, labels=np.full(len(LABELS), -1))
    metrics = listen(network_of(), dataclasses.replace(context, data=unknown), uncertainty_threshold=2.0)[0]
    assert metrics["kept"] == 1
    assert "pseudo_label_accuracy" not in metrics


def test_a_confident_class_is_needed_where_the_code_asks_for_it(context):
    everything = listen(network_of(), context, mc_dropout="none")[0]
    assert everything["kept"] == 1
    assert listen(network_of(), context, mc_dropout="none", min_confidence=1.0)[0]["kept"] == 0


def test_rows_of_few_predictions_do_not_leave_an_unlabelled_site(context):
    own = listen(network_of(), context, uncertainty_threshold=2.0, relations=RelationOptions(min_support=0))[1]
    assert own.support.sum() == len(LABELS)
    least = int(own.support.max())
    shown = listen(network_of(), context, uncertainty_threshold=2.0, relations=RelationOptions(min_support=least))[1]
    assert torch.equal(shown.support, torch.where(own.support == least, own.support, -1))
    assert (shown.matrix[own.support < least] == 0.25).all()


def in_groups(context, groups):
    """The same images, of other patients."""
    return dataclasses.replace(context, data=dataclasses.replace(context.data, groups=tuple(groups)))


def test_a_row_of_an_unlabelled_site_stands_on_patients_not_on_predictions(context):
    """Every prediction is the second class; the first eight images are of one patient, the next two have no group."""
    network = network_of(dropout=0.01)
    with torch.no_grad():
        head_of(network).bias[1] += 50
    names = context.data.names
    one = in_groups(context, ["p"] * 8 + ["", ""] + list(names[10:]))
    local = LocalOptions(batch_size=BATCH, epochs=2)
    own = listen(network, one, local=local, relations=RelationOptions(min_support=0), uncertainty_threshold=1.0)[1]
    assert own.support.tolist() == [0, 1 + 2 + len(names) - 10, 0, 0]


def test_a_short_batch_is_divided_by_the_full_size_in_the_code(context):
    local = LocalOptions(batch_size=48, steps=1)
    divided = [
        listen(network_of(), context, local=local, consistency_divisor=by)[0]["consistency"]
        for by in ("images", "batch_size")
    ]
    assert divided[1] == pytest.approx(divided[0] * len(LABELS) / 48)


def test_an_image_that_is_left_over_joins_a_batch_and_its_divisor(context):
    local = LocalOptions(batch_size=len(LABELS) - 1)
    listen(network_of(), context, local=local, consistency_divisor="batch_size")


def test_the_loss_is_weighed_by_the_ramp(context):
    """Three rounds came before, of thirty until the weight is full."""
    local = LocalOptions(batch_size=48, steps=1)

    def first_loss(**options):
        return listen(network_of(), context, local=local, **options)[0]["loss"]

    full = first_loss()
    assert full > 0
    assert first_loss(ramp_length=30.0) == pytest.approx(full * math.exp(-5 * 0.9**2))
    assert first_loss(ramp_length=30.0, ramp_kind="printed") == pytest.approx(full * math.exp(-5 * 0.9))


@pytest.mark.parametrize("source", ["logits", "probabilities"])
def test_an_own_matrix_is_made_of_logits_or_of_probabilities_as_asked(context, source):
    network, outputs = network_of(), []
    network.register_forward_hook(lambda _, inputs, output: outputs.append(output.detach().numpy()))
    relations = RelationOptions(min_support=0, relation_source=source)
    local = LocalOptions(batch_size=48, steps=1)
    own = listen(network, context, local=local, relations=relations, mc_dropout="none")[1]
    # The student's pass comes before the teacher's.
    logits = outputs[0].astype(float)
    vectors = logits if source == "logits" else scipy.special.softmax(logits, axis=1)
    np.testing.assert_allclose(own.matrix, softened(vectors, logits.argmax(axis=1)), atol=1e-6)


def test_sharper_teachers_are_nearer_to_one_class(context):
    network, images = network_of(), torch.rand(4, 3, SIZE, SIZE, generator=torch_generator("sharp"))
    plain, sharp = (
        SiteTeacher(network, UnlabelledOptions(teacher_temperature=temperature), {}) for temperature in (1.0, 0.5)
    )
    for teacher in (plain, sharp):
        teacher.network.eval()
    squared = plain.predict(images) ** 2
    torch.testing.assert_close(sharp.predict(images), squared / squared.sum(1, keepdim=True))


def test_a_persistent_teacher_goes_on_where_it_was_and_a_reset_one_begins_anew(context):
    network = network_of()
    _, _, first = listen(network, context, teacher="ema_persistent")
    kept = first.state()
    assert kept["step"] == STEPS
    again = SiteTeacher(network_of(3), UnlabelledOptions(), kept)
    before = dict(first.network.named_parameters())
    assert all(torch.equal(value, before[name]) for name, value in again.network.named_parameters())
    assert again.state()["step"] == STEPS
    for kind in ("ema_reset", "none"):
        anew = SiteTeacher(network_of(3), UnlabelledOptions(teacher=kind), kept)
        assert torch.equal(flat(anew.network), flat(network_of(3)))
        assert anew.state() == {}


def test_without_a_moving_average_the_teacher_is_the_student(context):
    network = network_of()
    _, _, teacher = listen(network, context, teacher="none")
    assert all(
        torch.equal(theirs, ours)
        for theirs, ours in zip(teacher.network.parameters(), network.parameters(), strict=True)
    )


def test_running_statistics_follow_a_batch_once_or_as_with_all_passes_of_the_code(context):
    start = network_of().state_dict()["stem.1.running_mean"]
    moved = []
    for updates in ("once", "code"):
        network = network_of()
        listen(network, context, local=LocalOptions(batch_size=BATCH, steps=1), bn_updates=updates)
        assert network.stem[1].momentum == 0.1
        moved.append(network.state_dict()["stem.1.running_mean"] - start)
    torch.testing.assert_close(moved[1], moved[0] / 0.1 * (1 - 0.9 ** (DRAWS + 1)))


def test_a_norm_without_momentum_keeps_its_own_mean():
    norm = torch.nn.BatchNorm1d(1, momentum=None)
    with statistics_of_passes(norm, 12):
        assert norm.momentum is None


def test_dropout_that_is_not_there_cannot_be_drawn(context):
    with pytest.raises(ConfigurationError, match="the head has no dropout"):
        listen(network_of(dropout=None), context)


def test_a_diverged_student_is_told_with_its_step(context):
    network = network_of()
    with torch.no_grad():
        head_of(network).bias[0] = float("nan")
    with pytest.raises(GrandRoundsError, match="training diverged: the prediction of step 0 is not finite"):
        listen(network, context)


# Sites with labels.


def softened(logits, labels):
    """By NumPy and SciPy: mean logits of each class, softened at temperature 2."""
    return np.stack(
        [
            scipy.special.softmax(logits[labels == c].mean(axis=0) / 2) if (labels == c).any() else np.full(4, 0.25)
            for c in range(4)
        ]
    )


def test_the_relation_matrix_is_made_of_the_logits_of_the_first_views_of_training(labelled):
    network, outputs = network_of(), []
    network.register_forward_hook(lambda _, inputs, output: outputs.append(output.detach().numpy()))
    _, relation = tell(network, labelled, RelationOptions(min_support=0), two_views=True)
    batches = index_batches(labelled.data.rows("labelled"), BATCH, STEPS, labelled.generator("labelled batches"))
    order = LABELS[np.concatenate(list(batches))]
    assert len(outputs) == 2 * STEPS
    np.testing.assert_allclose(relation.matrix, softened(np.concatenate(outputs[::2]), order), atol=1e-6)
    assert relation.support.tolist() == list(COUNTS)


def test_the_mean_of_the_batches_matrices_is_that_of_the_code(labelled):
    network, outputs = network_of(), []
    network.register_forward_hook(lambda _, inputs, output: outputs.append(output.detach().numpy()))
    _, relation = tell(network, labelled, RelationOptions(min_support=0, relation_average="batches"))
    batches = index_batches(labelled.data.rows("labelled"), BATCH, STEPS, labelled.generator("labelled batches"))
    each = [softened(logits, LABELS[rows]) for logits, rows in zip(outputs, batches, strict=True)]
    np.testing.assert_allclose(relation.matrix, np.mean(each, axis=0), atol=1e-6)


def test_the_exact_matrix_is_of_the_trained_network_without_dropout_and_views(labelled):
    network = network_of()
    _, relation = tell(network, labelled, RelationOptions(min_support=0, relation_average="exact"))
    assert network.training
    with torch.no_grad():
        logits = network.eval()(to_tensor(labelled.data.images)).numpy()
    np.testing.assert_allclose(relation.matrix, softened(logits, LABELS), atol=1e-5)
    assert relation.support.tolist() == list(COUNTS)


@pytest.mark.parametrize("local", [LocalOptions(batch_size=BATCH, epochs=3), LocalOptions(batch_size=BATCH, steps=10)])
def test_a_row_stands_on_images_however_often_they_were_seen(labelled, local):
    _, relation = tell(network_of(), labelled, RelationOptions(min_support=3), local=local)
    assert (relation.support <= torch.tensor(COUNTS)).all()
    assert not relation.known[2:].any()


@pytest.mark.parametrize("average", ["samples", "batches", "exact"])
def test_a_row_stands_on_patients_not_on_images(labelled, average):
    """Four images of the first class are of one patient, two of the second have no group and are two."""
    groups = ["p"] * 4 + list(labelled.data.names[4:12]) + ["", ""] + ["q"] * 7 + ["r", "r", "r"]
    relations = RelationOptions(min_support=0, relation_average=average)
    relation = tell(network_of(), in_groups(labelled, groups), relations)[1]
    assert relation.support.tolist() == [9, 3, 1, 1]


def test_rows_of_few_images_do_not_leave_the_site(labelled, caplog):
    """Nor does the number of such classes: only the site's own log has their names."""
    with caplog.at_level("INFO"):
        metrics, relation = tell(network_of(), labelled, RelationOptions(min_support=3))
    assert relation.support.tolist() == [12, 9, -1, -1]
    assert (relation.matrix[2:] == 0.25).all()
    assert metrics.keys() == {"loss", "samples"}
    assert f"fewer than 3 patients: {', '.join(PHANTOM_CLASSES[2:])}" in caplog.text
    caplog.clear()
    with caplog.at_level("INFO"):
        tell(network_of(), labelled, RelationOptions(min_support=1))
    assert not caplog.text


def test_the_last_pass_alone_makes_the_matrix(labelled):
    """After two passes it is that of the second: of a network that has learnt more."""
    network, outputs = network_of(), []
    network.register_forward_hook(lambda _, inputs, output: outputs.append(output.detach().numpy()))
    local = LocalOptions(batch_size=BATCH, epochs=2)
    _, relation = tell(network, labelled, RelationOptions(min_support=0), local=local)
    batches = list(
        index_batches(labelled.data.rows("labelled"), BATCH, 2 * STEPS, labelled.generator("labelled batches"))
    )
    order = LABELS[np.concatenate(batches[STEPS:])]
    np.testing.assert_allclose(relation.matrix, softened(np.concatenate(outputs[STEPS:]), order), atol=1e-6)


def test_smoothing_and_two_views_change_the_loss(labelled):
    local = LocalOptions(batch_size=48, steps=1)
    plain = tell(network_of(), labelled, local=local)[0]["loss"]
    two = tell(network_of(), labelled, local=local, two_views=True)[0]["loss"]
    assert two == pytest.approx(2 * plain, rel=0.2)
    assert two != 2 * plain, "the views differ"
    assert tell(network_of(), labelled, local=local, smoothing=0.5)[0]["loss"] != plain


def test_a_site_without_a_label_cannot_tell(context):
    with pytest.raises(DataError, match="site-1: the labelled set is empty"):
        tell(network_of(), context)


# Self-training.


def test_self_training_learns_what_the_received_model_says(context):
    network = network_of(dropout=None)
    with torch.no_grad():
        head_of(network).bias[1] += 50
    start = flat(network)
    options = UnlabelledOptions(unlabelled_objective="self_training", ramp_length=0.0, self_training_confidence=0.99)
    metrics = train_on_own_labels(network, sgd(network), context, LOCAL, options)
    assert metrics["kept"] == 1
    assert metrics["pseudo_label_accuracy"] == pytest.approx(COUNTS[1] / len(LABELS))
    # Cross-entropy with labels that the model is sure of.
    assert metrics["loss"] < 1e-6
    assert not torch.equal(flat(network), start), "running statistics have moved"


def test_self_training_weighs_its_loss_by_the_ramp(context):
    losses = []
    for length in (0.0, 30.0):
        network = network_of(dropout=None)
        options = UnlabelledOptions(unlabelled_objective="self_training", ramp_length=length)
        local = LocalOptions(batch_size=48, steps=1)
        losses.append(train_on_own_labels(network, sgd(network), context, local, options)["loss"])
    # Three rounds came before.
    assert losses[1] == pytest.approx(losses[0] * math.exp(-5 * 0.9**2))


def test_self_training_without_a_confident_image_changes_nothing(context):
    network = network_of()
    options = UnlabelledOptions(unlabelled_objective="self_training", self_training_confidence=1.0)
    metrics = train_on_own_labels(network, sgd(network), context, LOCAL, options)
    assert torch.equal(flat(network), flat(network_of()))
    assert metrics == {"loss": 0.0, "kept": 0.0, "samples": float(len(LABELS))}
