"""Published weights arrive under our names; their pickle runs nothing; what does not fit is refused."""

import collections
import logging
import pickle
import subprocess
import sys

import pytest
import torch

from benchmarks.weights import resnet22, resnet22_unpickle
from benchmarks.weights.resnet22 import convert_published, from_published, published_name
from grandrounds.errors import ConfigurationError
from grandrounds.models.registry import build_model
from grandrounds.protocol.problem import ModelSpec

PARTS = {"norm1": "bn1", "norm2": "bn2", "conv1": "conv1", "conv2": "conv2", "shortcut": "downsample.0"}


def published(seed: int, view: str = "cc") -> dict[str, torch.Tensor]:
    """Weights as published: one view's network under their names, beside parts that are of no use here."""
    weights = collections.OrderedDict({"fc1_cc.weight": torch.zeros(2, 2)})
    for name, tensor in build_model(ModelSpec("resnet22", 2, channels=1), seed).state_dict().items():
        first, *rest = name.split(".")
        if first == "blocks":
            block, part, entry = int(rest[0]), rest[1], rest[2]
            theirs = f"layer_list.{block // 2}.{block % 2}.{PARTS[part]}.{entry}"
        elif first == "stem":
            theirs = "first_conv.weight"
        elif first == "norm":
            theirs = f"final_bn.{rest[0]}"
        else:
            continue
        if not theirs.endswith("num_batches_tracked"):
            weights[f"four_view_resnet.{view}.{theirs}"] = tensor
    return weights


def test_names_are_those_of_the_network():
    assert published_name("layer_list.4.1.conv2.weight") == "blocks.9.conv2.weight"
    assert published_name("first_conv.weight") == "stem.0.weight"
    assert published_name("final_bn.running_var") == "norm.running_var"
    assert published_name("layer_list.4.1.conv3.weight") is None


@pytest.fixture(scope="module")
def old_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("published") / "published.p"
    torch.save({"model": published(3), "epoch": 7}, path, _use_new_zipfile_serialization=False)
    return path


@pytest.fixture(scope="module")
def converted(old_file):
    path = old_file.with_name("resnet22.pt")
    convert_published(old_file, path)
    return str(path)


def test_a_converted_file_gives_the_encoder_and_an_untrained_head(converted, caplog):
    with caplog.at_level(logging.INFO):
        model = build_model(ModelSpec("resnet22", 2, channels=1, weights=converted, intensities="standardised"), seed=2)
    source, fresh = (build_model(ModelSpec("resnet22", 2, channels=1), seed).state_dict() for seed in (3, 2))
    assert "has no such head; ours starts untrained" in caplog.text
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, (fresh if name.startswith("classifier.") else source)[name]), name


def test_group_norm_and_three_channels_take_them_too(converted):
    spec = ModelSpec("resnet22", 2, channels=3, norm="group", weights=converted, intensities="standardised")
    source = published(3)["four_view_resnet.cc.first_conv.weight"]
    stem = build_model(spec, seed=2).stem[0].weight
    torch.testing.assert_close(stem, (source / 3).repeat(1, 3, 1, 1))


class Trap:
    """Writes a file when it is unpickled without restrictions."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def test_a_pickle_that_calls_functions_is_read_without_calling_them(tmp_path):
    sprung = tmp_path / "sprung"
    content = {"trap": Trap(sprung), "model": {**published(3), "trap": Trap(sprung)}}
    torch.save(content, tmp_path / "trap.p", _use_new_zipfile_serialization=False)
    convert_published(tmp_path / "trap.p", tmp_path / "resnet22.pt")
    assert not sprung.exists()
    pickle.loads(pickle.dumps(Trap(sprung)))
    assert sprung.exists(), "the trap works"
    state = torch.load(tmp_path / "resnet22.pt", weights_only=True)["state_dict"]
    assert set(state) == set(from_published(published(3)))


def test_what_reading_may_use_is_bounded_before_the_file_is_opened(monkeypatch, tmp_path):
    class LimitedError(Exception):
        pass

    def stop():
        raise LimitedError

    monkeypatch.setattr(resnet22_unpickle, "limit_resources", stop)
    with pytest.raises(LimitedError):
        resnet22_unpickle.main(str(tmp_path / "none.p"), "model", str(tmp_path / "out.pt"))


def test_the_limits_are_those_of_memory_files_time_and_core_dumps():
    # In a process of its own, since limits cannot be taken back.
    program = (
        f"import resource, runpy; found = runpy.run_path({resnet22_unpickle.__file__!r}); found['limit_resources']();"
        "print(*(resource.getrlimit(getattr(resource, 'RLIMIT_' + name))[1] for name in ('AS', 'FSIZE', 'CPU', 'CORE')))"
    )
    done = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True)
    assert [int(value) for value in done.stdout.split()] == [16 * 2**30, 2**30, 300, 0]


def test_the_reader_sees_nothing_of_our_environment(monkeypatch, tmp_path, old_file):
    monkeypatch.setenv("GRANDROUNDS_SECRET", "token")
    seen = []

    def noted(command, **options):
        seen.append((command, options))
        return subprocess.CompletedProcess(command, 1, b"", b"not read here")

    monkeypatch.setattr(subprocess, "run", noted)
    with pytest.raises(ConfigurationError, match="not read here"):
        convert_published(old_file, tmp_path / "resnet22.pt")
    ((command, options),) = seen
    assert command[1] == "-I"
    assert options["env"] == {}


def test_a_file_without_the_entry_is_refused_and_nothing_is_written(tmp_path):
    torch.save({"weights": {}}, tmp_path / "other.p", _use_new_zipfile_serialization=False)
    with pytest.raises(ConfigurationError, match="there is no entry 'model' with weights in it"):
        convert_published(tmp_path / "other.p", tmp_path / "resnet22.pt")
    assert not (tmp_path / "resnet22.pt").exists()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (None, r"stem\.0\.weight must have shape \(16, 1, 7, 7\), got no such entry"),
        ({"four_view_resnet.cc.final_bn.bias": torch.zeros(3)}, r"norm\.bias must have shape \(256,\), got \(3,\)"),
    ],
)
def test_weights_that_do_not_fit_are_refused_and_nothing_is_written(tmp_path, monkeypatch, old_file, changed, message):
    read = {} if changed is None else {**published(3), **changed}
    monkeypatch.setattr(resnet22, "_read_isolated", lambda source, timeout: read)
    with pytest.raises(ConfigurationError, match=f"do not fit resnet22: {message}"):
        convert_published(old_file, tmp_path / "resnet22.pt")
    assert not (tmp_path / "resnet22.pt").exists()


def test_another_view_is_chosen_by_name():
    assert torch.equal(from_published(published(4, "mlo"), "mlo")["norm.weight"], torch.ones(256))
    with pytest.raises(ConfigurationError, match="the weights of view cc do not fit"):
        from_published(published(4, "mlo"), "cc")
    with pytest.raises(ConfigurationError, match=r"view .*got 'lcc'"):
        from_published({}, "lcc")


def test_a_damaged_or_missing_file_is_refused(tmp_path):
    (tmp_path / "bad.p").write_bytes(b"no pickle at all")
    with pytest.raises(ConfigurationError, match=r"bad\.p cannot be read \("):
        convert_published(tmp_path / "bad.p", tmp_path / "resnet22.pt")
    with pytest.raises(ConfigurationError, match="there is no file"):
        convert_published(tmp_path / "none.p", tmp_path / "resnet22.pt")


def test_a_file_that_takes_too_long_is_given_up(tmp_path, old_file):
    with pytest.raises(ConfigurationError, match=r"reading took more than 0\.01 s"):
        convert_published(old_file, tmp_path / "resnet22.pt", timeout=0.01)


def test_the_command_line_reports_the_reason_in_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["resnet22", str(tmp_path / "none.p"), "out.pt"])
    with pytest.raises(SystemExit) as ended:
        resnet22.main()
    assert str(ended.value).startswith("error: there is no file")
    assert len(str(ended.value).splitlines()) == 1
