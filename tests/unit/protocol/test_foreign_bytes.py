"""Bytes of other parties, as FLARE's readers of tensors and arrays get them: shapes and sizes that do not fit are errors."""

import json

import pytest
import torch
from nvflare.app_common.decomposers.numpy_decomposers import NumpyArrayDecomposer
from nvflare.app_opt.pt.decomposers import TensorDecomposer
from safetensors.torch import save

from grandrounds.errors import MessageError
from grandrounds.privacy.gate.questions import SentAnswers
from grandrounds.protocol.messages import require_run_name


def tensor(shape, length=None):
    """A message with a header of this shape and no values; ``length`` is what it says of the header's."""
    header = json.dumps({"t": {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]}}).encode()
    return (len(header) if length is None else length).to_bytes(8, "little") + header


@pytest.mark.parametrize(
    "content",
    [
        save({"t": torch.zeros(2)}).replace(b'"shape":[2]', b'"shape":[9]'),
        tensor([2**62, 4]),
        tensor([2**40]),
        tensor([1], length=2**40),
        b"",
    ],
    ids=["another shape", "overflow", "no values", "long header", "empty"],
)
def test_a_tensor_whose_bytes_do_not_fit_its_header_is_an_error(content):
    with pytest.raises(Exception, match=r"(?i)deserializ|header|shape"):
        TensorDecomposer().native_recompose(content)


def array(kind, shape):
    header = f"{{'descr': {kind!r}, 'fortran_order': False, 'shape': {shape}, }}".encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (array("|O", "(1,)") + b"cos\nsystem\n(S'id'\ntR.", ValueError),
        (array("<f8", "(-1,)"), ValueError),
        (array("<f8", f"({2**62}, 4)"), (ValueError, MemoryError)),
    ],
    ids=["program", "negative", "overflow"],
)
def test_an_array_with_a_program_or_an_impossible_shape_is_an_error(content, error):
    with pytest.raises(error):
        NumpyArrayDecomposer().native_recompose(content)


@pytest.mark.parametrize("name", ["..", ".", "run\n", "run ", "\u0430bc", "-x", "a" * 65, "a/b", "a\x00b", 7])
def test_a_runs_name_is_no_path_and_has_no_look_alike(name):
    with pytest.raises(MessageError, match="run_name"):
        require_run_name(name)


def test_checkpoints_of_any_size_neither_lose_nor_mix_answers(tmp_path):
    """A server chooses them; they only say which answers it will not ask for again."""
    sent = SentAnswers(tmp_path, "r")
    for number, checkpoints in ((1, [10**30, -5]), (2, [-(10**30)]), (10**9, [1])):
        question = str(number).ljust(64, "a")
        sent.keep(question, number, str(number).encode(), checkpoints)
        assert sent.find(question) == str(number).encode()
    assert sent.find("x" * 64) is None
