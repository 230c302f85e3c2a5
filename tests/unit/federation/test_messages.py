"""What travels arrives as it was, and what must not travel or arrive is named."""

import pytest
import torch
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.shareable import Shareable
from nvflare.app_opt.pt.decomposers import TensorDecomposer
from nvflare.fuel.utils import fobs

from grandrounds.errors import MessageError
from grandrounds.federation.messages import (
    Payload,
    Result,
    decode_payload,
    decode_result,
    encode_payload,
    encode_result,
    require_like,
    tensor_bytes,
)
from grandrounds.seeding import torch_generator

NAN, INFINITY = float("nan"), float("inf")


@pytest.fixture(params=[False, True], ids=["direct", "serialised"])
def carried(request):
    """The way of a message: as it is, or through FLARE's serialiser."""
    fobs.register(TensorDecomposer)
    return (lambda message: fobs.loads(fobs.dumps(message))) if request.param else (lambda message: message)


def state(seed=0):
    generator = torch_generator("messages", seed)
    return {
        "weight": torch.randn(4, 3, 2, 2, generator=generator),
        "half": torch.randn(3, generator=generator).half(),
        "scalar": torch.tensor(2.5),
        "empty": torch.zeros(0),
        "counter": torch.tensor(17),
    }


def same(first, second):
    assert list(first) == list(second)
    for name, value in first.items():
        assert second[name].dtype == value.dtype
        assert torch.equal(second[name], value)


def message(**parts):
    return DXO(DataKind.COLLECTION, data=parts).to_shareable()


def part(kind=DataKind.WEIGHT_DIFF, **data):
    return DXO(kind, data=data)


def metrics(**values):
    return part(DataKind.METRICS, **values)


def test_a_payload_arrives_as_it_was(carried):
    values = {"problem": {"classes": ["a", "b"]}, "seed": 3, "nothing": None}
    sent = Payload(4, values, {"global": state(), "peer-1": state(1)})
    came = decode_payload(carried(encode_payload(sent)))
    assert came.round_number == 4
    assert dict(came.values) == values
    assert list(came.models) == ["global", "peer-1"]
    same(sent.models["global"], came.models["global"])
    same(sent.models["peer-1"], came.models["peer-1"])


def test_a_result_arrives_as_it_was(carried):
    sent = Result(state(), {"relation": {"matrix": torch.eye(3)}}, {"loss": 0.5, "validation.n": 12}, samples=40)
    came = decode_result(carried(encode_result(sent, declared=("update", "relation"))))
    same(sent.update, came.update)
    same(sent.releases["relation"], came.releases["relation"])
    assert dict(came.metrics) == {"loss": 0.5, "validation.n": 12}
    assert came.samples == 40


def test_metrics_alone_are_a_result(carried):
    came = decode_result(carried(encode_result(Result(metrics={"accuracy": 1}), declared=())))
    assert came.update is None
    assert came.releases == {}
    assert came.samples == 0


def test_kernels_in_channels_last_layout_arrive_contiguous(carried):
    kernel = torch.randn(4, 3, 2, 2, generator=torch_generator("kernel")).to(memory_format=torch.channels_last)
    assert not kernel.is_contiguous()
    payload = decode_payload(carried(encode_payload(Payload(1, {}, {"global": {"w": kernel}}))))
    result = decode_result(carried(encode_result(Result({"w": kernel}, samples=1), declared=("update",))))
    for came in (payload.models["global"]["w"], result.update["w"]):
        assert came.is_contiguous()
        assert torch.equal(came, kernel)


def test_the_update_is_where_standard_filters_look_for_it():
    parts = from_shareable(encode_result(Result(state(), samples=1), declared=("update",))).data
    assert parts["update"].data_kind == DataKind.WEIGHT_DIFF
    assert parts["metrics"].data_kind == DataKind.METRICS


@pytest.mark.parametrize(
    ("result", "name"),
    [
        (Result(update=state(), samples=1), "update"),
        (Result(releases={"secret": state()}), "secret"),
        (Result(releases={"matrix": state(), "embedding": state()}), "embedding"),
    ],
)
def test_what_is_not_declared_does_not_leave(result, name):
    with pytest.raises(
        MessageError, match=rf"release '{name}' is not declared by the method \(declared: \['matrix'\]\)"
    ):
        encode_result(result, declared=("matrix",))


@pytest.mark.parametrize("value", [NAN, INFINITY, -INFINITY])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_an_entry_that_is_not_finite_is_named_on_both_sides(value, dtype):
    bad = {"fine": torch.ones(3), "bias": torch.tensor([1.0, value], dtype=dtype)}
    pattern = r"\['bias'\] has a value that is NaN or infinite"
    with pytest.raises(MessageError, match="update" + pattern):
        encode_result(Result(bad, samples=1), declared=("update",))
    with pytest.raises(MessageError, match="matrix" + pattern):
        encode_result(Result(releases={"matrix": bad}), declared=("matrix",))
    with pytest.raises(MessageError, match="update" + pattern):
        decode_result(message(update=part(**bad), metrics=metrics(samples=1)))
    with pytest.raises(MessageError, match="release:matrix" + pattern):
        decode_result(message(**{"release:matrix": part(DataKind.APP_DEFINED, **bad), "metrics": metrics()}))
    with pytest.raises(MessageError, match="model:global" + pattern):
        decode_payload(encode_payload(Payload(1, {}, {"global": bad})))


def test_infinities_that_cancel_are_found():
    bad = {"a": torch.tensor([INFINITY]), "b": torch.tensor([-INFINITY])}
    with pytest.raises(MessageError, match=r"update\['a'\] has a value that is NaN or infinite"):
        encode_result(Result(bad, samples=1), declared=("update",))


def test_large_values_that_are_finite_pass():
    large = {"w": torch.full((100,), torch.finfo(torch.float64).max, dtype=torch.float64)}
    encode_result(Result(large, samples=1), declared=("update",))


def test_what_is_no_tensor_is_refused_on_both_sides():
    with pytest.raises(MessageError, match=r"update\['w'\] must be a tensor, got list"):
        encode_result(Result({"w": [1.0]}, samples=1), declared=("update",))
    with pytest.raises(MessageError, match=r"update\['w'\] must be a tensor, got float"):
        decode_result(message(update=part(w=1.0), metrics=metrics(samples=1)))


@pytest.mark.parametrize("decode", [decode_payload, decode_result])
def test_a_message_that_is_no_collection_is_refused(decode):
    with pytest.raises(MessageError, match=r"must be a collection of data exchange objects, got .*WEIGHTS"):
        decode(DXO(DataKind.WEIGHTS, data=state()).to_shareable())
    with pytest.raises(MessageError, match="the message holds no data exchange object"):
        decode(Shareable({"w": 1}))


def test_parts_that_nobody_knows_are_refused():
    with pytest.raises(MessageError, match="the task has an unknown part 'image'"):
        decode_payload(message(values=part(DataKind.APP_DEFINED, round=1), image=part()))
    with pytest.raises(MessageError, match="the result has an unknown part 'image'"):
        decode_result(message(metrics=metrics(), image=part()))


@pytest.mark.parametrize("values", [{}, {"values": part(DataKind.APP_DEFINED, round="1")}, {"values": part(seed=1)}])
def test_a_task_without_a_round_is_refused(values):
    with pytest.raises(MessageError, match="the task has no values with a round number"):
        decode_payload(message(**values))


def test_a_result_without_metrics_is_refused():
    with pytest.raises(MessageError, match="the result has no metrics"):
        decode_result(message(update=part(**state())))


@pytest.mark.parametrize("value", ["0.9", None, [1.0], torch.tensor(1.0)])
def test_a_metric_that_is_no_number_is_refused(value):
    with pytest.raises(MessageError, match=rf"metric 'accuracy' must be a finite number, got {type(value).__name__}"):
        decode_result(message(metrics=metrics(accuracy=value)))


@pytest.mark.parametrize("value", [NAN, INFINITY])
def test_a_metric_that_is_not_finite_is_refused(value):
    with pytest.raises(MessageError, match=rf"metric 'accuracy' must be a finite number, got {value}"):
        decode_result(message(metrics=metrics(accuracy=value)))


@pytest.mark.parametrize("value", [NAN, INFINITY, "many", 0, -3])
def test_an_update_without_a_number_of_samples_is_refused(value):
    with pytest.raises(MessageError, match="samples"):
        decode_result(message(update=part(**state()), metrics=metrics(samples=value)))
    with pytest.raises(MessageError, match="an update must come with its number of samples, got 0"):
        decode_result(message(update=part(**state()), metrics=metrics()))


TEMPLATE = {"a": torch.zeros(2), "b": torch.zeros(3, 1)}


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"a": torch.zeros(2)}, r"lacks 'b' \(1 missing, 0 unknown\): another architecture"),
        ({**TEMPLATE, "c": torch.zeros(1)}, r"has the unknown entry 'c' \(0 missing, 1 unknown\)"),
        (
            {**TEMPLATE, "b": torch.zeros(1, 3)},
            r"\['b'\] must be torch.float32 of shape \(3, 1\), got torch.float32 of shape \(1, 3\)",
        ),
        ({**TEMPLATE, "a": torch.zeros(2).double()}, r"\['a'\] must be torch.float32 .* got torch.float64"),
    ],
)
def test_a_state_of_another_architecture_is_refused(changed, problem):
    require_like(dict(reversed(TEMPLATE.items())), TEMPLATE, "update")
    with pytest.raises(MessageError, match="update ?" + problem):
        require_like(changed, TEMPLATE, "update")


def test_bytes_are_those_of_the_elements():
    states = {"global": {"w": torch.zeros(10, 3), "n": torch.tensor(1)}, "peer": {"h": torch.zeros(7).half()}}
    assert tensor_bytes(states) == {"global": 10 * 3 * 4 + 8, "peer": 14}
    assert tensor_bytes({}) == {}
