"""Networks without gradients: exact is the network to the bit, the other forms are near it, and are refused elsewhere."""

import copy
import sys
from typing import get_args, get_type_hints

import pytest
import torch
from torch import nn

from grandrounds.errors import ConfigurationError
from grandrounds.federation.site.options import InferenceOptions
from grandrounds.methods.ridge.executor import RidgeExecutor
from grandrounds.methods.supervised.executor import SupervisedExecutor
from grandrounds.models.inference.forms import AUTO_FORM, FORMS, form_named
from grandrounds.models.inference.forward import PIECE, Forward
from grandrounds.models.registry import BACKBONES, build_model
from grandrounds.protocol.problem import ModelSpec
from grandrounds.seeding import torch_generator

OTHERS = [name for name, form in FORMS.items() if not form.equal_bits]


def images(count, side=32):
    return torch.rand(count, 3, side, side, generator=torch_generator("forward images"))


def network(name="compact"):
    """With statistics of batch norm that are not those of the start."""
    model = build_model(ModelSpec(name, classes=3), seed=1).train()
    with torch.no_grad():
        for _ in range(8):
            model(images(16, 64))
    return model


def require(form):
    if form == "onnx":
        pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")


@pytest.mark.parametrize("count", [1, PIECE, 65, 2 * PIECE])
def test_exact_is_the_network_in_evaluation_mode_to_the_bit(count):
    model, given = network(), images(count).contiguous(memory_format=torch.channels_last)
    found = Forward(model)(given)
    assert model.training
    assert not found.requires_grad
    with torch.no_grad():
        assert torch.equal(found, model.eval()(given))
        assert not torch.equal(found, model.train()(given))


def test_only_whole_pieces_are_computed_apart():
    class Counting(nn.Module):
        def forward(self, given):
            seen.append(len(given))
            return given

    for count, expected in ((2 * PIECE, [PIECE, PIECE]), (PIECE + 1, [PIECE + 1]), (3, [3]), (0, [0])):
        seen = []
        assert len(Forward(Counting())(torch.zeros(count, 1))) == count
        assert seen == expected


def test_exact_follows_the_weights_and_the_other_forms_are_of_the_first_call():
    model, given = network().eval(), images(2)
    live, fused = Forward(model), Forward(model, "fused")
    before = live(given), fused(given)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.5)
    assert not torch.allclose(live(given), before[0])
    assert torch.equal(fused(given), before[1])


@pytest.mark.parametrize("form", OTHERS)
@pytest.mark.parametrize("name", ["compact", "efficientnet_lite0"])
def test_other_forms_are_near_the_network(form, name):
    require(form)
    model, given = network(name), images(5, 64)
    expected = Forward(model)(given)
    found = Forward(model, form)(given)
    assert found.dtype == torch.float32
    assert not found.requires_grad
    assert not torch.equal(found, expected)
    assert (found.softmax(dim=1) - expected.softmax(dim=1)).abs().max() < (0.05 if form == "bfloat16" else 1e-5)


def test_a_form_that_is_prepared_for_one_image_takes_any_number():
    require("onnx")
    model = network()
    forward = Forward(model, "onnx")
    for count in (1, 7, 3):
        torch.testing.assert_close(forward(images(count)), Forward(model)(images(count)), rtol=1e-4, atol=1e-5)


def test_logits_are_means_over_a_fixed_view():
    model, given = network(), images(3)

    def inputs(rows, view="none"):
        return given[rows] if view == "none" else given[rows].flip(2, 3)

    forward = Forward(model)
    expected = (forward(given) + forward(given.flip(2, 3))) / 2
    assert torch.equal(forward.logits(inputs, torch.arange(3).numpy(), "turned"), expected)
    assert torch.equal(forward.logits(inputs, torch.arange(3).numpy()), forward(given))


def test_the_networks_own_precision_stays():
    model = network().double()
    assert Forward(model)(images(2).double()).dtype == torch.float64


def test_auto_is_a_form_of_equal_bits():
    assert form_named(AUTO_FORM).equal_bits
    given, model = images(2), network()
    assert torch.equal(Forward(model, AUTO_FORM)(given), Forward(copy.deepcopy(model))(given))


def test_the_option_has_all_forms():
    hint = get_type_hints(InferenceOptions)["inference"]
    assert set(get_args(hint)) == {*FORMS, AUTO_FORM}
    assert InferenceOptions().inference == "exact"


@pytest.mark.parametrize("form", OTHERS)
def test_a_form_is_refused_for_a_network_that_it_was_not_measured_for(form):
    options = InferenceOptions(form)
    assert set(FORMS[form].networks) <= BACKBONES.keys()
    for name in FORMS[form].networks:
        options.require_measured(name)
    with pytest.raises(ConfigurationError, match=rf"executor\.inference={form} is refused for backbone mine"):
        options.require_measured("mine")
    InferenceOptions().require_measured("mine")


@pytest.mark.parametrize("form", OTHERS)
def test_a_form_with_other_bits_is_refused_for_epsilons_and_sums(form):
    with pytest.raises(ConfigurationError, match=rf"executor\.inference={form} is refused for record_noise_multiplier"):
        SupervisedExecutor(steps=1, batch_size=2, record_noise_multiplier=1.0, inference=form)
    with pytest.raises(ConfigurationError, match=rf"executor\.inference={form} is refused for RidgeExecutor"):
        RidgeExecutor(inference=form)
    RidgeExecutor(inference=AUTO_FORM)


def test_onnx_needs_its_packages_and_the_cpu(monkeypatch):
    with pytest.raises(ConfigurationError, match=r"executor\.inference=onnx computes"):
        FORMS["onnx"].require_possible(torch.device("cuda"))
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ConfigurationError, match=r"grandrounds\[onnx\]"):
        FORMS["onnx"].require_possible(torch.device("cpu"))
