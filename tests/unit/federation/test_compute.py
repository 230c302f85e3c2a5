"""The device of an option is there, or is refused before anything starts."""

import pytest
import torch

from grandrounds.errors import ConfigurationError
from grandrounds.federation.site.context import choose_device


@pytest.fixture
def gpus(monkeypatch):
    """Let torch find so many GPUs."""

    def set_count(count):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)

    return set_count


def test_auto_is_a_gpu_where_there_is_one(gpus):
    gpus(0)
    assert choose_device("auto") == torch.device("cpu")
    gpus(1)
    assert choose_device("auto") == torch.device("cuda")


@pytest.mark.parametrize("name", ["cpu", "cuda", "cuda:1"])
def test_a_named_device_is_that_device(gpus, name):
    gpus(2)
    assert choose_device(name) == torch.device(name)


@pytest.mark.parametrize("name", ["gpu", "", "0", "cuda:x", "cuda:-1", "mps", "meta"])
def test_what_is_no_device_of_ours_is_refused(gpus, name):
    gpus(2)
    with pytest.raises(ConfigurationError, match=rf"^device must be auto, cpu or cuda\[:index\], got '{name}'$"):
        choose_device(name)


@pytest.mark.parametrize("name", ["cuda", "cuda:0"])
def test_a_gpu_that_is_not_there_is_refused(gpus, name):
    gpus(0)
    with pytest.raises(
        ConfigurationError, match=f"^device is '{name}', but torch finds no GPU here; use device=cpu or"
    ):
        choose_device(name)


def test_a_gpu_with_too_high_a_number_is_refused(gpus):
    gpus(2)
    with pytest.raises(ConfigurationError, match=r"^device is 'cuda:2', but the last GPU here is cuda:1$"):
        choose_device("cuda:2")
