"""Small finished runs of every kind, each made once for all readers."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

import grandrounds as gr
from grandrounds.data.partition.phantom_site import FINDINGS_NAME
from grandrounds.deployment.jobs import load_job
from grandrounds.deployment.presets import with_options
from grandrounds.deployment.reference import add_reference, ridge_row
from grandrounds.deployment.simulate import Execution, simulate
from grandrounds.privacy.ledger.ledger import Ledger
from grandrounds.reporting import page

REPOSITORY = Path(__file__).parents[2]
OVERLAY = REPOSITORY / "provisioning" / "overlays" / "open.json"
SITES = ("site-1", "site-2", "site-3")
TINY = ["controller.rounds=2", "executor.steps=2", "executor.batch_size=8", "executor.device=cpu"]
FINDINGS = ["problem.task=multi", f"problem.dataset={FINDINGS_NAME}", 'problem.classes=["round","ring","clustered"]']


@dataclass(frozen=True)
class Finished:
    """A finished run with what was made of it.

    Attributes:
        workspace: of the run.
        model: whose scores are read.
        exact: whether no policy withholds anything.
        report: folder of its report.
        card: its model card; None where the sites kept their models.
    """

    workspace: Path
    model: str
    exact: bool
    report: Path
    card: Path | None

    @property
    def run(self) -> gr.Run:
        """The run as the API opens it."""
        return gr.Run(self.workspace)

    @property
    def summary(self) -> dict:
        """The content of its ``summary.json``."""
        return self.run.summary


KINDS = {
    "classes": ("fedavg", [], False, {}),
    "own models": ("local", [], False, {}),
    "findings": ("fedavg", FINDINGS, False, {}),
    "own models of findings": ("local", FINDINGS, False, {}),
    "classes under a policy": ("fedavg", [], True, {}),
    "findings under a policy": ("fedavg", FINDINGS, True, {}),
    "classes in FLARE's simulator": ("fedavg", [], False, {"engine": "flare", "threads": 2}),
}


def install_standard_policy(local: Path, site: str) -> None:
    """The policy that startup kits bring, and an empty ledger."""
    local.mkdir(parents=True)
    (local / "privacy.json").write_text(OVERLAY.read_text())
    Ledger.create(local / "privacy", site)


def finish(workspace: Path, exact: bool) -> Finished:
    """Report on a run, without its figures, which take longer than all else, and export its model."""
    run = gr.Run(workspace)
    model = "common" if "common" in next(iter(run.summary["records"].values())) else "own"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page, "run_drawings", lambda *_: [])
        run.report(workspace / "report", progress=False)
    card = None
    if model == "common":
        run.export(workspace / "card")
        card = workspace / "card" / "model_card.json"
    return Finished(workspace, model, exact, workspace / "report", card)


@pytest.fixture(scope="session")
def make(tmp_path_factory, shared_cache) -> Callable[[str], Finished]:
    """Make a run of a kind, once."""
    made: dict[str, Finished] = {}

    def of(kind: str) -> Finished:
        if kind not in made:
            name, options, policy, engine = KINDS[kind]
            place = tmp_path_factory.mktemp("run") / "w"
            if policy:
                for site in SITES:
                    install_standard_policy(place / "flare" / site / "local", site)
            job = with_options(load_job(name), [*TINY, *options]).checked()
            simulate(job, place, list(SITES), execution=Execution(**engine))
            add_reference(ridge_row(job, len(SITES)), place, SITES)
            made[kind] = finish(place, exact=not policy)
        return made[kind]

    return of


SLOW = {"classes in FLARE's simulator"}
"""Its summary is that of one process bit for bit: ``test_flares_simulator_gives_the_same_run``."""


@pytest.fixture(params=[pytest.param(kind, marks=[pytest.mark.slow] if kind in SLOW else []) for kind in KINDS])
def finished(request, make) -> Finished:
    """A finished run of each kind."""
    return make(request.param)


def read(path: Path) -> dict:
    """A JSON file."""
    return json.loads(path.read_text(encoding="utf-8"))
