"""Gradients reach both encoders, and all ways of exchanging them are one computation."""

import pytest
import torch
from align_hospitals import FEATURES, NOISE, SITES, batches, moved, network, participants, state
from synchronous import ServerAdversary, align_by_answers, gradient_objective, synchronous_iteration, target_gradient

from grandrounds.errors import MessageError
from grandrounds.methods.fed_align_cl.loss import (
    Discriminator,
    encoder_loss,
    encoder_objective,
    make_discriminator,
    received_discriminator,
    train_discriminator,
)
from grandrounds.methods.fed_align_cl.noise import clip_embeddings
from grandrounds.models.split import split_network
from grandrounds.privacy.mechanisms.gaussian import clip_rows
from grandrounds.seeding import torch_generator

ENCODER = ("0.", "1.", "3.")
EXACT = {"rtol": 0, "atol": 1e-12}


def embedded():
    hospitals = participants()
    return hospitals, {site: hospitals[site].embed(batches()[site][0]) for site in SITES}


def test_a_discriminator_has_1033_parameters_and_gives_one_logit_per_embedding():
    discriminator = Discriminator(256)
    assert sum(parameter.numel() for parameter in discriminator.parameters()) == 1_033
    assert discriminator(torch.zeros(3, 256)).shape == (3,)


def test_a_step_of_the_discriminator_moves_it_and_no_encoder():
    hospitals, own = embedded()
    networks = {site: state(hospital.network) for site, hospital in hospitals.items()}
    before = state(hospitals["site-1"].discriminator)
    hospitals["site-1"].discriminate(own["site-1"], [own["site-2"].noisy])
    assert moved(before, hospitals["site-1"].discriminator)
    for site, hospital in hospitals.items():
        assert not moved(networks[site], hospital.network)
        assert all(parameter.grad is None for parameter in hospital.network.parameters())


def test_an_adversarial_step_moves_both_encoders_and_neither_discriminators_nor_classifiers():
    hospitals, own = embedded()
    networks = {site: state(hospital.network) for site, hospital in hospitals.items()}
    discriminators = {site: state(hospital.discriminator) for site, hospital in hospitals.items()}
    source, target = hospitals["site-1"], hospitals["site-2"]
    source.align_as_source(own["site-1"])
    target.align_as_target(own["site-2"], source.discriminator)
    for site in ("site-1", "site-2"):
        assert moved(networks[site], hospitals[site].network, ENCODER)
        assert not moved(networks[site], hospitals[site].network, ("4.",))
    assert not moved(networks["site-10"], hospitals["site-10"].network)
    for site, hospital in hospitals.items():
        assert not moved(discriminators[site], hospital.discriminator)
        assert all(parameter.grad is None for parameter in hospital.discriminator.parameters())


def test_the_released_update_moves_no_encoder():
    hospitals, own = embedded()
    before = state(hospitals["site-1"].network)
    adversary = state(hospitals["site-1"].discriminator)
    hospitals["site-1"].discriminate(own["site-1"], [own["site-2"].noisy], as_released=True)
    assert not moved(before, hospitals["site-1"].network)
    assert all(parameter.grad is None for parameter in hospitals["site-1"].network.parameters())
    assert moved(adversary, hospitals["site-1"].discriminator)


def separable() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch_generator("toy")
    return torch.randn(64, 2, generator=generator) + 4, torch.randn(64, 2, generator=generator) - 4


@pytest.mark.parametrize("right", [True, False])
def test_on_separable_features_the_discriminator_learns_but_not_by_the_released_gradient(right):
    own, others = separable()
    discriminator = make_discriminator(2, "toy")
    optimizer = torch.optim.Adam(discriminator.parameters(), lr=0.05)
    for _ in range(200):
        train_discriminator(discriminator, optimizer, own, [others], as_released=not right)
    for_own, for_others = (float(discriminator(rows).sigmoid().mean().detach()) for rows in (own, others))
    # 0.1 L_D + L_F is least where the others' probability p minimises -1.1 log p - 0.1 log(1 - p): at 11/12.
    assert for_own > (0.99 if right else 0.8)
    assert for_others < 0.01 if right else for_others == pytest.approx(11 / 12, abs=0.03)


def joint_gradients() -> dict[str, dict[str, torch.Tensor]]:
    """Encoder gradients of the sum of all L_F in one graph, after the steps of all discriminators."""
    hospitals, own = embedded()
    for site in SITES:
        hospitals[site].discriminate(own[site], [own[other].noisy for other in SITES if other != site])
    losses = [
        encoder_loss(hospitals[i].discriminator(own[i].source), hospitals[i].discriminator(own[j].noisy))
        for i in SITES
        for j in SITES
        if i != j
    ]
    torch.stack(losses).sum().backward()
    return {
        site: {name: p.grad for name, p in split_network(hospitals[site].network).encoder.named_parameters()}
        for site in SITES
    }


def steps_of(exchange: str) -> dict[str, dict[str, torch.Tensor]]:
    """The steps that plain gradient descent takes under an exchange, divided by its step size."""
    hospitals, own = embedded()
    before = {site: state(hospitals[site].network) for site in SITES}
    for site in SITES:
        hospitals[site].discriminate(own[site], [own[other].noisy for other in SITES if other != site])
    for site in SITES:
        others = [hospitals[other] for other in SITES if other != site]
        if exchange == "ship_discriminator":
            shipped = [received_discriminator(other.discriminator.state_dict(), FEATURES, "d") for other in others]
            hospitals[site].align(own[site], shipped)
        else:
            sent = own[site].noisy.detach()
            answers = [target_gradient(other.discriminator, sent) for other in others]
            align_by_answers(hospitals[site], own[site], answers)
    return {
        site: {name: (before[site][name] - value) / 0.1 for name, value in hospitals[site].network.state_dict().items()}
        for site in SITES
    }


@pytest.mark.parametrize("exchange", ["ship_discriminator", "return_gradient"])
def test_exchanged_tensors_give_the_gradients_of_one_joint_graph(exchange):
    expected, found = joint_gradients(), steps_of(exchange)
    for site in SITES:
        assert len(expected[site]) == 6
        for name, gradient in expected[site].items():
            # The bias before batch norm has no influence, so its gradient is rounding.
            if name != "0.bias":
                assert float(gradient.abs().max()) > 1e-4
            torch.testing.assert_close(found[site][name], gradient, **EXACT)


def after_iterations(exchange: str, noise=NOISE, count: int = 3):
    hospitals = participants(noise=noise)
    discriminators = {site: hospital.discriminator for site, hospital in hospitals.items()}
    server = ServerAdversary(
        discriminators, {site: torch.optim.SGD(d.parameters(), lr=0.1) for site, d in discriminators.items()}
    )
    for step in range(count):
        synchronous_iteration(hospitals, batches(step), exchange, server=server)
    return hospitals


def require_equal(one, other, tolerance):
    for site in SITES:
        for part in ("network", "discriminator"):
            expected = getattr(other[site], part).state_dict()
            for name, value in getattr(one[site], part).state_dict().items():
                torch.testing.assert_close(value, expected[name], **tolerance, msg=f"{site} {part} {name}")


def test_shipped_discriminators_and_returned_gradients_train_the_same_models():
    require_equal(after_iterations("ship_discriminator"), after_iterations("return_gradient"), EXACT)


def test_the_server_trains_the_same_models_where_noise_and_clipping_vanish():
    from grandrounds.methods.fed_align_cl.options import EmbeddingNoiseOptions

    quiet = EmbeddingNoiseOptions("absolute", 1e-24, embedding_clip=1e6)
    tolerance = {"rtol": 0, "atol": 1e-9}
    require_equal(after_iterations("server_side", quiet), after_iterations("ship_discriminator", quiet), tolerance)


def test_a_missing_site_does_not_stop_the_others():
    hospitals = participants()
    before = {site: state(hospital.network) for site, hospital in hospitals.items()}
    present = {site: hospitals[site] for site in ("site-1", "site-10")}
    synchronous_iteration(present, batches(), "ship_discriminator")
    assert moved(before["site-1"], hospitals["site-1"].network, ENCODER)
    assert not moved(before["site-2"], hospitals["site-2"].network)


def test_exchanges_that_lack_something_are_refused():
    with pytest.raises(ValueError, match="server_side needs the server's discriminators"):
        synchronous_iteration(participants(), batches(), "server_side")
    with pytest.raises(ValueError, match="unknown exchange 'paced'"):
        synchronous_iteration(participants(), batches(), "paced")


def test_a_returned_gradient_has_the_rank_of_the_discriminators_first_layer():
    discriminator = make_discriminator(64, "rank").double()
    noisy = torch.randn(32, 64, generator=torch_generator("rank"), dtype=torch.float64)
    assert int(torch.linalg.matrix_rank(target_gradient(discriminator, noisy))) <= 4


def test_clipping_with_a_gradient_is_the_clipping_of_the_privacy_package():
    rows = torch.randn(50, 8, generator=torch_generator("rows"), dtype=torch.float64)
    torch.testing.assert_close(clip_embeddings(rows, 2.5), clip_rows(rows, 2.5))
    assert not torch.equal(clip_embeddings(rows, 2.5), rows)


def test_without_sites_to_align_with_there_is_no_objective():
    rows = torch.ones(2, 3, requires_grad=True)
    assert encoder_objective(make_discriminator(3, "d"), [], rows, rows).item() == 0
    with pytest.raises(ValueError, match=r"a gradient must have shape \(2, 3\), got \(1, 3\)"):
        gradient_objective(rows, [torch.ones(1, 3)])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.pop("layers.2.bias"), "discriminator of site-2: expected the entries layers.0.weight, .*, got"),
        (lambda s: s.update({"layers.0.weight": torch.zeros(4, 512)}), r"of shape \(4, 6\), got .* \(4, 512\); do all"),
        (lambda s: s["layers.0.bias"].fill_(float("inf")), "layers.0.bias has a value that is NaN or infinite"),
    ],
)
def test_a_discriminator_that_does_not_fit_is_refused(change, message):
    sent = Discriminator(6).state_dict()
    change(sent)
    with pytest.raises(MessageError, match=message):
        received_discriminator(sent, 6, "discriminator of site-2")


def test_a_split_hospital_trains_its_network():
    model = network(3)
    assert sum(p.numel() for p in split_network(model).encoder.parameters()) == 42 + 7 + 14 + 35 + 5
