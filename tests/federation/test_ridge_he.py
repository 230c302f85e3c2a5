"""Ridge regression on sums that the server cannot read gives the head of plain sums, from three sites on."""

import pytest
import torch

from grandrounds.errors import ConfigurationError, GrandRoundsError
from grandrounds.methods.ridge.encrypted.controller import EncryptedRidgeController
from grandrounds.methods.ridge.encrypted.executor import EncryptedRidgeExecutor
from grandrounds.methods.ridge.phases import SOLVED
from grandrounds.models.depths import DepthHead
from grandrounds.privacy.mechanisms.encrypted_sums import write_keys
from grandrounds.protocol.messages import CONTRIBUTION, Release, ReleaseKind
from tests.federations import Federation, draw_hospitals

pytest.importorskip("tenseal")

SITES = ["site-1", "site-2", "site-3"]
CHOSEN = ["controller.penalties=[0.3]", "controller.temperature=4.0", "controller.largest_norm=20"]


@pytest.fixture(scope="module")
def go(tmp_path_factory, shared_cache, small_networks):
    folder = draw_hospitals(tmp_path_factory.mktemp("hospitals"), SITES)
    write_keys(folder, SITES)
    run = Federation("ridge_he", SITES, folder)

    def started(place, *options, name="ridge_he", **others):
        job = run.job(*options, name=name)
        return run(place, job=job, **others)

    return started


@pytest.fixture
def watched(monkeypatch):
    """What the server sends and receives, by round."""
    sent, received = {}, {}
    payload_for, absorb = EncryptedRidgeController.payload_for, EncryptedRidgeController.absorb

    def sending(self, site):
        sent[self.round_number] = payload_for(self, site)
        return sent[self.round_number]

    def receiving(self, site, result):
        received.setdefault(self.round_number, {})[site] = result
        absorb(self, site, result)

    monkeypatch.setattr(EncryptedRidgeController, "payload_for", sending)
    monkeypatch.setattr(EncryptedRidgeController, "absorb", receiving)
    return sent, received


def head_of(found):
    state = torch.load(found.results / "selected.pt", weights_only=True)
    names = ("linear.weight", "linear.bias", "shift", "scale", "temperature")
    weight, bias, *others = [next(value for key, value in state.items() if key.endswith(name)) for name in names]
    shift, scale, temperature = [value.view(torch.float32).double() for value in others]
    return weight.double(), bias.double(), shift, scale, temperature


def scores_of(head, features):
    weights, bias, shift, scale, temperature = head
    return temperature * ((features - shift) * scale @ weights.T + bias)


@pytest.fixture
def written(monkeypatch):
    """The heads that the server writes into its network, in float64."""
    heads, write = [], DepthHead.set_linear

    def writing(self, weights, bias, shift=None, scale=None, temperature=1.0):
        heads.append((weights, bias, shift, scale, temperature))
        write(self, weights, bias, shift, scale, temperature)

    monkeypatch.setattr(DepthHead, "set_linear", writing)
    return heads


def test_the_scores_are_those_of_plain_sums_and_the_server_reads_nothing(go, tmp_path, watched, written):
    plain = go(tmp_path / "plain", *CHOSEN, name="ridge")
    expected = written[-1]
    hidden = go(tmp_path / "hidden", *CHOSEN)
    *_, shift, scale, _ = expected
    features = shift + torch.randn(50, len(shift), generator=torch.Generator().manual_seed(0)).double() / scale
    one, two = scores_of(expected, features), scores_of(written[-1], features)
    assert float(one.abs().max()) > 1
    assert float((one - two).abs().max()) < 1e-6
    for rounded in (plain, hidden):  # as the network has it
        assert float((one - scores_of(head_of(rounded), features)).abs().max()) < 1e-4
    records = [found.summary["records"][SITES[0]]["common"]["exact"]["log_loss"] for found in (plain, hidden)]
    assert records[1] == pytest.approx(records[0], rel=1e-5)
    _, received = watched
    for number in (1, 2):
        for result in received[number].values():
            (release,) = result.releases.values()
            assert release.kind is ReleaseKind.ENCRYPTED_VALUES
            assert release.tensors.keys() == {CONTRIBUTION}
            assert result.samples == 1
            assert set(result.metrics) == {"train_seconds"}


def test_losses_choose_the_penalty_and_the_temperature(go, tmp_path, watched):
    found = go(tmp_path / "run", "controller.penalties=[0.03, 3.0]")
    _, received = watched
    losses = {site: result.metrics for site, result in received[3].items()}
    total = [sum(one["validation.n"] * one[f"validation.log_loss.{n}"] for one in losses.values()) for n in range(50)]
    best = total.index(min(total))
    notes = found.summary["rounds"][2]["ridge"]
    assert notes["penalty"] == [0.03, 3.0][best // 25]
    assert notes["temperature"] == pytest.approx(2 ** (0.25 * (best % 25)))
    assert found.summary["rounds"][1]["ridge"] == {"summed": SITES}
    assert float(head_of(found)[-1]) == pytest.approx(notes["temperature"])


def test_two_sites_are_refused(go, tmp_path):
    with pytest.raises(ConfigurationError, match="min_sites must be at least 3"):
        go(tmp_path / "few", "controller.min_sites=2")
    with pytest.raises(ConfigurationError, match="at most 8"):
        go(tmp_path / "many", f"controller.penalties={[float(n) for n in range(1, 10)]}")


def test_a_site_opens_no_sum_of_two(go, tmp_path, monkeypatch):
    """Also if the server sends one: it leaves a site's contribution out."""
    add = EncryptedRidgeController.absorb

    def lose(self, site, result):
        if site != "site-3" or self.phase != "solve":
            add(self, site, result)

    monkeypatch.setattr(EncryptedRidgeController, "absorb", lose)
    with pytest.raises(GrandRoundsError, match="it must be of at least 3 different sites"):
        go(tmp_path / "run", *CHOSEN)


def test_sites_that_solve_different_heads_end_the_run(go, tmp_path, monkeypatch):
    solved = EncryptedRidgeExecutor._solved

    def apart(self, payload, context):
        result = solved(self, payload, context)
        if context.site == "site-2":
            tensors = {name: value + 1e-3 for name, value in result.releases[SOLVED].tensors.items()}
            result.releases[SOLVED] = Release(ReleaseKind.SOLVED_HEAD, tensors)
        return result

    monkeypatch.setattr(EncryptedRidgeExecutor, "_solved", apart)
    with pytest.raises(GrandRoundsError, match="site-1 and site-2 have solved different heads"):
        go(tmp_path / "run", *CHOSEN)


def test_a_run_goes_on_from_the_encrypted_sums(go, tmp_path, monkeypatch):
    whole = go(tmp_path / "whole", *CHOSEN)
    choose = EncryptedRidgeController._choose
    monkeypatch.setattr(EncryptedRidgeController, "_choose", lambda self: 1 / 0)
    with pytest.raises(Exception):  # noqa: B017 - whatever the engine makes of it
        go(tmp_path / "cut", *CHOSEN)
    monkeypatch.setattr(EncryptedRidgeController, "_choose", choose)
    resumed = go(tmp_path / "cut", *CHOSEN)
    assert resumed.summary["rounds"][2]["ridge"]["temperature"] == 4
    for one, two in zip(head_of(whole), head_of(resumed), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-6, atol=1e-6)
