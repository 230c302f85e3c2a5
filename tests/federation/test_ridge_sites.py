"""Ridge regression is of all images together: any division, any order, and sites that lack or lose something."""

import csv
import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from grandrounds.data.partition.phantom_site import FINDINGS_NAME, phantom_site
from grandrounds.errors import GrandRoundsError
from grandrounds.methods.ridge import controller as ridge
from grandrounds.methods.ridge.controller import RidgeController
from grandrounds.methods.ridge.executor import RidgeExecutor
from grandrounds.methods.ridge.leave import leave
from grandrounds.models.closed_form.solve import solve
from grandrounds.models.closed_form.sums import Sums
from grandrounds.seeding import numpy_generator
from tests.federations import Federation, draw_hospitals

SITES = ["site-1", "site-2", "site-3"]
CLASSES = ("round", "irregular", "ring", "clustered")
CHOSEN = ["controller.penalties=[0.3]", "controller.temperature=4.0"]


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory, shared_cache):
    return draw_hospitals(
        tmp_path_factory.mktemp("hospitals"), SITES, images={"site-1": 40, "site-2": 60, "site-3": 48}
    )


@pytest.fixture(scope="module")
def run(hospitals):
    return Federation("ridge", SITES, hospitals)


@pytest.fixture(scope="module")
def whole(run, tmp_path_factory):
    return run(tmp_path_factory.mktemp("whole"), *CHOSEN)


def sums_of(found):
    """What the server has kept, by site; of many sites their total."""
    files = (found.record / "parts").glob("*@00002.pt")
    return {path.stem.partition("@")[0]: Sums.unpacked(torch.load(path, weights_only=True)) for path in files}


def total_of(found):
    first, *others = sums_of(found).values()
    return sum(others, start=first)


def same_model(one, two):
    return all(torch.equal(value, two.models["selected"][name]) for name, value in one.models["selected"].items())


def divided_otherwise(hospitals, place, site_of):
    """The same images at other sites: their training images as ``site_of`` says, all others at the first."""
    rows, pictures = {site: [] for site in SITES}, {site: [] for site in SITES}
    for site in SITES:
        images = np.load(hospitals / site / "images.npz")["images"]
        with (hospitals / site / "manifest.csv").open() as stream:
            for row in csv.DictReader(stream):
                home = site_of(row) if row["split"] == "train" else SITES[0]
                pictures[home].append(images[int(row["image"].rpartition("/")[2])])
                rows[home].append({**row, "image": f"images/{len(rows[home])}"})
    for site in SITES:
        folder = place / site
        folder.mkdir(parents=True)
        np.savez(folder / "images.npz", images=np.stack(pictures[site]))
        with (folder / "manifest.csv").open("w", newline="") as stream:
            table = csv.DictWriter(stream, list(rows[site][0]))
            table.writeheader()
            table.writerows(rows[site])
        own = {"manifest": "manifest.csv", "root": "images.npz"}
        (folder / "grandrounds.json").write_text(json.dumps({"datasets": {"phantom": own}}))
    return place


@pytest.mark.parametrize("stream", [False, True])
def test_the_order_of_arrival_changes_no_bit(run, whole, tmp_path, monkeypatch, stream):
    """Also where the server adds up as answers come, and keeps the total alone."""
    if stream:
        monkeypatch.setattr(ridge, "MOST_KEPT", 2)
    found = []
    for order in (sorted, lambda answers: sorted(answers, reverse=True)):
        absorb, close, held = RidgeController.absorb, RidgeController.close_round, {}

        def later(self, site, result, held=held):
            held[site] = result

        def in_order(self, held=held, order=order, absorb=absorb, close=close):
            for site in order(held):
                absorb(self, site, held[site])
            held.clear()
            close(self)

        with monkeypatch.context() as patch:
            patch.setattr(RidgeController, "absorb", later)
            patch.setattr(RidgeController, "close_round", in_order)
            found.append(run(tmp_path / str(len(found)), *CHOSEN))
    assert same_model(*found)
    assert stream or same_model(found[0], whole)


def test_more_sites_than_are_kept_are_added_up_without_leaving_one_out(run, whole, tmp_path, monkeypatch):
    monkeypatch.setattr(ridge, "MOST_KEPT", 2)
    grid = "controller.penalties=[0.1,0.3,1.0]"
    found = run(tmp_path / "stream", grid, CHOSEN[1])
    assert found.summary["rounds"][1]["ridge"] == {"penalty": 0.3, "views": ["none", "half_turn"]}
    assert set(sums_of(found)) == {"sums"}
    apart = (total_of(found).products - total_of(whole).products).abs().max()
    assert float(apart) < 1e-9 * float(total_of(whole).products.max())
    torch.testing.assert_close(found.models["selected"], whole.models["selected"], rtol=1e-5, atol=1e-5)


def test_validation_images_choose_penalty_and_temperature_by_the_losses_of_all_sites(run, tmp_path, monkeypatch):
    """The head of each penalty, solved and scored alone, has the loss that the table says."""
    grid, by_validation = (0.1, 30.0), ["controller.penalty_rule=validation"]
    tables = []
    best = ridge.best_cell
    monkeypatch.setattr(ridge, "best_cell", lambda table: tables.append(table) or best(table))
    found = run(tmp_path / "grid", "controller.penalties=[0.1,30.0]", *by_validation)
    alone = [run(tmp_path / str(nu), f"controller.penalties=[{nu}]", *by_validation) for nu in grid]
    whole, *each = tables
    assert torch.equal(whole, torch.cat(each))
    assert float((whole[0] - whole[1]).abs().max()) > 1e-3 * float(whole.max())
    number = int(whole.min(dim=1).values.argmin())
    assert {"penalty", "temperature", "risk_temperature", "validation_images"} == set(
        found.summary["rounds"][2]["ridge"]
    )
    assert found.summary["rounds"][2]["ridge"]["penalty"] == grid[number]
    torch.testing.assert_close(found.models["selected"], alone[number].models["selected"])
    assert "held_out_errors" not in found.summary["rounds"][1]["ridge"]


def test_a_penalty_of_validation_images_stays_when_a_site_leaves(run, tmp_path):
    options = ["controller.penalties=[0.1,30.0]", "controller.penalty_rule=validation", "controller.class_balance=0"]
    found = run(tmp_path / "run", *options)
    departure = leave(found.record, ["site-3"], tmp_path / "without")
    assert departure.penalty == found.summary["rounds"][2]["ridge"]["penalty"]


@pytest.mark.parametrize("by", ["one class at a site", "dealt out"])
def test_another_division_gives_the_same_scores(run, whole, hospitals, tmp_path, by):
    turns = iter(range(10**6))
    site_of = {
        "one class at a site": lambda row: SITES[min(CLASSES.index(row["label"]), 2)],
        "dealt out": lambda row: SITES[next(turns) % 3],
    }[by]
    folder = divided_otherwise(hospitals, tmp_path / "sites", site_of)
    found = run(tmp_path / "run", *CHOSEN, folder=folder, allow_overlap=True)  # of patients, who are dealt out, too
    assert found.summary["rounds"][0]["ridge"] == whole.summary["rounds"][0]["ridge"]
    if by == "one class at a site":
        (of_first,) = (one for site, one in sums_of(found).items() if site == "site-1")
        assert [bool(count) for count in of_first.targets[-1]] == [True, False, False, False]
    one, two = total_of(whole), total_of(found)
    means, scale = one.products[:-1, -1] / one.weight, one.products.diagonal()[:-1].sqrt() / one.weight**0.5
    features = means + scale * torch.randn(50, len(means), generator=torch.Generator().manual_seed(0)).double()
    heads = [solve(sums, 0.3) for sums in (one, two)]
    scores = [features @ head[:-1] + head[-1] for head in heads]
    assert float(scores[0].abs().max()) > 0.1
    assert float((scores[0] - scores[1]).abs().max()) < 1e-8


def test_a_site_that_drops_out_is_not_in_the_sums(run, whole, tmp_path, monkeypatch):
    """It has counted its images before, so the others' class weights are of all."""
    add_up = RidgeExecutor.site_sums

    def fails(self, payload, context, weights):
        if context.site == "site-2":
            raise GrandRoundsError("the disk is full")
        return add_up(self, payload, context, weights)

    monkeypatch.setattr(RidgeExecutor, "site_sums", fails)
    found = run(tmp_path / "run", *CHOSEN)
    assert found.summary["rounds"][1]["dropped"] == {"site-2": "the disk is full"}
    kept = sums_of(whole)
    expected = kept["site-1"] + kept["site-3"]
    assert torch.equal(total_of(found).products, expected.products)
    assert torch.equal(total_of(found).targets, expected.targets)


def test_a_site_without_labels_adds_nothing_and_is_scored(run, tmp_path, shared_cache):
    folder = draw_hospitals(tmp_path / "sites", SITES, labelled={"site-1": 1.0, "site-2": 1.0, "site-3": 0.0})
    found = run(tmp_path / "all", *CHOSEN, folder=folder)
    without = run(tmp_path / "two", *CHOSEN, folder=folder, sites=SITES[:2])
    assert same_model(found, without)
    assert sums_of(found)["site-3"].weight == 0
    assert set(found.summary["records"]) == set(SITES)


def test_two_sites_are_enough_in_the_clear(run, tmp_path):
    found = run(tmp_path / "two", sites=SITES[:2])
    notes = found.summary["rounds"][1]["ridge"]
    assert min(notes["held_out_errors"], key=notes["held_out_errors"].get) == str(notes["penalty"])
    assert found.summary["rounds"][2]["ridge"]["validation_images"] > 0


def test_several_findings_have_a_head_of_one_sum(run, tmp_path, shared_cache):
    for site in SITES[:2]:
        phantom_site(site, tmp_path / "sites", images=120, size=32, labelled=1.0, dataset=FINDINGS_NAME)
    names = '["round","ring","clustered"]'
    options = [
        "problem.task=multi", f"problem.dataset={FINDINGS_NAME}", f"problem.classes={names}",
        "controller.class_balance=0", "controller.selection_metric=auto",
    ]  # fmt: skip
    found = run(tmp_path / "run", *options, folder=tmp_path / "sites", sites=SITES[:2])
    counts, total = found.summary["rounds"][0]["ridge"]["class_counts"], total_of(found)
    assert total.targets[-1].tolist() == pytest.approx(list(counts.values()))
    with (tmp_path / "sites" / "site-1" / "manifest.csv").open() as stream:
        first = [row for row in csv.DictReader(stream) if row["split"] == "train"]
    assert sums_of(found)["site-1"].weight == pytest.approx(len(first))
    assert sums_of(found)["site-1"].targets[-1, 0] == pytest.approx(sum("round" in row["label"] for row in first))
    areas = [record["common"]["exact"]["auc_macro"] for record in found.summary["records"].values()]
    assert np.mean(areas) > 0.6


def claiming(monkeypatch, site, times):
    """Let a site claim its images many times: its counts and its sums fit together, and its validation images, too."""
    count, add_up, temper = RidgeExecutor._count, RidgeExecutor.site_sums, RidgeExecutor._temper

    def counted(self, payload, context):
        found = count(self, payload, context)
        if context.site == site:
            found.releases["class_counts"].tensors["class_counts"].mul_(times)
        return found

    def added(self, payload, context, weights):
        sums, support, images = add_up(self, payload, context, weights)
        share = times if context.site == site else 1
        return Sums(sums.products * share, sums.targets * share), support, images

    def tempered(self, payload, context):
        found = temper(self, payload, context)
        many = {"validation.n": found.metrics["validation.n"] * (times if context.site == site else 1)}
        return replace(found, metrics={**found.metrics, **many})

    for name, changed in (("_count", counted), ("site_sums", added), ("_temper", tempered)):
        monkeypatch.setattr(RidgeExecutor, name, changed)


@pytest.mark.parametrize("stream", [False, True])
def test_a_site_that_claims_a_million_times_its_images_counts_as_ten_medians(run, whole, tmp_path, monkeypatch, stream):
    if stream:
        monkeypatch.setattr(ridge, "MOST_KEPT", 2)
    claiming(monkeypatch, "site-3", 10**6)
    found = run(tmp_path / "run", CHOSEN[0])
    first, second, third = found.summary["rounds"]
    counted = sum(first["ridge"]["class_counts"].values())
    noted = first["bounded"]["site-3"]
    assert set(first["bounded"]) == {"site-3"}
    assert noted["weight"] >= 10**6
    honest = counted - noted["weight_used"]
    assert noted["weight_used"] < 10 * honest
    assert third["bounded"]["site-3"]["weight_used"] < third["ridge"]["validation_images"] < 1000
    weights = total_of(found).weight
    assert weights < 12 * total_of(whole).weight
    assert "bounded" not in second
    assert not any("bounded" in entry or "bounds_void" in entry for entry in whole.summary["rounds"])


@pytest.mark.parametrize("kept", [50, 2], ids=["each is kept", "the total alone"])
def test_findings_are_bounded_by_the_images_of_the_sums(run, tmp_path, shared_cache, monkeypatch, kept):
    monkeypatch.setattr(ridge, "MOST_KEPT", kept)
    for site in SITES:
        phantom_site(site, tmp_path / "sites", images=40, size=32, labelled=1.0, dataset=FINDINGS_NAME)
    options = ["problem.task=multi", f"problem.dataset={FINDINGS_NAME}", 'problem.classes=["round","ring","clustered"]']
    options += ["controller.class_balance=0", "controller.selection_metric=auto"]
    claiming(monkeypatch, "site-3", 1000)
    found = run(tmp_path / "run", *options, folder=tmp_path / "sites")
    if kept < len(SITES):
        assert found.summary["rounds"][1]["bounds_void"] == {site: ["weight"] for site in SITES}
        return
    noted = found.summary["rounds"][1]["bounded"]
    assert set(noted) == {"site-3"}
    honest = [sums_of(found)[site].weight for site in SITES[:2]]
    assert sums_of(found)["site-3"].weight == pytest.approx(10 * max(honest)) == noted["site-3"]["weight_used"]


def test_losses_below_zero_are_refused_and_two_sites_have_no_bound(run, tmp_path, monkeypatch):
    temper = RidgeExecutor._temper

    def boasting(self, payload, context):
        found = temper(self, payload, context)
        return (
            replace(found, metrics={**found.metrics, "validation.log_loss.7": -1e12})
            if context.site == "site-2"
            else found
        )

    monkeypatch.setattr(RidgeExecutor, "_temper", boasting)
    found = run(tmp_path / "run", "controller.min_sites=1", sites=SITES[:2])
    assert found.summary["rounds"][2]["dropped"] == {"site-2": "validation.log_loss.7 is at least 0, got -1e+12"}
    assert found.summary["rounds"][0]["bounds_void"] == {site: ["weight"] for site in SITES[:2]}


def test_a_site_that_has_exchanged_two_classes_is_remarked_and_the_others_are_not(tmp_path, shared_cache):
    place, (first, second) = draw_hospitals(tmp_path / "hospitals", SITES, images=120), CLASSES[:2]
    exchanged, noise = {first: second, second: first}, numpy_generator("exchanged labels")
    for site in SITES:
        manifest = place / site / "manifest.csv"
        with manifest.open() as stream:
            rows = list(csv.DictReader(stream))
        shape = np.load(place / site / "images.npz")["images"].shape
        levels = np.array([40 + 50 * CLASSES.index(row["label"]) for row in rows])[:, None, None, None]
        np.savez(place / site / "images.npz", images=(levels + noise.integers(0, 30, shape)).astype(np.uint8))
        with manifest.open("w", newline="") as stream:
            table = csv.DictWriter(stream, list(rows[0]))
            table.writeheader()
            labels = exchanged if site == "site-2" else {}
            table.writerows({**row, "label": labels.get(row["label"], row["label"])} for row in rows)
    found = Federation("ridge", SITES, place)(tmp_path / "run")
    (remark,) = found.summary["remarks"]
    assert {*SITES, *CLASSES} & {*remark.replace(":", "").split()} == {"site-2", first, second}
