"""A site with labels: how its relation matrix is computed, and which rows are withheld."""

import numpy as np
import pytest
import torch
from small_site import BATCH, COUNTS, LABELS, STEPS, fit_labelled, in_groups, network_of, softened

from grandrounds.data.batches import index_batches
from grandrounds.data.datasets.phantom import PHANTOM_CLASSES
from grandrounds.data.images.tensors import to_tensor
from grandrounds.errors import DataError
from grandrounds.methods.fedirm.options import ClientOptions, RelationOptions


@pytest.mark.parametrize("temperature", [2.0, 0.5])
def test_the_relation_matrix_is_made_of_the_logits_of_the_first_views_of_training(labelled, temperature):
    network, outputs = network_of(), []
    network.register_forward_hook(lambda _, inputs, output: outputs.append(output.detach().numpy()))
    _, relation = fit_labelled(
        network, labelled, RelationOptions(min_support=0, temperature=temperature), two_views=True
    )
    batches = index_batches(labelled.data.rows("labelled"), BATCH, STEPS, labelled.generator("labelled batches"))
    order = LABELS[np.concatenate(list(batches))]
    assert len(outputs) == 2 * STEPS
    expected = softened(np.concatenate(outputs[::2]), order, temperature)
    np.testing.assert_allclose(relation.matrix, expected, atol=1e-6)
    assert relation.support.tolist() == list(COUNTS)


def test_the_mean_of_the_batches_matrices_is_that_of_the_code(labelled):
    network, outputs = network_of(), []
    network.register_forward_hook(lambda _, inputs, output: outputs.append(output.detach().numpy()))
    _, relation = fit_labelled(network, labelled, RelationOptions(min_support=0, relation_average="batches"))
    batches = index_batches(labelled.data.rows("labelled"), BATCH, STEPS, labelled.generator("labelled batches"))
    each = [softened(logits, LABELS[rows]) for logits, rows in zip(outputs, batches, strict=True)]
    np.testing.assert_allclose(relation.matrix, np.mean(each, axis=0), atol=1e-6)


def test_the_exact_matrix_is_of_the_trained_network_without_dropout_and_views(labelled):
    network = network_of()
    _, relation = fit_labelled(network, labelled, RelationOptions(min_support=0, relation_average="exact"))
    assert network.training
    with torch.no_grad():
        logits = network.eval()(to_tensor(labelled.data.images)).numpy()
    np.testing.assert_allclose(relation.matrix, softened(logits, LABELS), atol=1e-5)
    assert relation.support.tolist() == list(COUNTS)


@pytest.mark.parametrize(
    "local", [ClientOptions(batch_size=BATCH, epochs=3), ClientOptions(batch_size=BATCH, steps=10)]
)
def test_support_of_a_row_counts_each_image_once(labelled, local):
    _, relation = fit_labelled(network_of(), labelled, RelationOptions(min_support=3), local=local)
    assert (relation.support <= torch.tensor(COUNTS)).all()
    assert not relation.known[2:].any()


@pytest.mark.parametrize("average", ["samples", "batches", "exact"])
def test_support_of_a_row_counts_patients_not_images(labelled, average):
    """Four images of the first class are of one patient, two of the second have no group and are two."""
    groups = ["p"] * 4 + list(labelled.data.names[4:12]) + ["", ""] + ["q"] * 7 + ["r", "r", "r"]
    relations = RelationOptions(min_support=0, relation_average=average)
    relation = fit_labelled(network_of(), in_groups(labelled, groups), relations)[1]
    assert relation.support.tolist() == [9, 3, 1, 1]


def test_rows_of_few_images_do_not_leave_the_site(labelled, caplog):
    """Nor does the number of such classes: only the site's own log has their names."""
    with caplog.at_level("INFO"):
        metrics, relation = fit_labelled(network_of(), labelled, RelationOptions(min_support=3))
    assert relation.support.tolist() == [12, 9, -1, -1]
    assert (relation.matrix[2:] == 0.25).all()
    assert metrics.keys() == {"loss", "samples"}
    assert f"fewer than 3 patients: {', '.join(PHANTOM_CLASSES[2:])}" in caplog.text
    caplog.clear()
    with caplog.at_level("INFO"):
        fit_labelled(network_of(), labelled, RelationOptions(min_support=1))
    assert "patients" not in caplog.text


def test_the_last_pass_alone_makes_the_matrix(labelled):
    """After two passes it is that of the second: of a network that has learnt more."""
    network, outputs = network_of(), []
    network.register_forward_hook(lambda _, inputs, output: outputs.append(output.detach().numpy()))
    local = ClientOptions(batch_size=BATCH, epochs=2)
    _, relation = fit_labelled(network, labelled, RelationOptions(min_support=0), local=local)
    batches = list(
        index_batches(labelled.data.rows("labelled"), BATCH, 2 * STEPS, labelled.generator("labelled batches"))
    )
    order = LABELS[np.concatenate(batches[STEPS:])]
    np.testing.assert_allclose(relation.matrix, softened(np.concatenate(outputs[STEPS:]), order), atol=1e-6)


def test_smoothing_and_two_views_change_the_loss(labelled):
    local = ClientOptions(batch_size=48, steps=1)
    plain = fit_labelled(network_of(), labelled, local=local)[0]["loss"]
    two = fit_labelled(network_of(), labelled, local=local, two_views=True)[0]["loss"]
    assert two == pytest.approx(2 * plain, rel=0.2)
    assert two != 2 * plain, "the views differ"
    assert fit_labelled(network_of(), labelled, local=local, smoothing=0.5)[0]["loss"] != plain


def test_a_site_without_labels_cannot_train(context):
    with pytest.raises(DataError, match="site-1: the labelled set is empty"):
        fit_labelled(network_of(), context)


def test_logits_are_adjusted_in_the_loss_and_not_in_the_relation_matrix(labelled):
    plain, adjusted = network_of(), network_of()
    relations = RelationOptions(min_support=0)
    one_step = ClientOptions(batch_size=BATCH, steps=1)
    first, matrix = fit_labelled(plain, labelled, relations, local=one_step)
    second, same = fit_labelled(adjusted, labelled, relations, local=one_step, logit_adjustment=1.0)
    assert torch.equal(matrix.matrix, same.matrix), "of the logits before the first step"
    assert first["loss"] != second["loss"]
    assert not torch.equal(plain.state_dict()["classifier.bias"], adjusted.state_dict()["classifier.bias"])
