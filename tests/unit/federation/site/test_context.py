"""Cached states stay in their folder, and the device of an option is there or is refused."""

import pytest
import torch

from grandrounds.errors import ConfigurationError, MessageError
from grandrounds.federation import machine
from grandrounds.federation.site.context import StateCache, choose_device
from grandrounds.methods.ridge.executor import RidgeExecutor
from grandrounds.methods.supervised.executor import SupervisedExecutor


@pytest.fixture
def cache(tmp_path):
    return StateCache(tmp_path / "site" / "received")


def files(tmp_path):
    return sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file())


def test_a_state_comes_back_as_it_was(cache):
    state = {"w": torch.tensor([[0.1, -0.0]]), "h": torch.tensor([1.5], dtype=torch.bfloat16), "n": torch.tensor(7)}
    cache.put("a-1", state)
    found = cache.get("a-1")
    assert list(found) == list(state)
    assert all(found[name].dtype == value.dtype and torch.equal(found[name], value) for name, value in state.items())


def test_a_later_state_takes_the_place_of_an_earlier_one_and_changes_in_memory_do_not_reach_it(cache):
    state = {"w": torch.zeros(1)}
    cache.put("a-1", {"w": torch.full((1,), 5.0)})
    cache.put("a-1", state)
    state["w"].fill_(9)
    assert cache.get("a-1")["w"].item() == 0


def test_another_process_finds_the_states(cache, tmp_path):
    cache.put("a-1", {"w": torch.ones(1)})
    assert StateCache(tmp_path / "site" / "received").get("a-1")["w"].item() == 1


def test_a_missing_or_damaged_state_is_none(cache, tmp_path):
    assert cache.get("a-1") is None
    cache.put("a-1", {"w": torch.ones(100)})
    (path,) = tmp_path.rglob("a-1.pt")
    path.write_bytes(path.read_bytes()[:200])
    assert cache.get("a-1") is None
    path.write_bytes(b"")
    assert cache.get("a-1") is None


def test_a_file_that_would_run_code_is_not_loaded(cache, tmp_path):
    class Harm:
        def __reduce__(self):
            return exec, ("raise SystemExit('ran')",)

    cache.put("a-1", {"w": torch.ones(1)})
    (path,) = tmp_path.rglob("a-1.pt")
    torch.save(Harm(), path)
    assert cache.get("a-1") is None


def test_only_the_named_states_stay(cache, tmp_path):
    for key in ("a-1", "b-2", "c-3"):
        cache.put(key, {"w": torch.ones(1)})
    other = tmp_path / "site" / "model.pt"
    other.write_bytes(b"not of the cache")
    (tmp_path / "site" / "received" / ".e-5.pt.0123").write_bytes(b"a process was killed while it wrote this")
    cache.keep_only(["b-2", "d-4"])
    assert files(tmp_path) == ["site/model.pt", "site/received/b-2.pt"]
    cache.keep_only([])
    assert files(tmp_path) == ["site/model.pt"]


def test_nothing_is_made_before_it_is_needed(cache, tmp_path):
    cache.get("a-1")
    cache.keep_only(["a-1"])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "key", ["../model", "a/b", "/etc/passwd", "..", ".hidden", "", "a\x00b", "a\n", "a.b", "x" * 65, None, 5]
)
def test_a_key_that_could_name_a_file_elsewhere_is_refused(cache, tmp_path, key):
    for use in (lambda: cache.put(key, {}), lambda: cache.get(key), lambda: cache.keep_only(["a-1", key])):
        with pytest.raises(MessageError, match="the key of a model must be letters, digits, '_' and '-', got "):
            use()
    assert list(tmp_path.iterdir()) == []


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


def test_workers_take_the_gpus_in_turn(gpus, monkeypatch):
    gpus(2)
    chosen = []
    for number in range(3):
        monkeypatch.setattr(machine, "_worker", number)
        chosen.append(choose_device("auto"))
    assert chosen == [torch.device("cuda", number) for number in (0, 1, 0)]


@pytest.fixture
def multiplication():
    """What torch lets a GPU round: by default in convolutions."""
    places = torch.backends.cudnn, torch.backends.cuda.matmul
    before = [place.allow_tf32 for place in places]
    yield lambda: tuple(place.allow_tf32 for place in places)
    for place, allowed in zip(places, before, strict=True):
        place.allow_tf32 = allowed


@pytest.mark.parametrize(("precision", "rounds"), [("float32", False), ("tf32", True), ("bfloat16", False)])
def test_single_precision_of_a_gpu_is_rounded_only_where_it_is_asked_for(gpus, multiplication, precision, rounds):
    gpus(1)
    choose_device("auto", precision)
    assert multiplication() == (rounds, rounds)


def test_tf32_is_refused_on_a_cpu_and_for_what_an_epsilon_or_a_sum_rests_on():
    with pytest.raises(
        ConfigurationError, match="precision=tf32 is of NVIDIA's GPUs, and the device is cpu; use float32"
    ):
        choose_device("cpu", "tf32")
    with pytest.raises(ConfigurationError, match=r"record_noise_multiplier.*precision"):
        SupervisedExecutor(steps=1, batch_size=2, record_noise_multiplier=1.0, precision="tf32")
    with pytest.raises(ConfigurationError, match="RidgeExecutor needs another precision than tf32"):
        RidgeExecutor(precision="tf32")


@pytest.mark.parametrize("name", ["cpu", "cuda", "cuda:1"])
def test_a_named_device_is_that_device(gpus, name):
    gpus(2)
    assert choose_device(name) == torch.device(name)


@pytest.mark.parametrize("name", ["gpu", "", "0", "cuda:x", "cuda:-1", "mps", "meta"])
def test_an_unknown_device_is_refused(gpus, name):
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
