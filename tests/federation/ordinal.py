"""A third task in one file: grades in order, as a plug-in adds them. The median of the predicted grades is the decision."""

import torch
from torch import Tensor

import grandrounds as gr
from grandrounds.protocol.task import PseudoLabels
from grandrounds.protocol.task_single import SingleLabel


class Grades(SingleLabel):
    """Each image has one grade, and a grade that is far off costs more than its neighbour."""

    name = "ordinal"
    meaning = "each image has one grade, and grades are in order"
    noun, nouns = "grade", "grades"
    activity = "grading of images from"

    def loss(self, logits, labels, class_weights=None):
        """Cross-entropy, and the expected distance from the true grade."""
        distances = (torch.arange(logits.shape[1]) - labels[:, None]).abs()
        expected = (self.probabilities(logits) * distances).sum(dim=1)
        return super().loss(logits, labels, class_weights) + expected.mean() if len(labels) else logits.sum() * 0

    def likeliest(self, logits: Tensor) -> Tensor:
        """The lowest grade that, with those below, has half of the probability."""
        return (self.probabilities(logits.detach()).cumsum(dim=1) >= 0.5).int().argmax(dim=1)

    def decide(self, probabilities):
        """The same for probabilities."""
        return (probabilities.cumsum(axis=1) >= 0.5).argmax(axis=1).astype("int64")

    def pseudo_labels(self, probabilities, threshold):
        """The median, where it has enough probability itself."""
        found = super().pseudo_labels(probabilities, threshold)
        labels = (probabilities.cumsum(dim=1) >= 0.5).int().argmax(dim=1)
        confidence = probabilities.gather(1, labels[:, None])[:, 0]
        return PseudoLabels(labels, found.accepted & (confidence >= threshold), confidence)


GRADES = gr.register_task(Grades())
