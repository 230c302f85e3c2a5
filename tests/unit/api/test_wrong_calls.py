"""Wrong calls in Python: each is refused by a line that says what is right, and the call with it succeeds."""

import re
import sys
from contextlib import nullcontext, suppress

import numpy as np
import pandas as pd
import pytest
import torch

import grandrounds as gr
from grandrounds.api import evaluation, running
from grandrounds.errors import GrandRoundsError
from tests.unit.cli.conftest import write_images

TINY = {"rounds": 1, "image_size": 32, "backbone": "compact", "steps": 1, "batch_size": 2}
RUN = 'gr.run("fedavg", 2, {})'
FOLDERS = 'gr.Sites.from_folders("images", OUT, warn=False, {})'
TABLE = 'gr.Sites.from_manifest("table.csv", "images", OUT, warn=False, {})'
PREDICT = 'gr.Run("done").predict({})'
EVALUATE = 'gr.evaluate("done", "clinic", progress=False, {})'
SWEEP = "gr.sweep({}, workspace=OUT)"
CALLS = [
    (RUN, "lr=0.1", "learning_rate=0.1", "did you mean learning_rate"),
    (RUN, "epochs=3", "steps=3", "did you mean steps"),
    (RUN, "learning_rates=0.1", "learning_rate=0.1", "did you mean learning_rate"),
    (RUN, 'learning_rate="0.1"', "learning_rate=0.1", "must be a number"),
    (RUN, "learning_rate=-1", "learning_rate=1", "must be positive"),
    (RUN, 'rounds="2"', "rounds=2", "must be an integer"),
    (RUN, "rounds=0", "rounds=1", "at least 1"),
    (RUN, "batch_size=0", "batch_size=2", "at least 2"),
    (RUN, 'seed="x"', "seed=1", "must be an integer"),
    (RUN, 'image_size="64"', "image_size=64", "must be an integer"),
    (RUN, 'preset="recomended"', 'preset="recommended"', "did you mean recommended"),
    (RUN, "preset=3", 'preset="paper"', "must be text"),
    (RUN, 'backbone="compct"', 'backbone="compact"', "did you mean 'compact'"),
    (RUN, "backbone=3", 'backbone="compact"', "name of a network"),
    (RUN, 'options={"steps": 1}', 'options={"executor.steps": 1}', "part.option, such as executor"),
    (RUN, 'options={"executor.step": 1}', 'options={"executor.steps": 1}', "did you mean executor.steps"),
    (RUN, 'options=["executor.steps=1"]', 'options={"executor.steps": 1}', "a mapping such as"),
    (RUN, 'weak_view="trns"', 'weak_view="turns"', "one of .*turns"),
    (RUN, "workspace=3", "workspace=OUT", "must be a path"),
    (RUN, 'execution={"workers": 1}', "execution=gr.Execution(workers=1)", r"gr\.Execution\(workers=1\)"),
    (RUN, 'execution=gr.Execution(engine="flar")', "execution=gr.Execution()", "in-process or flare"),
    (RUN, "execution=gr.Execution(workers=0)", "execution=gr.Execution(workers=1)", "workers must be at least 1"),
    ("gr.run({})", '"fedavgg", 2', '"fedavg", 2', "did you mean fedavg"),
    ("gr.run({})", 'gr.Sites.synthetic(2), "fedavg"', '"fedavg", gr.Sites.synthetic(2)', r'gr\.run\("fedavg", sites\)'),
    ("gr.run({})", '"fedavg", 0', '"fedavg", 1, min_sites=1', "at least 1"),
    ("gr.run({})", '"fedavg", "sits"', '"fedavg", "sites"', "did you mean sites"),
    ("gr.run({})", '"fedavg", 2.5', '"fedavg", 2', "a partition must be a path"),
    ("gr.run({}, 2)", "gr.FedPerl(peer=2)", "gr.FedPerl(peers=2)", "did you mean peers"),
    ("gr.FedPerl({})", 'peers="2"', "peers=2", "must be an integer"),
    ("gr.FedPerl({})", "peers=-2", "peers=0", "at least 0"),
    ("gr.recipe({})", '"fedprl"', '"fedperl"', "did you mean fedperl"),
    ("gr.recipe({})", '"fedperl", peer=3', '"fedperl", peers=3', "did you mean peers"),
    ("gr.recipe({})", '"fedperl", min_clients=2', '"fedperl", min_sites=2', "did you mean min_sites"),
    ("gr.recipe({})", '"fedperl", sites="a"', '"fedperl", sites=["a", "b"]', "a list of names"),
    ("gr.recipe({})", '"fedperl", sites=["a", "a"]', '"fedperl", sites=["a", "b"]', "different names of sites"),
    ("gr.Sites({})", "3", '"sites"', "a folder, an archive or a table"),
    ("gr.Sites({})", '"imges"', '"sites"', "did you mean images"),
    ("gr.Sites.read({})", '"sites", 9', '"sites", 2', "leave --sites out, or add --sites 2"),
    ("gr.Sites.read({})", '"sits"', '"sites"', "did you mean sites"),
    ("gr.Sites.read({})", "3", '"sites"', "must be a path"),
    ("gr.Sites({}).folder", '("site-1",), 3', '("site-1",), "sites"', "must be a path"),
    ("gr.Sites.synthetic({})", '"2"', "2", "must be an integer"),
    ("gr.Sites.from_source({}, None, OUT)", '"sites"', '"images"', "is a partition"),
    (FOLDERS, "validaton=0.2", "validation=0.2", "did you mean validation"),
    (FOLDERS, "validation=20", "validation=0.2", "between 0 and 1"),
    (FOLDERS, 'sites="2"', "sites=2", "must be an integer"),
    (FOLDERS, 'scheme="dirichle"', 'scheme="dirichlet"', "did you mean dirichlet"),
    (FOLDERS, 'layout="clas"', 'layout="class"', "did you mean class"),
    (FOLDERS, 'label_map="a=c"', 'label_map=["a=c"]', "a list of names"),
    (FOLDERS, 'label_map=["a:c"]', 'label_map=["a=c"]', "did you mean a=c"),
    (FOLDERS, 'patient_pattern="([0-9]"', 'patient_pattern="([0-9]+)"', "no regular expression"),
    (FOLDERS, 'columns=["label=x"]', "sites=2", "has no option columns; leave columns out"),
    (TABLE, 'columns="label=label"', 'columns=["label=label"]', "a list of names"),
    (TABLE, 'columns=["label=lable"]', 'columns=["label=label"]', "did you mean label=label"),
    ("gr.Sites.from_manifest({}, OUT)", '"tabl.csv", "images"', '"table.csv", "images"', "tabl.csv"),
    ("gr.Sites.from_dataframe({}, OUT)", "TABLE, None", 'TABLE, "images"', "give images"),
    ("gr.Sites.from_dataset({}, OUT)", "[3] * 30", "ITEMS", r"a pair \(image, label\)"),
    ("gr.Sites.from_dataset({}, OUT)", "[(np.zeros((9, 8, 8)), 0)] * 30", "ITEMS", "item 0 .*height, width, 3"),
    (PREDICT, '"imags"', '"images"', "did you mean images"),
    (PREDICT, "3", '"images"', "must be a path"),
    (PREDICT, "[]", '"images"', "there is no image"),
    (PREDICT, "np.zeros((2, 8, 8, 7), np.uint8)", "np.zeros((2, 8, 8, 3), np.uint8)", r"\(n, height, width, 3\)"),
    (PREDICT, "np.full((2, 8, 8, 3), 300.0)", "np.full((2, 8, 8, 3), 1.0)", "from 0 to 1"),
    (EVALUATE, 'positive="a"', 'positive=["a"]', "a list of names"),
    (EVALUATE, 'positive=["c"]', 'positive=["a"]', "one of the classes a, b"),
    (EVALUATE, 'groups={"x": ["a"]}', 'groups={"x": ["a"], "y": ["b"]}', "at least two"),
    (EVALUATE, "sensitivity=90", "sensitivity=0.9", "at most 1"),
    (EVALUATE, 'recalibrate="2"', 'recalibrate="0.3", positive=["a"]', "a share from 0 to 0.9"),
    ("gr.evaluate({})", '"dne", "clinic"', '"done", "clinic"', "did you mean done|dne does not exist"),
    ("gr.report({})", '"done", OUT, model="all"', '"done", OUT, model="common"', "common or own"),
    ("gr.report({})", '"done", OUT, reference="don"', '"done", OUT, reference="done"', "did you mean done"),
    ("gr.report({})", "3, OUT", '"done", OUT', "must be a path"),
    ("gr.report({})", '["done", "done"], OUT', '{"A": "done", "B": "done"}, OUT', "NAME=RUN"),
    (SWEEP, '"fedavg", 2, seeds=3', '"fedavg", 2, seeds=[3]', r"like \[1, 2\]"),
    (SWEEP, '["fedavg", "locl"], 2', '["fedavg", "local"], 2', "did you mean local"),
    (SWEEP, '"fedavg", 2, vary={"executor.steps": 1}', '"fedavg", 2, vary={"executor.steps": [1]}', "a list of values"),
    ("gr.register_loss({})", '"x"', '"own_loss"', "2 to 40 lower-case letters"),
]  # fmt: skip


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    place = tmp_path_factory.mktemp("calls")
    for folder, count in (("images", 40), ("others", 21)):
        for label in "ab":
            write_images(place / folder, label, count)
    names = [f"{label}/{number}.png" for label in "ab" for number in range(40)]
    pd.DataFrame({"image": names, "label": [name[0] for name in names]}).to_csv(place / "table.csv", index=False)
    sites = gr.Sites.from_folders(place / "images", place / "sites", sites=2, warn=False)
    gr.Sites.from_folders(place / "others", place / "clinic", scheme="external", warn=False)
    gr.run("fedavg", sites, workspace=place / "done", reference=False, progress=False, **TINY)
    return place


@pytest.mark.filterwarnings("ignore:the patients are unknown")
@pytest.mark.parametrize(
    ("call", "wrong", "right", "said"), CALLS, ids=[call.format(wrong) for call, wrong, *_ in CALLS]
)
def test_a_wrong_call_says_what_is_right(call, wrong, right, said, prepared, tmp_path, monkeypatch):
    monkeypatch.chdir(prepared)
    monkeypatch.setattr(running, "simulate", lambda *_: sys.exit(0))
    monkeypatch.setattr(running, "shared_features", lambda *_: nullcontext())
    monkeypatch.setattr(evaluation, "read_images", lambda *_: sys.exit(0))
    items = [(torch.full((3, 8, 8), number, dtype=torch.uint8), number % 2) for number in range(30)]
    names = {"gr": gr, "pd": pd, "np": np, "torch": torch, "OUT": tmp_path / "out", "ITEMS": items}
    names["TABLE"] = pd.read_csv("table.csv")
    with pytest.raises(GrandRoundsError) as refused:
        eval(call.format(wrong), names)
    assert re.search(said, str(refused.value)), refused.value
    assert "\n" not in str(refused.value)
    names["OUT"] = tmp_path / "again"
    with suppress(SystemExit):  # what is right begins to train or to predict
        eval(call.format(right), names)
