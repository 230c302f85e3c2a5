"""The teacher starts as the student and follows it ever more slowly, without gradients."""

import pytest
import torch
from torch import nn

from grandrounds.methods.fedirm.uncertainty import ema_alpha, make_teacher, update_teacher
from grandrounds.seeding import torch_generator


def network(entry):
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(entry)
    return model


def value(model):
    """The value that all parameters have."""
    entries = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    assert torch.equal(entries, entries[:1].expand_as(entries))
    return entries[0].item()


@pytest.mark.parametrize(("step", "alpha"), [(0, 0.0), (1, 0.5), (9, 0.9), (99, 0.99), (500, 0.99)])
def test_alpha_has_the_hand_computed_values(step, alpha):
    assert ema_alpha(step) == pytest.approx(alpha, abs=1e-12)


def test_the_limit_of_alpha_is_an_option():
    assert ema_alpha(500, limit=0.999) == pytest.approx(1 - 1 / 501)


def test_after_the_first_step_the_teacher_is_the_student_bit_for_bit():
    student, teacher = network(0.1), make_teacher(network(123.456))
    with torch.no_grad():
        student[0].weight.normal_(generator=torch_generator("weights"))
    update_teacher(teacher, student, ema_alpha(0))
    assert all(torch.equal(a, b) for a, b in zip(teacher.parameters(), student.parameters(), strict=True))


def test_the_first_steps_are_the_plain_mean_of_the_students():
    teacher = make_teacher(network(0.0))
    for step, student in enumerate((6.0, 3.0, 9.0)):
        update_teacher(teacher, network(student), ema_alpha(step))
    assert value(teacher) == pytest.approx(6.0)


def test_an_update_moves_parameters_by_the_rest_of_alpha_and_no_buffer():
    teacher, student = make_teacher(network(1.0)), network(3.0)
    student[1].running_mean.fill_(7.0)
    update_teacher(teacher, student, 0.99)
    assert value(teacher) == pytest.approx(1.02)
    assert teacher[1].running_mean.tolist() == [0.0, 0.0]
    assert value(student) == 3.0


def test_a_teacher_is_a_copy_in_the_same_mode_that_needs_no_gradient():
    student = network(1.0)
    teacher = make_teacher(student)
    assert teacher.training
    assert not make_teacher(student.eval()).training
    assert not any(parameter.requires_grad for parameter in teacher.parameters())
    assert all(parameter.requires_grad for parameter in student.parameters())
    update_teacher(teacher, network(5.0), 0.0)
    assert value(student) == 1.0
