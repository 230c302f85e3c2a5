"""Tensors are checked, and updates rounded to half precision and widened again."""

import numpy as np
import pytest
import torch
from nvflare.apis.dxo import DataKind, from_shareable
from nvflare.app_opt.pt.decomposers import TensorDecomposer
from nvflare.fuel.utils import fobs

from grandrounds.errors import ConfigurationError, MessageError
from grandrounds.protocol.messages import Payload, Release, ReleaseKind, Result, model_update
from grandrounds.protocol.tensors import MANY_VALUES, require_finite_tensors, require_precision, rounded, widened
from grandrounds.protocol.wire import decode_result, encode_result, round_updates
from grandrounds.seeding import torch_generator

INFINITY = float("inf")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_finite_values_whose_sum_is_too_large_are_let_through(dtype):
    largest = torch.finfo(dtype).max
    assert not torch.isfinite(torch.full((64,), largest, dtype=dtype).sum())
    require_finite_tensors({"w": torch.full((64,), largest, dtype=dtype), "n": torch.tensor([3])}, "update")
    require_finite_tensors({"w": torch.full((MANY_VALUES,), largest, dtype=dtype)}, "update")


@pytest.mark.parametrize(
    "values", [[float("nan"), 1.0], [INFINITY, 1.0], [1.0, -INFINITY], [INFINITY, -INFINITY], [3e38, 3e38, -INFINITY]]
)
def test_a_tensor_with_a_value_that_is_not_finite_is_named(values):
    with pytest.raises(MessageError, match=r"update\['b'\]"):
        require_finite_tensors({"a": torch.ones(2), "b": torch.tensor(values)}, "update")


@pytest.mark.parametrize("place", [0, MANY_VALUES // 2, MANY_VALUES])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_one_of_very_many_values_that_is_not_finite_is_found(place, dtype):
    values = torch.zeros(MANY_VALUES + 1, dtype=dtype)
    require_finite_tensors({"w": values}, "update")
    values[place] = INFINITY
    with pytest.raises(MessageError, match=r"update\['w'\]"):
        require_finite_tensors({"w": values}, "update")


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_a_floating_point_type_that_cannot_be_added_up_is_named(dtype):
    with pytest.raises(MessageError, match=r"update\['b'\] .*got torch.float8"):
        require_finite_tensors({"a": torch.ones(2), "b": torch.ones(2).to(dtype)}, "update")


DECLARED = {"update": ReleaseKind.MODEL_UPDATE, "matrix": ReleaseKind.CLASS_STATISTICS}
HALVES = ("float16", "bfloat16")
NAN = float("nan")


def task(precision):
    return Payload(4, {"run_name": "trial", "run_id": "r1", "update_precision": precision})


def update(**more):
    generator = torch_generator("precision")
    return {"w": torch.randn(40, 5, generator=generator), "counter": torch.tensor(2**30 + 1), **more}


def answer(asked, state=None):
    matrix = Release(ReleaseKind.CLASS_STATISTICS, {"rows": torch.full((2,), 1 / 3)})
    result = Result({**model_update(state or update()), "matrix": matrix}, {"loss": 1 / 3}, samples=3)
    return encode_result(result, DECLARED, asked)


def sent(precision, state=None):
    message = answer(task(precision), state)
    round_updates(message, task(precision).values)
    return message


def test_float16_is_rounded_as_numpy_rounds_it():
    values = torch.cat([update()["w"].flatten(), torch.tensor([0.0, -0.0, 6e-8, 1e-9, 65504.0, 2049.0, 1.00048828125])])
    came = rounded({"w": values}, "float16", "update")["w"]
    assert np.array_equal(came.numpy(), values.numpy().astype(np.float16))


def test_bfloat16_keeps_eight_binary_digits_and_rounds_to_even():
    values = torch.tensor([1 + 2**-7, 1 + 2**-8, 1 + 3 * 2**-8, 3e38, 1e-30])
    came = rounded({"w": values}, "bfloat16", "update")["w"]
    assert came.dtype == torch.bfloat16
    assert came[:3].tolist() == [1 + 2**-7, 1.0, 1 + 2**-6]
    assert came[3:].tolist() == pytest.approx([3e38, 1e-30], rel=2**-8)


@pytest.mark.parametrize("precision", HALVES)
@pytest.mark.parametrize("serialised", [False, True])
def test_an_update_arrives_in_single_precision_and_counts_half(precision, serialised):
    fobs.register(TensorDecomposer)
    message = sent(precision)
    came = decode_result(fobs.loads(fobs.dumps(message)) if serialised else message, task(precision))
    release = came.releases["update"]
    assert (release.precision, release.travelled_bytes) == (precision, 2 * 200 + 8)
    assert release.tensors["w"].dtype == torch.float32
    assert torch.equal(release.tensors["w"], update()["w"].to(getattr(torch, precision)).float())
    assert release.tensors["counter"].item() == 2**30 + 1


@pytest.mark.parametrize("precision", HALVES)
def test_other_releases_metrics_and_the_header_do_not_change(precision):
    plain, came = (decode_result(sent(name), task(name)) for name in ("float32", precision))
    assert torch.equal(came.releases["matrix"].tensors["rows"], plain.releases["matrix"].tensors["rows"])
    assert came.releases["matrix"].travelled_bytes == 8
    assert (came.metrics, came.samples) == (plain.metrics, plain.samples)


def test_single_precision_changes_neither_values_nor_metadata():
    part = from_shareable(sent("float32")).data["update"]
    assert part.data_kind == DataKind.WEIGHT_DIFF
    assert part.meta == {"release": "model_update"}
    assert torch.equal(part.data["w"], update()["w"])
    assert decode_result(answer(Payload(4, {"run_id": "r1"})), Payload(4, {"run_id": "r1"})).samples == 3


def test_a_value_beyond_float16_is_named_and_bfloat16_holds_it():
    large = update(head=torch.tensor([1.0, -70000.0]))
    with pytest.raises(MessageError, match=r"update\['head'\].*beyond"):
        sent("float16", large)
    assert decode_result(sent("bfloat16", large), task("bfloat16")).update["head"][1].item() == -70144.0


@pytest.mark.parametrize(
    ("asked", "came"),
    [("float16", "float32"), ("float32", "float16"), ("bfloat16", "float16"), ("float16", "bfloat16")],
)
def test_an_update_in_another_precision_than_asked_for_is_refused(asked, came):
    with pytest.raises(MessageError, match=rf"update came in '{came}', asked for was {asked}"):
        decode_result(sent(came), task(asked))


@pytest.mark.parametrize(
    "state", [{"w": torch.ones(2)}, {"w": torch.ones(2).bfloat16()}, {"w": torch.ones(2).double()}]
)
def test_an_update_of_another_kind_than_declared_is_refused(state):
    message = sent("float16", {"w": torch.ones(2)})
    collection = from_shareable(message)
    collection.data["update"].data = state
    with pytest.raises(MessageError, match=r"update\['w'\] .*got torch"):
        decode_result(collection.to_shareable(), task("float16"))


@pytest.mark.parametrize("bad", [NAN, float("inf")])
def test_a_value_that_is_not_finite_is_found_after_widening(bad):
    message = sent("float16")
    from_shareable(message).data["update"].data["w"][3, 1] = bad
    with pytest.raises(MessageError, match=r"update\['w'\].*infinite"):
        decode_result(message, task("float16"))


@pytest.mark.parametrize("other", [torch.ones(2).half(), torch.ones(2).double()])
def test_only_single_precision_is_rounded(other):
    with pytest.raises(MessageError, match=r"update\['other'\] is torch.float(16|64): only float32"):
        sent("float16", update(other=other))


def test_an_unknown_precision_is_refused():
    with pytest.raises(ConfigurationError, match="must be float32, float16 or bfloat16, got 'int8'"):
        require_precision("int8")
    with pytest.raises(MessageError, match="the task is of another version: update_precision must be"):
        sent("int8")


@pytest.mark.parametrize("precision", HALVES)
def test_what_is_representable_comes_back_to_the_bit(precision):
    state = {"w": torch.arange(-128, 129) / 128, "counter": torch.tensor(5)}
    came = widened(rounded(state, precision, "update"), precision, "update")
    assert torch.equal(came["w"], state["w"])
    assert torch.equal(came["counter"], state["counter"])
