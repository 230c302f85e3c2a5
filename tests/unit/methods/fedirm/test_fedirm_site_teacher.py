"""Who gives the second opinion at a site without labels, and how running statistics follow its passes."""

import torch
from small_site import BATCH, DRAWS, SIZE, STEPS, flat, listen, network_of

from grandrounds.methods.fedirm.options import LocalOptions, UnlabelledOptions
from grandrounds.methods.fedirm.unlabelled import SiteTeacher, statistics_of_passes
from grandrounds.seeding import torch_generator


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
