"""Behind a hospital's gate embeddings stay, unless its policy has a rule for them; then each row has the policy's noise."""

import pytest
import torch

from grandrounds.methods.fed_align_cl import executor
from tests.federations import Federation, draw_hospitals

SITES = ["site-1", "site-2", "site-3"]
CLIP, MULTIPLIER, IMAGES = 1.0, 8.0, 28
LAYERS = ["layers.0.weight", "layers.0.bias", "layers.2.weight", "layers.2.bias"]
WEIGHTS = {"kind": "model_update", "name": "update", "treatment": "unmodified"}
BANK = {"kind": "embeddings", "name": "bank", "entries": ["embeddings"]}
NOISY = {**BANK, "treatment": "clip_and_noise", "clip": CLIP, "noise_multiplier": MULTIPLIER}
DISCRIMINATOR = {"kind": "discriminator", "name": "discriminator", "treatment": "unmodified", "entries": LAYERS}


@pytest.fixture(scope="module")
def federation(tmp_path_factory, shared_cache):
    # A pace of four iterations gives a bank of 56 rows, twice as many as there are images.
    options = ["controller.rounds=1", "controller.validate_every=0", "executor.pace=4"]
    return Federation("fed_align_cl", SITES, draw_hospitals(tmp_path_factory.mktemp("hospitals"), SITES), options)


@pytest.fixture
def behind_a_gate(federation, install, tmp_path):
    """Run a round in which site-1 has a gate with these rules; what the server has for the others, and the round."""

    def go(rules, *assignments):
        policy = {
            "unit": "record",
            "delta": 1e-5,
            "releases": rules,
            "scalars": [
                {"name": name, "part": "train", "minimum_support": 2}
                for name in ("batch_size", "forgotten", "moved_forward")
            ],
            "facts": ["backbone"],
        }
        install(tmp_path / "flare" / "site-1" / "local", policy)
        found = federation(tmp_path, *assignments)
        state = torch.load(max(found.record.glob("round_*.pt")), weights_only=True)["content"]
        return state["method"]["for_others"], found.summary["rounds"][0]

    return go


@pytest.mark.parametrize("isolation", ["none", "process"])
def test_each_row_that_leaves_has_the_policys_noise(behind_a_gate, isolation, monkeypatch):
    monkeypatch.setenv("GRANDROUNDS_ISOLATION", isolation)
    sent, entry = behind_a_gate([WEIGHTS, NOISY, DISCRIMINATOR], "executor.bank_rows=distinct")
    assert entry["banks_from"] == SITES
    bank = sent["site-1"]["bank"]
    assert bank.shape == sent["site-2"]["bank"].shape == (IMAGES, 96)
    # Two rows of the clipped norm are at most twice the clip apart, and the multiplier is of that.
    assert float(bank.std()) == pytest.approx(2 * CLIP * MULTIPLIER, rel=0.06)
    assert float(sent["site-2"]["bank"].std()) < CLIP


def test_a_site_trains_with_the_policys_noise_on_its_own_embeddings(behind_a_gate, monkeypatch, tmp_path):
    noted = tmp_path / "noted.txt"
    init = executor.AlignmentTrainer.__init__

    def note(self, network, discriminator, optimizers, noise, random_bytes, gate, *rest):
        with noted.open("a") as stream:
            stream.write(f"{gate}\n")
        init(self, network, discriminator, optimizers, noise, random_bytes, gate, *rest)

    monkeypatch.setattr(executor.AlignmentTrainer, "__init__", note)
    behind_a_gate([WEIGHTS, NOISY, DISCRIMINATOR], "executor.bank_rows=distinct")
    assert sorted(noted.read_text().split("\n")[:-1]) == [str((CLIP, 2 * CLIP * MULTIPLIER)), "None", "None"]


@pytest.mark.parametrize(
    "rules",
    [[WEIGHTS, NOISY, DISCRIMINATOR], [WEIGHTS, DISCRIMINATOR], [WEIGHTS]],
    ids=["repeated", "no_bank", "neither"],
)
def test_a_bank_with_repeated_rows_or_without_a_rule_stays_and_the_others_go_on(rules, behind_a_gate):
    sent, entry = behind_a_gate(rules)
    assert "site-1" in entry["dropped"]
    assert entry["banks_from"] == SITES[1:]
    assert sorted(sent) == SITES[1:]
