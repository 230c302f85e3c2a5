"""What travels arrives as it was, and what must not travel or arrive is named."""

import pytest
import torch
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.shareable import Shareable
from nvflare.app_opt.pt.decomposers import TensorDecomposer
from nvflare.fuel.utils import fobs

from grandrounds.errors import MessageError
from grandrounds.protocol.messages import (
    PROTOCOL,
    Payload,
    Release,
    ReleaseKind,
    Result,
    model_update,
    require_like,
    tensor_bytes,
)
from grandrounds.protocol.wire import decode_payload, decode_result, encode_payload, encode_result
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


def assert_same(first, second):
    assert list(first) == list(second)
    for name, value in first.items():
        assert second[name].dtype == value.dtype
        assert torch.equal(second[name], value)


UPDATE_KIND, MATRIX_KIND = ReleaseKind.MODEL_UPDATE, ReleaseKind.CLASS_STATISTICS
VALUES = {"run_name": "trial", "run_id": "r1"}
ASKED = Payload(4, VALUES)
UPDATES = {"update": UPDATE_KIND}
MATRICES = {"matrix": MATRIX_KIND}


def matrix(tensors):
    return {"matrix": Release(MATRIX_KIND, tensors)}


def message(header=None, **parts):
    standard = {"protocol": PROTOCOL, "round": 4, "run_id": "r1", "samples": 3}
    return DXO(DataKind.COLLECTION, data=parts, meta={**standard, **(header or {})}).to_shareable()


def part(kind=DataKind.WEIGHT_DIFF, release="model_update", **data):
    return DXO(kind, data=data, meta={"release": release} if release else {})


def metrics(**values):
    return part(DataKind.METRICS, None, **values)


def test_a_payload_arrives_as_it_was(carried):
    values = {**VALUES, "problem": {"classes": ["a", "b"]}, "seed": 3, "nothing": None}
    sent = Payload(4, values, {"global": state(), "peer-1": state(1)})
    came = decode_payload(carried(encode_payload(sent)))
    assert came.round_number == 4
    assert dict(came.values) == values
    assert list(came.parts) == ["global", "peer-1"]
    assert_same(sent.parts["global"], came.parts["global"])
    assert_same(sent.parts["peer-1"], came.parts["peer-1"])


def test_a_result_arrives_as_it_was(carried):
    releases = {**model_update(state()), **matrix({"rows": torch.eye(3)})}
    sent = Result(releases, {"loss": 0.5, "validation.n": 12}, samples=40)
    came = decode_result(carried(encode_result(sent, {**UPDATES, **MATRICES}, ASKED)), ASKED)
    assert_same(sent.update, came.update)
    assert_same(sent.releases["matrix"].tensors, came.releases["matrix"].tensors)
    assert {name: release.kind for name, release in came.releases.items()} == {**UPDATES, **MATRICES}
    assert dict(came.metrics) == {"loss": 0.5, "validation.n": 12}
    assert came.samples == 40


def test_a_site_needs_no_second_copy_of_what_it_is_sent_and_the_server_keeps_its_own():
    kernel = torch.ones(4)
    payload = decode_payload(encode_payload(Payload(1, VALUES, {"global": {"w": kernel}})))
    came = decode_result(encode_result(Result(model_update({"w": kernel}), samples=1), UPDATES, ASKED), ASKED)
    assert payload.parts["global"]["w"].data_ptr() == kernel.data_ptr()
    assert came.update["w"].data_ptr() != kernel.data_ptr()


def test_a_part_of_a_larger_tensor_travels_and_arrives_alone():
    part = torch.arange(1000.0)[:2]
    payload = decode_payload(encode_payload(Payload(1, VALUES, {"global": {"w": part}})))
    sent = encode_result(Result(model_update({"w": part}), samples=1), UPDATES, ASKED)
    for value in (payload.parts["global"]["w"], from_shareable(sent).data["update"].data["w"]):
        assert value.untyped_storage().nbytes() == 8
        assert torch.equal(value, part)


def test_metrics_alone_are_a_result(carried):
    came = decode_result(carried(encode_result(Result(metrics={"accuracy": 1}), {}, ASKED)), ASKED)
    assert came.update is None
    assert came.releases == {}
    assert came.samples == 0


def test_a_result_without_metrics_is_one_too():
    """A hospital's policy may keep metrics back."""
    came = decode_result(message(update=part(**state())), ASKED)
    assert came.metrics == {}
    assert_same(came.update, state())


def test_kernels_in_channels_last_layout_arrive_contiguous(carried):
    kernel = torch.randn(4, 3, 2, 2, generator=torch_generator("kernel")).to(memory_format=torch.channels_last)
    assert not kernel.is_contiguous()
    payload = decode_payload(carried(encode_payload(Payload(1, VALUES, {"global": {"w": kernel}}))))
    result = Result(model_update({"w": kernel}), samples=1)
    came = decode_result(carried(encode_result(result, UPDATES, ASKED)), ASKED)
    for arrived in (payload.parts["global"]["w"], came.update["w"]):
        assert arrived.is_contiguous()
        assert torch.equal(arrived, kernel)


def test_the_update_is_where_standard_filters_look_for_it():
    parts = from_shareable(encode_result(Result(model_update(state()), samples=1), UPDATES, ASKED)).data
    assert parts["update"].data_kind == DataKind.WEIGHT_DIFF
    assert parts["metrics"].data_kind == DataKind.METRICS


@pytest.mark.parametrize(
    ("releases", "name"),
    [
        (model_update(state()), "update"),
        ({"secret": Release(MATRIX_KIND, state())}, "secret"),
        ({"matrix": Release(ReleaseKind.EMBEDDINGS, state())}, "matrix"),
    ],
    ids=["update", "unknown name", "another kind"],
)
def test_undeclared_releases_do_not_leave(releases, name):
    with pytest.raises(MessageError, match=rf"release '{name}' of kind \w+ is not declared by the method \(.*'matrix'"):
        encode_result(Result(releases, samples=1), MATRICES, ASKED)


@pytest.mark.parametrize("value", [NAN, INFINITY, -INFINITY])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_an_entry_that_is_not_finite_is_named_on_both_sides(value, dtype):
    bad = {"fine": torch.ones(3), "bias": torch.tensor([1.0, value], dtype=dtype)}
    pattern = r"\['bias'\] has a value that is NaN or infinite"
    with pytest.raises(MessageError, match="update" + pattern):
        encode_result(Result(model_update(bad), samples=1), UPDATES, ASKED)
    with pytest.raises(MessageError, match="matrix" + pattern):
        encode_result(Result(matrix(bad)), MATRICES, ASKED)
    with pytest.raises(MessageError, match="update" + pattern):
        decode_result(message(update=part(**bad)), ASKED)
    with pytest.raises(MessageError, match="matrix" + pattern):
        decode_result(message(matrix=part(DataKind.APP_DEFINED, "class_statistics", **bad)), ASKED)
    with pytest.raises(MessageError, match="global" + pattern):
        decode_payload(encode_payload(Payload(1, VALUES, {"global": bad})))


def test_infinities_that_cancel_are_found():
    bad = {"a": torch.tensor([INFINITY]), "b": torch.tensor([-INFINITY])}
    with pytest.raises(MessageError, match=r"update\['a'\].*infinite"):
        encode_result(Result(model_update(bad), samples=1), UPDATES, ASKED)


def test_large_values_that_are_finite_pass():
    large = {"w": torch.full((100,), torch.finfo(torch.float64).max, dtype=torch.float64)}
    came = decode_result(encode_result(Result(model_update(large), samples=1), UPDATES, ASKED), ASKED)
    assert_same(came.update, large)


def test_a_value_that_is_not_a_tensor_is_refused_on_both_sides():
    with pytest.raises(MessageError, match=r"update\['w'\] .*got list"):
        encode_result(Result(model_update({"w": [1.0]}), samples=1), UPDATES, ASKED)
    with pytest.raises(MessageError, match=r"update\['w'\] .*got float"):
        decode_result(message(update=part(w=1.0)), ASKED)


@pytest.mark.parametrize("decode", [decode_payload, lambda came: decode_result(came, ASKED)], ids=["task", "result"])
def test_a_message_that_is_no_collection_is_refused(decode):
    with pytest.raises(MessageError, match=r"must be a collection of data exchange objects, got .*WEIGHTS"):
        decode(DXO(DataKind.WEIGHTS, data=state()).to_shareable())
    with pytest.raises(MessageError, match="the message holds no data exchange object"):
        decode(Shareable({"w": 1}))


@pytest.mark.parametrize("header", [{"protocol": 1}, {"protocol": None}, {"round": "4"}])
def test_a_message_of_another_protocol_or_without_a_round_is_refused(header):
    with pytest.raises(MessageError, match=f"the message is of protocol .* expected '{PROTOCOL}'"):
        decode_payload(message({"values": VALUES, **header}))
    with pytest.raises(MessageError, match=f"the message is of protocol .* expected '{PROTOCOL}'"):
        decode_result(message(header), ASKED)


def test_a_part_of_a_result_that_has_no_kind_is_refused():
    for unknown in (part(release=None, **state()), part(release="photograph", **state())):
        with pytest.raises(MessageError, match=r"unknown.*'image'"):
            decode_result(message(image=unknown), ASKED)


@pytest.mark.parametrize(("round_number", "run_id"), [(3, "r1"), (4, "r2")])
def test_an_answer_to_another_task_is_refused(round_number, run_id):
    asked = Payload(round_number, {"run_id": run_id})
    answer = encode_result(Result(), {}, asked)
    with pytest.raises(
        MessageError, match=rf"the answer is to another task \(round {round_number}, asked in round 4\)"
    ):
        decode_result(answer, ASKED)


@pytest.mark.parametrize("field", ["run_name", "run_id"])
@pytest.mark.parametrize("name", ["/data/skin", "../up", "", ".hidden", "a" * 65, "a/b", None, 3])
def test_a_name_that_could_name_another_folder_is_refused(field, name):
    with pytest.raises(MessageError, match=f"{field} must be 1 to 64 letters"):
        decode_payload(encode_payload(Payload(1, {**VALUES, field: name})))


@pytest.mark.parametrize("number", [-1, 10**30])
def test_a_round_that_cannot_be_is_refused(number):
    with pytest.raises(MessageError, match="the round of a task must be a number from 0 to 1000000000"):
        decode_payload(encode_payload(Payload(number, VALUES)))


@pytest.mark.parametrize("seed", [[1, 2], "1", True, 1.0])
def test_a_seed_that_is_no_whole_number_is_refused(seed):
    with pytest.raises(MessageError, match=f"the seed of a task must be a whole number, got {type(seed).__name__}"):
        decode_payload(encode_payload(Payload(1, {**VALUES, "seed": seed})))


def test_a_task_without_values_is_refused():
    with pytest.raises(MessageError, match="the task has no values in its header"):
        decode_payload(message())


@pytest.mark.parametrize("name", ["accuracy\x1b[2J", "<img>", "=HYPERLINK(1)", "a\n", "größe", "", "a" * 129])
def test_the_name_of_a_metric_is_plain_characters(name):
    with pytest.raises(MessageError, match="a metric's name must be at most 128 plain characters"):
        decode_result(message(metrics=metrics(**{name: 1.0})), ASKED)


@pytest.mark.parametrize("value", ["0.9", None, [1.0], torch.tensor(1.0)])
def test_a_metric_that_is_no_number_is_refused_on_both_sides(value):
    pattern = rf"metric 'accuracy' must be a finite number, got {type(value).__name__}"
    with pytest.raises(MessageError, match=pattern):
        decode_result(message(metrics=metrics(accuracy=value)), ASKED)
    with pytest.raises(MessageError, match=pattern):
        encode_result(Result(metrics={"accuracy": value}), {}, ASKED)


@pytest.mark.parametrize("value", [NAN, INFINITY])
def test_a_metric_that_is_not_finite_is_refused(value):
    with pytest.raises(MessageError, match=rf"metric 'accuracy' must be a finite number, got {value}"):
        decode_result(message(metrics=metrics(accuracy=value)), ASKED)


@pytest.mark.parametrize("value", [10**13, 10**400, -(10**5000)], ids=["large", "no float", "no text"])
def test_a_metric_that_is_a_huge_integer_is_refused_on_both_sides(value):
    with pytest.raises(MessageError, match="metric 'accuracy' must be a finite number, got int"):
        decode_result(message(metrics=metrics(accuracy=value)), ASKED)
    with pytest.raises(MessageError, match="metric 'accuracy' must be a finite number, got int"):
        encode_result(Result(metrics={"accuracy": value}), {}, ASKED)


@pytest.mark.parametrize("value", [NAN, "many", -3, 10**10, True, None])
def test_changes_of_the_data_are_a_number_that_makes_sense(value):
    with pytest.raises(MessageError, match=r"data_changes.*from 0"):
        decode_result(message({"data_changes": value}), ASKED)


@pytest.mark.parametrize("value", [NAN, INFINITY, "many", 0, -3, 10**10, 1e308])
def test_an_update_needs_a_number_of_samples_that_makes_sense(value):
    with pytest.raises(MessageError, match="an update must come with its number of samples"):
        decode_result(message({"samples": value}, update=part(**state())), ASKED)


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


FACTS = Result(metrics={"labelled": 1.0}, facts={"digest": "0a" * 32})


def test_facts_arrive_beside_metrics(carried):
    came = decode_result(carried(encode_result(FACTS, {}, ASKED, ["digest"])), ASKED)
    assert (came.facts, came.metrics, came.releases) == (FACTS.facts, FACTS.metrics, {})


def test_a_fact_that_was_not_declared_does_not_leave():
    with pytest.raises(MessageError, match=r"fact 'digest' is not declared by the method \(declared: \['backbone'\]\)"):
        encode_result(FACTS, {}, ASKED, ["backbone"])


def test_a_fact_that_is_no_short_text_neither_leaves_nor_arrives():
    with pytest.raises(MessageError, match="printable characters, got 500"):
        encode_result(Result(facts={"digest": "x" * 500}), {}, ASKED, ["digest"])
    message = encode_result(FACTS, {}, ASKED, ["digest"])
    message["DXO"]["data"]["facts"].data["digest"] = "x" * 500
    with pytest.raises(MessageError, match="printable characters, got 500"):
        decode_result(message, ASKED)


def test_an_answer_without_facts_has_no_such_part():
    assert set(from_shareable(encode_result(Result(), {}, ASKED)).data) == {"metrics"}
