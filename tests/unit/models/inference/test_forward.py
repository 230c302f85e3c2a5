"""Networks without gradients: exact is the network to the bit, the other forms are near it, and are refused elsewhere."""

import copy
import os
import subprocess
import sys
from typing import get_args, get_type_hints

import pytest
import torch
from torch import nn

from grandrounds.errors import ConfigurationError
from grandrounds.federation.site.options import InferenceOptions
from grandrounds.models.inference import engine
from grandrounds.models.inference.forward import AUTO_FORM, FORMS, PIECE, Forward, form_named
from grandrounds.models.partial import front_of
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
    try:
        FORMS[form].require_possible(torch.device("cpu"))
    except ConfigurationError as error:
        pytest.skip(str(error))


def test_an_engine_is_made_under_autocast_as_without():
    require("fast")
    front, given = front_of(build_model(ModelSpec("compact", classes=3, trainable="head"), seed=1)), images(4, 64)
    expected = Forward(copy.deepcopy(front), "fast")(given)  # of a copy, because an engine is made once for a network
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(Forward(front, "fast")(given), expected)


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


def front(name="efficientnet_lite0"):
    made = front_of(build_model(ModelSpec(name, classes=3, trainable="head"), seed=1))
    assert made is not None
    return made


@pytest.mark.parametrize("form", OTHERS)
def test_other_forms_are_near_the_frozen_layers(form):
    require(form)
    layers, given = front(), images(5, 64).contiguous(memory_format=torch.channels_last)
    expected, found = layers(given), layers.in_form(form)(given)
    assert found.dtype == torch.float32
    assert not torch.equal(found, expected)
    assert (found - expected).norm() < (0.05 if form == "bfloat16" else 1e-5) * expected.norm()


@pytest.mark.parametrize("form", OTHERS)
def test_an_image_has_the_same_bits_whatever_is_beside_it(form):
    """On which an epsilon of single images rests."""
    require(form)
    compute, given = front().in_form(form), images(19, 64)
    together = compute(given)
    assert torch.equal(compute(given[2:3]), together[2:3])
    assert torch.equal(compute(given.flip(0)), together.flip(0))


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
        options.require_measured(name, "head")
    with pytest.raises(ConfigurationError, match=rf"executor\.inference={form} is refused for backbone mine"):
        options.require_measured("mine", "head")
    with pytest.raises(ConfigurationError, match=rf"executor\.inference={form} is refused: no layer is frozen"):
        options.require_measured("efficientnet_lite0", "all")
    InferenceOptions().require_measured("mine", "all")


@pytest.mark.parametrize("form", OTHERS)
def test_other_forms_need_the_cpu_their_packages_and_the_processor(form, monkeypatch):
    monkeypatch.setattr(engine, "capabilities", list)
    with pytest.raises(ConfigurationError, match=rf"executor\.inference={form} computes on the CPU"):
        FORMS[form].require_possible(torch.device("cuda"))
    if form == "bfloat16":
        with pytest.raises(ConfigurationError, match="does not compute in bf16"):
            FORMS[form].require_possible(torch.device("cpu"))
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(ConfigurationError, match=r"grandrounds\[fast\]"):
        FORMS[form].require_possible(torch.device("cpu"))


def test_openvino_does_not_report_its_import(tmp_path):
    """Its package of telemetry would, where it is installed."""
    require("fast")
    (tmp_path / "openvino_telemetry.py").write_text("raise SystemExit('imported')")
    code = "from grandrounds.models.inference import engine; print(engine.capabilities())"
    path = os.pathsep.join([str(tmp_path), *sys.path])
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path}, capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"FP32" in done.stdout
