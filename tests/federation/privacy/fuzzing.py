"""Random answers of a site, and what may be in whatever the gate makes of them."""

import random
import re
from pathlib import Path

import numpy as np
import torch
from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import ReservedHeaderKey, Shareable
from stateful import OtherMapping, StatefulDict, StatefulText

from grandrounds.deployment.kit.shipped import OVERLAYS
from grandrounds.evaluation.curves.binned import MERGED, curves_shape
from grandrounds.files import read_json_object
from grandrounds.models.registry import backbone_names
from grandrounds.privacy.gate import filters, gate
from grandrounds.privacy.gate.audit import Reason
from grandrounds.privacy.gate.filters import Admission, SitePrivacyGate
from grandrounds.privacy.gate.gate import Gate, TaskFacts
from grandrounds.privacy.gate.inspection import WORDS
from grandrounds.privacy.gate.kinds import Expected
from grandrounds.privacy.gate.policy import parse_policy
from grandrounds.privacy.ledger.lines import DatasetIdentity
from grandrounds.protocol.messages import PROTOCOL, REASON_HEADER, TREATED
from grandrounds.protocol.spending import TRAINING_GATE

CLASSES, PUBLIC_ROWS = 3, 6
TEMPLATE = {"w": ((2, 3), torch.float32), "b": ((2,), torch.float32)}
NOISY = {
    "unit": "site",
    "delta": 1e-5,
    "target_epsilon": {"*": 1e6},
    "releases": [{"kind": "model_update", "name": "update", "treatment": "clip_and_noise", "clip": 1, "sigma": 1.0}],
    "scalars": [{"name": "validation.*", "part": "val", "minimum_support": 5}],
}
SUMMED = {
    "unit": "record",
    "delta": 1e-5,
    "releases": [
        *(
            {"kind": kind, "name": name, "treatment": "minimum_support", "minimum": 5}
            for kind, name in (
                ("sufficient_statistics", "class_counts"),
                ("sufficient_statistics", "sums"),
                ("counts", "counts_*"),
                ("curves", "curves_*"),
                ("image_moments", "image_moments"),
            )
        ),
    ],
    "scalars": NOISY["scalars"],
}
EXPECTED = Expected(
    3, "r-1", CLASSES, TEMPLATE, {"train": 60, "labelled": 60, "val": 20, "test": 20}, 90, 1.0, PUBLIC_ROWS
)
LEAK = 0.31415926
NAMES = ("w", "b", "values", "x", "images", "update", "patient 4711", "validation.Jane_Doe", "validation.n", "loss")
NAMES += ("images.labelled.2", "samples", "backbone", "release")
NUMBER = re.compile(r"[a-z0-9_]+(\.[a-z0-9_]+)*")


class Unlimited:
    """A ledger in memory, so that a hundred thousand answers take minutes."""

    bookings = ()
    head = "0" * 64

    @property
    def chain(self):
        return self

    def content(self):
        return self

    def book(self, *arguments):
        """Nothing is kept."""

    def require_known(self, dataset):
        """Every data set is known."""

    def spendings(self, *arguments):
        return []

    def changes(self, name):
        return 0

    def spent(self, *arguments):
        return 0.5


def policies():
    """The policy of every kit, one with noise, and one for sums and counts."""
    standard = read_json_object(OVERLAYS / "open.json")["scopes"][0]["properties"]["grandrounds"]
    return [parse_policy(standard, "standard"), parse_policy(NOISY, "noisy"), parse_policy(SUMMED, "summed")]


def quiet(patch):
    """No files, no log."""
    patch.setattr(Gate, "ledger", lambda self: Unlimited())
    patch.setattr(gate, "write_audit", lambda *arguments: None)
    patch.setattr(gate, "count_question", lambda *arguments: 1)
    patch.setattr(filters, "write_audit", lambda *arguments: None)
    patch.setattr(filters, "add_job_audit_event", lambda *arguments, **options: None)
    patch.setattr(filters, "_folder", lambda context: Path())
    patch.setattr(SitePrivacyGate, "log_error", lambda *arguments, **options: None)


def contexts():
    """FLARE's context of an admitted task, with what makes a good answer to it, for each policy and task."""
    made = []
    for policy, makes in zip(policies(), (good, good, record), strict=True):
        for task in ("train", "validate", "test", "join"):
            facts = TaskFacts("job", task, "run", DatasetIdentity("skin", "a" * 64), EXPECTED)
            context = FLContext()
            admission = Admission(Gate(policy, Path(), "site-1"), facts, None)
            context.set_prop(TRAINING_GATE, admission, private=True, sticky=False)
            made.append((task, context, makes))
    return made


def distributions(draw):
    rows = torch.rand(draw.randint(1, PUBLIC_ROWS), CLASSES) + 0.01
    return rows / rows.sum(dim=1, keepdim=True)


def good(draw):
    """An answer as a method makes it."""
    parts = {"metrics": DXO(DataKind.METRICS, data={"validation.balanced_accuracy": draw.random(), "loss": 0.5})}
    app = DataKind.APP_DEFINED
    if draw.random() < 0.8:
        state = {name: torch.randn(shape) for name, (shape, _) in TEMPLATE.items()}
        parts["update"] = DXO(DataKind.WEIGHT_DIFF, data=state, meta={"release": "model_update"})
    if draw.random() < 0.3:
        data = {"matrix": torch.eye(CLASSES), "support": torch.tensor([9, 4, 20])}
        parts["relation"] = DXO(app, data=data, meta={"release": "class_statistics"})
    if draw.random() < 0.3:
        parts["soft_labels"] = DXO(app, data={"values": distributions(draw)}, meta={"release": "soft_labels"})
    if draw.random() < 0.3:
        parts["facts"] = DXO(app, data={"backbone": "resnet10", "public": "0" * 64})
    meta = {"protocol": PROTOCOL, "round": 3, "run_id": "r-1", "samples": 44}
    return DXO(DataKind.COLLECTION, data=parts, meta=meta).to_shareable()


def support(draw):
    """Patients of each class: enough, or none."""
    return torch.tensor([draw.choice([0, 5, 8, 20]) for _ in range(CLASSES)])


def table(draw):
    """The counts of a record of at most 20 patients: correct, missed and false predictions of each class."""
    correct, missed = ([draw.choice([0, 0, 1, 5, 6]) for _ in range(CLASSES)] for _ in range(2))
    false = [0] * CLASSES
    for count in missed:
        false[draw.randrange(CLASSES)] += count
    counts = torch.tensor([list(row) for row in zip(correct, missed, false, strict=True)])[None]
    return {"images": counts, "patients": counts.clone()}


def curves(draw):
    """Positives and negatives in one bin of each class; the others are merged with it."""
    counts = torch.full(curves_shape(CLASSES), MERGED, dtype=torch.int64)
    counts[:, :, 0] = draw.choice([5, 7, 10])
    return {"counts": counts}


def sums(draw):
    """What a site adds to a head in closed form, in three features."""
    found, held = torch.randn(5, 3, dtype=torch.float64), support(draw)
    targets = found.T @ torch.eye(CLASSES, dtype=torch.float64)[torch.arange(5) % CLASSES]
    return {"products": (found.T @ found).flatten(), "targets": targets * (held > 0), "support": held}


def class_counts(draw):
    held = support(draw)
    return {"class_counts": held * 2, "support": held}


def moments(draw):
    """Of images of one colour, from any number of patients."""
    mean = torch.rand(7, dtype=torch.float64)
    return {"moments": torch.stack([mean, mean**2 + 1]), "support": torch.tensor([draw.choice([1, 4, 5, 20])])}


RECORDS = {
    "class_counts": ("sufficient_statistics", class_counts),
    "sums": ("sufficient_statistics", sums),
    "counts_common": ("counts", table),
    "counts_validation": ("counts", table),
    "curves_common": ("curves", curves),
    "image_moments": ("image_moments", moments),
}


def record(draw):
    """An answer with evaluation records, or sums of named tensors."""
    scores = {"validation.n": 20.0, "validation.accuracy": draw.choice([0.5, 0.75]), "loss": 0.5}
    parts = {"metrics": DXO(DataKind.METRICS, data=scores)}
    for name in draw.sample(sorted(RECORDS), draw.choice([1, 1, 2, 3])):
        kind, makes = RECORDS[name]
        parts[name] = DXO(DataKind.APP_DEFINED, data=makes(draw), meta={"release": kind})
    meta = {"protocol": PROTOCOL, "round": 3, "run_id": "r-1", "samples": 44}
    return DXO(DataKind.COLLECTION, data=parts, meta=meta).to_shareable()


def leaks(draw):
    """A value that no answer has, or that answers differently when read again."""
    image = torch.full((draw.choice([1, 3, 7]),), LEAK)
    made = [
        lambda: image,
        lambda: image.double(),
        lambda: image.reshape(1, -1).to_sparse(),
        lambda: torch.full((2, 3), float(draw.choice([LEAK, 1e38, float("nan"), float("inf")]))),
        lambda: torch.full((draw.choice([3, 6, 99]), CLASSES), draw.choice([0.5, 1 / 3, 255.0])),
        lambda: torch.tensor(draw.choice([[-1] * 3, [1] * 3, [4, 0, 0], [2**62] * 3, [61, 0, 0], [[[2, 1, 0]] * 3]])),
        lambda: torch.full((draw.choice([3, 6]), CLASSES), LEAK, dtype=torch.float64),
        lambda: torch.zeros(2, 3, dtype=draw.choice([torch.int64, torch.bool, torch.complex64, torch.bfloat16])),
        lambda: torch.nn.Parameter(torch.ones(2, 3)),
        lambda: torch.ones(2, 3).expand(2, 3)[:, ::2],
        lambda: np.full(3, LEAK),
        lambda: "patient 4711 " * draw.choice([1, 100]),
        lambda: StatefulText("resnet10", "patient 4711"),
        lambda: b"\x00 4711",
        lambda: [LEAK] * 5,
        lambda: {"a": {"b": image}},
        lambda: {1, 2},
        lambda: object(),
        lambda: 10**400,
        lambda: draw.choice([True, None, -1, 2**63, 1e300, float("nan")]),
        lambda: OtherMapping({"w": image}),
        lambda: DXO(DataKind.WEIGHTS, data={"w": image}),
    ]
    return draw.choice(made)()


def names(draw):
    return draw.choice([*NAMES, "a\nb", "é", "", "x" * 300, 7, StatefulText("w", "4711")])


def places(reply):
    """All dictionaries of a reply, by how to replace them."""
    content = reply["DXO"]
    if not isinstance(content, dict) or not isinstance(content.get("data"), dict):
        return [(reply, "DXO")]
    found = [(reply, "DXO"), (content, "data"), (content, "meta"), (reply, ReservedHeaderKey.HEADERS)]
    for part in list(dict.values(content["data"])):
        found += [(vars(part), "data"), (vars(part), "meta")] if isinstance(part, DXO) else []
    return found


def spoil_number(tensor, draw):
    """Change one number of a tensor."""
    flat = tensor.reshape(-1)
    flat[draw.randrange(len(flat))] = draw.choice([-1, -7, 0, 1, 2, 4, 21, 61, 91, 2**40, LEAK])


def spoil(reply, draw):
    """Change one thing."""
    owner, key = draw.choice(places(reply))
    value = owner.get(key)
    way = draw.randrange(9)
    if way >= 7 and isinstance(value, dict) and any(type(one) is torch.Tensor for one in value.values()):
        spoil_number(draw.choice([one for one in value.values() if type(one) is torch.Tensor]), draw)
    elif way == 0 or not isinstance(value, dict):
        owner[key] = leaks(draw)
    elif way in (1, 2):
        value[names(draw)] = leaks(draw)
    elif way == 3 and value:
        value[draw.choice(list(value))] = leaks(draw)
    elif way == 4:
        later = {**value, names(draw): leaks(draw)}
        owner[key] = StatefulDict(value, later, draw.randrange(6))
    elif way == 5 and value:
        value.pop(draw.choice(list(value)))
    else:
        reply.set_return_code(draw.choice([ReturnCode.OK, ReturnCode.EXECUTION_EXCEPTION, leaks(draw)]))


def answer(draw, makes=good):
    """A random answer: good, or spoilt in one to three places."""
    reply = makes(draw)
    for _ in range(draw.choice([0, 1, 1, 1, 2, 3])):
        try:
            spoil(reply, draw)
        except (TypeError, AttributeError, KeyError, ValueError, IndexError, RuntimeError):
            break  # what was spoilt before has no such place
    return reply


def fault(left, task):
    """What is wrong with what leaves; empty if it may."""
    if type(left) is not Shareable or left.keys() - {"DXO", ReservedHeaderKey.HEADERS}:
        return f"{type(left)} with {sorted(map(str, left))}"
    headers = left.get(ReservedHeaderKey.HEADERS, {})
    if headers.keys() - {ReservedHeaderKey.RC, ReservedHeaderKey.CONTENT_TYPE, REASON_HEADER}:
        return f"headers {sorted(headers)}"
    if left.get_return_code() != ReturnCode.OK:
        reason = headers.get(REASON_HEADER)
        plain = left.get_return_code() in filters.CODES and (reason is None or reason in set(Reason))
        if reason == Reason.FAILED:
            return "the gate failed"
        return "" if plain and "DXO" not in left else f"an error with {headers}"
    content = left["DXO"]
    expected = {"protocol": PROTOCOL, "round": 3, "run_id": "r-1", "ledger_head": Unlimited.head}
    meta = dict(content["meta"])
    samples = meta.pop("samples")
    if meta != expected or {type(value) for value in meta.values()} != {int, str} or type(samples) is not int:
        return f"header {content['meta']}"
    return next(filter(None, (part_fault(name, part, task) for name, part in content["data"].items())), "")


def part_fault(name, part, task):
    data, meta = part.data, part.meta or {}
    if type(part) is not DXO or type(data) is not dict or not all(type(key) is str for key in data):
        return f"part {name!r} is no plain dictionary"
    plain = all(type(key) is type(value) is str for key, value in meta.items())
    if not plain or meta.keys() - {"release", TREATED}:
        return f"properties {meta} of {name!r}"
    if name == "metrics":
        words = {word for key in data for word in key.split(".")[1:] if not word.isdigit()}
        known = all(NUMBER.fullmatch(key) for key in data) and words <= WORDS
        plain = all(type(value) is float and abs(value) <= 1e12 for value in data.values())
        return "" if known and plain else f"metrics {data}"
    if name == "facts":
        forms = {"backbone": "|".join(backbone_names())}
        right = all(re.fullmatch(forms.get(key, "[0-9a-f]{64}"), text) for key, text in data.items())
        return "" if right and task == "join" else f"facts {data} in {task}"
    if any(type(value) is not torch.Tensor or not value.is_contiguous() or vars(value) for value in data.values()):
        return f"{name} has other than plain tensors"
    if any(value.untyped_storage().nbytes() != value.nbytes for value in data.values()):
        return f"{name} has memory behind its values"
    return tensors_fault(name, data)


def tensors_fault(name, data):
    if name == "update":
        right = all(TEMPLATE.get(key) == (tuple(value.shape), value.dtype) for key, value in data.items())
    elif name in ("relation", "pseudo_relation"):
        right = data.keys() == {"matrix", "support"} and not bool(((data["support"] > 0) & (data["support"] < 5)).any())
    elif name == "soft_labels":
        rows = data["values"].double() / (255 if data["values"].dtype == torch.uint8 else 1)
        sums = (rows.sum(dim=1) - 1).abs().max() <= 0.02
        right = data.keys() == {"values"} and rows.shape[1:] == (CLASSES,) and len(rows) <= PUBLIC_ROWS and bool(sums)
    elif name.startswith("counts_") and data.keys() == {"images", "patients"}:
        right = all(value.shape == (1, CLASSES, 3) and value.dtype == torch.int64 for value in data.values())
        right = right and few_or_many(data["patients"], 5, 20)
        right = right and bool((data["images"] >= data["patients"]).all())
    elif name.startswith("curves_"):
        counts = data["counts"]
        right = data.keys() == {"counts"} and counts.shape == curves_shape(CLASSES) and counts.dtype == torch.int64
        right = right and few_or_many(counts[counts != MERGED], 5, 20)
    elif name == "image_moments":
        minimum = int(data["support"])
        right = data["moments"].shape in ((2, 7), (2, 11)) and data["moments"].dtype == torch.float64
        right = right and (minimum in (5, 10) or (minimum == 0 and not bool(data["moments"].any())))
    elif name in ("class_counts", "sums"):
        right = data.keys() - {"support"} <= {"class_counts", "products", "targets"}
        right = right and few_or_many(data["support"], 5, 60) and all(sum_right(*entry) for entry in data.items())
        images = data.get("class_counts", torch.zeros(CLASSES))
        none = data["support"] == 0
        right = right and not bool(images[none].any())
        right = right and not bool(data.get("targets", torch.zeros(1, CLASSES))[:, none].any())
    else:
        right = False
    return "" if right else f"{name} of { ({key: (tuple(v.shape), v.dtype) for key, v in data.items()}) }"


def few_or_many(counts, fewest, most):
    """Whether no count is of one to ``fewest - 1`` patients, negative, or of more than there are."""
    return bool(((counts == 0) | ((counts >= fewest) & (counts <= most))).all())


def sum_right(name, value):
    """Whether an entry of sums has its form."""
    if name in ("support", "class_counts"):
        return value.shape == (CLASSES,) and value.dtype == torch.int64 and value.min() >= 0 and value.max() <= 90
    shaped = value.dim() == 1 if name == "products" else value.dim() == 2 and value.shape[1] == CLASSES
    return shaped and value.dtype == torch.float64 and bool(value.isfinite().all())


def run(count, seed):
    """Faults of this many random answers, and how many left.

    Returns:
        Descriptions of what left and should not have, or of exceptions; and the number of answers that left.
    """
    draw, made, faults, left_count = random.Random(seed), contexts(), [], 0
    torch.manual_seed(seed)
    door = SitePrivacyGate()
    for number in range(count):
        task, context, makes = made[draw.randrange(len(made))]
        reply = answer(draw, makes)
        try:
            left = door._filter_answer(reply, context)
            found = fault(left, task)
            left_count += left.get_return_code() == ReturnCode.OK
        except Exception as error:
            found = f"{type(error).__name__}: {error}"
        if found:
            faults.append(f"{number} ({task}): {found}")
    return faults, left_count
