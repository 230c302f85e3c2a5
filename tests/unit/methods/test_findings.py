"""The losses and pseudo-labels of findings against hand-computed numbers."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from grandrounds.methods.fedirm.relation import (
    Relation,
    RelationAccumulator,
    mean_relation,
    pseudo_relation,
    relation_matching_loss,
    withhold_rows,
)
from grandrounds.methods.fedirm.uncertainty import certain, predictive_entropy
from grandrounds.methods.fedperl.loss import PeerPseudoLabeler
from grandrounds.methods.supervised.training import TrainingOptions
from grandrounds.protocol.tasks import FINDINGS

LN2, LN4 = math.log(2), math.log(4)
LOGITS = torch.tensor([[0.0, math.log(3)], [-math.log(3), 0.0]])  # probabilities 1/2, 3/4, 1/4, 1/2


def test_weights_are_the_median_of_positive_images_over_each_findings_own():
    labels = np.array([[1, 1, 0], [1, 0, 0], [1, -1, 0], [1, 1, 0]])
    assert TrainingOptions().weights_of(labels, 3, FINDINGS).tolist() == [0.75, 1.5, 100.0]
    assert TrainingOptions(class_weight_limit=1.0).weights_of(labels, 3, FINDINGS).tolist() == [0.75, 1.0, 1.0]
    assert TrainingOptions().weights_of(np.zeros((3, 2), np.int64), 2, FINDINGS) is None


class Constant(nn.Module):
    """Gives every image the same logits."""

    def __init__(self, *logits):
        super().__init__()
        self.logits = torch.tensor(logits)

    def forward(self, images):
        return self.logits.expand(len(images), -1)


def test_peers_average_sigmoids_and_pull_at_them():
    labeler = PeerPseudoLabeler(FINDINGS, [Constant(math.log(9), -math.log(9))], consistency_weight=2.0)  # 0.9, 0.1
    local = torch.tensor([[0.6, 0.6]], requires_grad=True)
    found, loss = labeler(torch.zeros(1, 3, 8, 8), local, 0.7)
    # means 0.75 and 0.35
    assert found.labels.tolist() == [[1, 0]]
    assert found.accepted.tolist() == [[True, False]]
    assert loss.item() == pytest.approx(2 * (0.3**2 + 0.5**2) / 2)


def test_relation_rows_are_of_images_without_and_with_a_finding():
    logits = torch.tensor([[2.0, -1.0], [4.0, 3.0], [-2.0, 0.0]])
    labels = torch.tensor([[1, 0], [1, -1], [0, 0]])
    for average in ("samples", "batches"):
        accumulator = RelationAccumulator(FINDINGS, 2, temperature=2.0, average=average)
        accumulator.add(logits, labels)
        relation = accumulator.relation()
        # mean logits over 2: without the first -1, with it 1.5; without the second -0.25; nobody is known to have it
        expected = torch.sigmoid(torch.tensor([-1.0, 1.5, -0.25, 0.0]))
        torch.testing.assert_close(relation.matrix, torch.stack([1 - expected, expected], dim=1))
        assert relation.support.tolist() == [1, 2, 2, 0]


def test_unlabelled_sites_use_certain_answers_only():
    logits = torch.tensor([[2.0, -4.0], [6.0, 1.0]])
    keep = torch.tensor([[True, True], [False, False]])
    relation = pseudo_relation(FINDINGS, logits, keep, 2.0)
    torch.testing.assert_close(relation.matrix[:, 1], torch.sigmoid(torch.tensor([0.0, 1.0, -2.0, 0.0])))
    assert relation.support.tolist() == [0, 1, 1, 0]
    again = pseudo_relation(FINDINGS, logits, keep, 2.0, "probabilities")
    p = torch.sigmoid(torch.tensor([2.0, -4.0]))
    torch.testing.assert_close(again.matrix[[1, 2], 1], torch.sigmoid((2 * p - 1) / 2))


def test_matching_is_the_symmetric_divergence_over_all_rows():
    uniform = Relation(torch.full((4, 2), 0.5), torch.tensor([3, 0, 1, 1]))
    target = Relation(torch.tensor([[0.8, 0.2], [0.9, 0.1], [0.5, 0.5], [0.5, 0.5]]), torch.tensor([2, 2, 2, 2]))
    assert relation_matching_loss(target, uniform).item() == pytest.approx(0.3 * LN4 / 4)
    shown = withhold_rows(target._replace(support=torch.tensor([4, 5, 5, 5])), 5)
    assert shown.matrix[0].tolist() == [0.5, 0.5]
    mean = mean_relation([target, uniform], min_support=1)
    torch.testing.assert_close(mean.matrix[:2, 0], torch.tensor([0.65, 0.9]))


def test_the_entropy_of_a_finding_is_that_of_two_answers():
    draws = torch.tensor([[[0.9, 0.2]], [[0.7, 0.8]]])  # means 0.8 and 0.5
    expected = -(0.8 * math.log(0.8) + 0.2 * math.log(0.2))
    assert predictive_entropy(FINDINGS, draws)[0].tolist() == pytest.approx([expected, LN2])
    assert certain(FINDINGS, draws, 0.6).tolist() == [[True, False]]
