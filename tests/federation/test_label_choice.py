"""Ridge chooses images to label across sites: each has its own list, and the server has sums of counts."""

import csv
import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

from grandrounds.data.location import locate
from grandrounds.data.site import load_site_data
from grandrounds.deployment.kit.shipped import OPEN, SUMS, shipped_content
from grandrounds.errors import ConfigurationError, GrandRoundsError
from grandrounds.evaluation.counts import MARGIN_BINS
from grandrounds.evaluation.label_choice import gaps_of, meant_for
from grandrounds.evaluation.label_quotas import quotas
from grandrounds.evaluation.prediction import predict, tensors_of
from grandrounds.federation.engine import Site
from grandrounds.federation.server.record import read_events
from grandrounds.federation.site.data import SiteAccess
from grandrounds.federation.site.store import SiteStore
from grandrounds.methods.ridge.controller import RidgeController
from grandrounds.methods.ridge.executor import RidgeExecutor
from grandrounds.models.registry import build_model
from grandrounds.privacy.ledger.ledger import Ledger
from grandrounds.protocol.messages import DXO_KEY
from grandrounds.protocol.problem import Problem
from tests.federations import Federation, as_between_kits, cut, draw_hospitals

SITES = ["site-1", "site-2", "site-3"]
BUDGET, MINIMUM = 24, 10
LABELS, SECURE = f"controller.label_budget={BUDGET}", "controller.aggregation=secure"


@pytest.fixture(scope="module")
def run(tmp_path_factory, shared_cache):
    folder = draw_hospitals(tmp_path_factory.mktemp("hospitals"), SITES, images=480, labelled=0.5)
    return Federation("ridge", SITES, folder)


@pytest.fixture(scope="module")
def few(tmp_path_factory, shared_cache):
    return Federation("ridge", SITES, draw_hospitals(tmp_path_factory.mktemp("few"), SITES, images=120, labelled=0.5))


@pytest.fixture(scope="module")
def without(run, tmp_path_factory):
    return run(tmp_path_factory.mktemp("without"))


@pytest.fixture(scope="module", params=["mean", "secure"])
def found(run, tmp_path_factory, request):
    return run(tmp_path_factory.mktemp(request.param), LABELS, f"controller.aggregation={request.param}")


def lists(found):
    """Names and classes of each site's list, in its order."""
    read = {}
    for site in SITES:
        path = found.record.parent / site / "label_next.csv"
        assert path.stat().st_mode & 0o077 == 0
        with path.open() as stream:
            read[site] = [(row["image"], row["meant"]) for row in csv.DictReader(stream)]
    return read


def pooled_choice(run, found):
    """What one place with the images of all sites would choose by the run's head."""
    problem = Problem.from_dict(found.summary["configuration"]["problem"])
    network = build_model(problem.model_spec(pretrained=False), 1)
    network.load_state_dict(found.models["last"])
    names, decisions = [], []
    for site in SITES:
        data = load_site_data(locate(problem.dataset, site, [run.folder], run.folder), problem, run.folder / "cache")
        rows = data.rows("unlabelled")
        decisions.append(predict(network, tensors_of(data.images), rows).decisions.numpy())
        names += [(site, data.names[row]) for row in rows]
    labelled = np.array([*found.summary["rounds"][0]["ridge"]["class_counts"].values()])
    whole = np.concatenate(decisions)
    meant, order = meant_for(whole, labelled), np.argsort(gaps_of(whole), kind="stable")
    wanted = quotas(np.bincount(meant, minlength=len(labelled)), labelled, BUDGET)
    return {names[row] for name, many in enumerate(wanted) for row in order[meant[order] == name][:many]}


def test_the_sites_choose_what_one_place_with_all_images_would(run, found):
    assert {(site, image) for site, own in lists(found).items() for image, _ in own} == pooled_choice(run, found)
    assert sum(map(len, lists(found).values())) == BUDGET


def test_the_head_is_that_of_a_run_without_and_the_server_knows_no_list(run, found, without):
    if "site-1" in found.summary["records"]:  # plain sums, as in the run without
        assert all(torch.equal(without.models["selected"][name], of) for name, of in found.models["selected"].items())
    notes = found.summary["rounds"][3]["ridge"]
    assert notes.keys() == {"label_budget", "unlabelled_images"}
    assert notes["label_budget"] == BUDGET
    assert "label" not in json.dumps(without.summary["rounds"])
    told = json.dumps(read_events(found.results))
    assert not any(image in told for own in lists(found).values() for image, _ in own)


def test_a_finished_run_goes_on_with_a_budget_to_the_same_lists(run, found, tmp_path):
    kind = "mean" if "site-1" in found.summary["records"] else "secure"
    before = run(tmp_path, f"controller.aggregation={kind}")
    assert not list(tmp_path.rglob("label_next.csv"))
    after = run(tmp_path, LABELS, f"controller.aggregation={kind}")
    assert lists(after) == lists(found)
    assert all(torch.equal(before.models["last"][name], of) for name, of in after.models["last"].items())


@pytest.mark.parametrize("policy", [SUMS, OPEN])
def test_under_shipped_policies_no_count_of_few_patients_leaves(run, policy, tmp_path, monkeypatch):
    for site in SITES:
        local = tmp_path / "flare" / site / "local"
        local.mkdir(parents=True)
        (local / "privacy.json").write_text(json.dumps(shipped_content(policy)))
        Ledger.create(local / "privacy", site)
    counted, left = [], []
    rank, work = RidgeExecutor._rank, Site.work

    def ranks(self, payload, context):
        result = rank(self, payload, context)
        counted.append(result.releases["label_margins"].tensors)
        return result

    def works(self, task, message, server):
        reply = work(self, task, message, server)
        left.append(reply[DXO_KEY]["data"] if DXO_KEY in reply else {})
        return reply

    monkeypatch.setattr(RidgeExecutor, "_rank", ranks)
    monkeypatch.setattr(Site, "work", works)
    found = run(tmp_path, LABELS, *([SECURE] if policy == SUMS else []))
    assert len(counted) == len(SITES)
    for tensors in counted:
        counts = tensors["label_margins"]
        assert tuple(counts.shape) == (MARGIN_BINS, 4)
        assert counts[counts > 0].min() >= MINIMUM
    assert abs(sum(map(len, lists(found).values())) - BUDGET) <= 2
    plain = [parts for parts in left if "label_margins" in parts]
    assert len(plain) == (0 if policy == SUMS else len(SITES))


def test_a_policy_without_a_rule_for_the_counts_refuses_before_an_image_is_read(run, tmp_path, monkeypatch):
    content = shipped_content(OPEN)
    rules = content["scopes"][0]["properties"]["grandrounds"]["releases"]
    (sums,) = [rule for rule in rules if rule["kind"] == "sufficient_statistics"]
    sums["name"] = ["class_counts", "sums"]
    for site in SITES:
        local = tmp_path / "flare" / site / "local"
        local.mkdir(parents=True)
        (local / "privacy.json").write_text(json.dumps(content))
        Ledger.create(local / "privacy", site)
    read = []
    monkeypatch.setattr(SiteAccess, "with_images", lambda *arguments: read.append(arguments))
    with pytest.raises(GrandRoundsError, match="3 of 3 sites refuse"):
        run(tmp_path, LABELS)
    assert not read
    (path,) = tmp_path.glob("state/*/server/summary.json")
    refusals = json.loads(path.read_text())["refusals"]
    assert all("label_margins (sufficient_statistics)" in refusals[site]["cause"] for site in SITES)


def hostile(monkeypatch, number, **values):
    """In one round the server asks for images to label, by one label of each class."""
    payload_for = RidgeController.payload_for

    def asks(self, site):
        payload = payload_for(self, site)
        asked = {"phase": "labels", **values}
        parts = {**payload.parts, "labels": {"labels": torch.ones(4, dtype=torch.int64)}}
        return (
            replace(payload, values={**payload.values, **asked}, parts=parts)
            if payload.round_number == number
            else payload
        )

    monkeypatch.setattr(RidgeController, "payload_for", asks)


def listed(workspace):
    return [path.parent.name for path in workspace.rglob("label_next.csv")]


@pytest.mark.parametrize("values", [{}, {"label_budget": 5}])
def test_a_server_that_asks_for_counts_in_a_job_without_them_gets_none(few, tmp_path, monkeypatch, values):
    hostile(monkeypatch, 3, **values)
    with pytest.raises(GrandRoundsError, match="label_budget"):
        few(tmp_path)


@pytest.mark.parametrize("guard", ["of the run", "of the job"])
def test_a_second_question_by_other_labels_is_not_answered(few, tmp_path, monkeypatch, guard):
    if guard == "of the run":
        monkeypatch.setattr(RidgeExecutor, "_question", property(lambda self: "", lambda self, value: None))
    else:
        monkeypatch.setattr(SiteStore, "first_question", lambda self, name, question: question)
    hostile(monkeypatch, 3)
    with pytest.raises(GrandRoundsError, match="once in a run and in a job"):
        few(tmp_path, LABELS)
    assert not listed(tmp_path)


def test_after_a_crash_the_same_question_is_answered_and_another_is_not(few, tmp_path, monkeypatch):
    whole = few(tmp_path / "whole", LABELS)
    for name in ("same", "other"):
        with pytest.raises(KeyboardInterrupt):
            few(tmp_path / name, job=cut(few.job(LABELS), 4))
    assert lists(few(tmp_path / "same", LABELS)) == lists(whole)
    hostile(monkeypatch, 4)
    with pytest.raises(GrandRoundsError, match="once in a run and in a job"):
        few(tmp_path / "other", LABELS)


@pytest.mark.parametrize("aggregation", ["mean", "secure"])
def test_one_site_with_unlabelled_images_has_a_list_in_the_clear_only(tmp_path, shared_cache, aggregation):
    shares = {**dict.fromkeys(SITES, 1.0), "site-2": 0.4}
    folder = draw_hospitals(tmp_path / "hospitals", SITES, images=80, labelled=shares)
    found = Federation("ridge", SITES, folder)(tmp_path / "run", LABELS, f"controller.aggregation={aggregation}")
    notes = found.summary["rounds"][3]["ridge"]
    assert ("unlabelled_images" in notes) == (aggregation == "mean")
    assert len([remark for remark in found.summary["remarks"] if "images to label" in remark]) == (
        aggregation == "secure"
    )
    filled = [site for site, own in lists(found).items() if own] if aggregation == "mean" else listed(tmp_path)
    assert filled == (["site-2"] if aggregation == "mean" else [])


@pytest.mark.parametrize("bins", [MARGIN_BINS, MARGIN_BINS - 1, MARGIN_BINS + 1])
def test_cuts_that_cannot_be_cost_the_list_alone_and_no_site_labels_more_than_the_budget(
    few, tmp_path, monkeypatch, bins
):
    cuts = {"bins": torch.full((4,), bins), "shares": torch.ones(4, dtype=torch.float64)}
    monkeypatch.setattr(RidgeController, "parts_for_test", lambda self, site: {"label_cuts": cuts})
    found = few(tmp_path, LABELS)
    assert set(found.summary["records"]) == set(SITES)
    if bins > MARGIN_BINS:
        assert not listed(tmp_path)
    else:
        assert [len(own) for own in lists(found).values()] == [BUDGET] * 3


def test_no_list_is_made_of_images_that_were_not_counted(few, tmp_path, monkeypatch):
    folder = shutil.copytree(few.folder, tmp_path / "hospitals")
    with monkeypatch.context() as patch:
        patch.setattr(RidgeController, "_finish", lambda self: None)
        few(tmp_path / "run", LABELS, folder=folder)
    assert not listed(tmp_path)
    manifest = folder / "site-2" / "manifest.csv"
    with manifest.open() as stream:
        rows = list(csv.DictReader(stream))
    gone = next(row for row in rows if row["split"] == "train" and row["labelled"] == "0")
    with manifest.open("w", newline="") as stream:
        table = csv.DictWriter(stream, list(rows[0]))
        table.writeheader()
        table.writerows({**row, "labelled": "1"} if row is gone else row for row in rows)
    as_between_kits(tmp_path / "run")
    found = few(tmp_path / "run", LABELS, folder=folder)
    assert set(found.summary["records"]) == set(SITES)
    assert sorted(listed(tmp_path)) == ["site-1", "site-3"]


def test_a_run_has_one_budget_and_is_finished_without(few, tmp_path):
    first = few(tmp_path, LABELS)
    with pytest.raises(GrandRoundsError, match=f"label_budget={BUDGET}"):
        few(tmp_path, f"controller.label_budget={BUDGET + 1}")
    after = few(tmp_path)
    assert len(after.summary["rounds"]) == 4
    assert all(torch.equal(first.models["last"][name], of) for name, of in after.models["last"].items())


def test_a_site_that_claims_many_images_of_a_class_has_ten_medians_of_them(few, tmp_path, monkeypatch):
    rank = RidgeExecutor._rank

    def claims(self, payload, context):
        result = rank(self, payload, context)
        if context.site == "site-3":
            result.releases["label_margins"].tensors["label_margins"].mul_(10**4)
        return result

    honest = few(tmp_path / "honest", LABELS).summary["rounds"][3]
    monkeypatch.setattr(RidgeExecutor, "_rank", claims)
    noted = few(tmp_path / "claims", LABELS).summary["rounds"][3]
    assert "bounded" not in honest
    assert set(noted["bounded"]) == {"site-3"}
    images = honest["ridge"]["unlabelled_images"]
    assert images < noted["ridge"]["unlabelled_images"] <= 10 * images
    assert noted["bounded"]["site-3"]["weight_used"] < noted["ridge"]["unlabelled_images"]


def test_a_bounded_site_takes_no_more_than_what_is_counted_of_it(tmp_path, shared_cache):
    many = {**dict.fromkeys(SITES, 80), "site-2": 480}
    folder = draw_hospitals(tmp_path / "hospitals", SITES, images=many, labelled=0.5)
    found = Federation("ridge", SITES, folder)(tmp_path / "run", LABELS, "controller.weight_multiple=1.0")
    assert "site-2" in found.summary["rounds"][3]["bounded"]
    assert abs(sum(map(len, lists(found).values())) - BUDGET) <= 2


def test_findings_have_no_class_to_even():
    job = Federation("ridge", SITES).job("problem.task=multi", "controller.class_balance=0", LABELS)
    with pytest.raises(ConfigurationError, match=r"controller\.label_budget"):
        job.checked()
