"""Contracts of plug-ins, to be called in their tests: each raises an AssertionError with a sentence that says what is wrong.

As scikit-learn's ``check_estimator``. What the package has of each kind keeps the same contracts::

    import grandrounds as gr
    from cutout import Cutout


    def test_it_is_a_view():
        gr.testing.check_view(Cutout)
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from torch import nn

    from grandrounds.data.datasets.published import ReadDataset
    from grandrounds.data.images.views import View
    from grandrounds.data.options import PartitionOptions
    from grandrounds.data.own_schemes import SiteRule
    from grandrounds.evaluation.metrics import Metric
    from grandrounds.federation.server.robust import OwnRule
    from grandrounds.methods.supervised.loss import Loss
    from grandrounds.protocol.task import Task

VIEW_SIDE = 24


def check_view(view: Callable[..., View], **options: Any) -> None:
    """Check what every view has to keep.

    A view of a square image, grey or in colour, has its shape and is uint8; the image stays as it was; all randomness comes
    from the generator.

    Args:
        view: the class.
        options: arguments of the class.

    Raises:
        AssertionError: naming what is wrong.
    """
    name = getattr(view, "__name__", repr(view))
    drawer = view(**options)
    for channels in (1, 3):
        image = _generator(channels).integers(0, 256, (VIEW_SIDE, VIEW_SIDE, channels), dtype=np.uint8)
        kept = image.copy()
        for seed in range(8):
            drawn, again = (drawer.draw(image, _generator(seed)) for _ in range(2))
            _require(
                isinstance(drawn, np.ndarray) and drawn.dtype == np.uint8 and drawn.shape == image.shape,
                f"view {name}: an image uint8 {image.shape} became {_kind(drawn)}; keep type and shape",
            )
            _require(np.array_equal(image, kept), f"view {name} changes the image that it gets; work on a copy")
            _require(
                np.array_equal(drawn, again),
                f"view {name} gives two results for one state of the generator; draw everything from the generator",
            )


def check_scheme(scheme: Callable[[], SiteRule], sites: int = 4) -> None:
    """Check what every scheme has to keep.

    Each site gets a record, no record is at two sites, the images of a patient are at one site, and the same generator gives
    the same sites.

    Args:
        scheme: the class, as for ``gr.register_scheme``.
        sites: how many to ask for.

    Raises:
        AssertionError: naming what is wrong.
    """
    from grandrounds.data.manifest import Record
    from grandrounds.data.options import PartitionOptions

    name = getattr(scheme, "__name__", repr(scheme))
    records = tuple(
        Record(f"{n}.png", "abc"[n // 2 % 5 % 3], patient=f"p{n // 2}", source=f"clinic-{n // 2 % 2}")
        for n in range(240)
    )
    options = PartitionOptions(sites=sites)
    divided, again = (scheme().sites(records, options, _generator(7)) for _ in range(2))
    _require(dict(divided) == dict(again), f"scheme {name} gives other sites for one state of the generator")
    empty = [site for site, members in divided.items() if not members]
    _require(divided and not empty, f"scheme {name} gives no record to {', '.join(empty) or 'any site'}")
    place: dict[str, str] = {}
    patients: dict[str, str] = {}
    for site, members in divided.items():
        for record in members:
            _require(record in records, f"scheme {name} gives {site} a record that it did not get, {record.image}")
            earlier = place.setdefault(record.image, site)
            _require(
                earlier == site and members.count(record) == 1,
                f"scheme {name}: {record.image} is at {earlier} and {site}",
            )
            home = patients.setdefault(record.patient, site)
            _require(
                home == site, f"scheme {name}: patient {record.patient} is at {home} and {site}; use divide_groups"
            )


def check_metric(metric: Metric) -> None:
    """Check what every metric has to keep.

    It gives a finite number for any images, also for one image or images of one class, the same one for the same images in
    any order, and changes neither labels nor probabilities.

    Args:
        metric: a function of labels ``(samples,)`` and probabilities ``(samples, classes)``.

    Raises:
        AssertionError: naming what is wrong.
    """
    name = getattr(metric, "__name__", repr(metric))
    generator = _generator(0)
    for labels in (generator.integers(0, 3, 40), np.array([1]), np.zeros(5, np.int64)):
        probabilities = generator.dirichlet(np.ones(3), len(labels))
        kept = labels.copy(), probabilities.copy()
        what = f"{len(labels)} images of classes {sorted(set(labels.tolist()))}"
        try:
            value = float(metric(labels, probabilities))
        except Exception as error:  # a plug-in is foreign code
            raise AssertionError(f"metric {name} fails for {what}: {type(error).__name__}: {error}") from error
        _require(np.isfinite(value), f"metric {name} gives {value} for {what}; it must be finite")
        _require(
            np.array_equal(labels, kept[0]) and np.array_equal(probabilities, kept[1]),
            f"metric {name} changes its arguments; work on copies",
        )
        order = generator.permutation(len(labels))
        other = float(metric(labels[order], probabilities[order]))
        _require(
            np.isclose(value, other, rtol=1e-9, atol=1e-12),
            f"metric {name} gives {value} for {what}, and {other} in another order",
        )


def check_loss(loss: Loss) -> None:
    """Check what every loss of exclusive classes has to keep, with weights and without.

    It is a finite scalar, the same in any order of the images and for a batch that comes twice, its gradient is finite and
    not 0, and it is lower for logits of the right classes than for others.

    Args:
        loss: a function of logits ``(batch, classes)``, labels ``(batch,)`` and weights ``(classes,)`` or None.

    Raises:
        AssertionError: naming what is wrong.
    """
    import torch

    name = f"loss {getattr(loss, '__name__', repr(loss))}"
    labels = torch.from_numpy(_generator(0).integers(0, 3, 8))
    for weights in (None, torch.tensor([0.5, 1.0, 2.0])):
        logits = torch.from_numpy(_generator(1).normal(size=(8, 3))).float().requires_grad_()
        value = loss(logits, labels, weights)
        _require(value.shape == () and bool(value.isfinite()), f"{name} gives {value}; it must be a finite scalar")
        (slope,) = torch.autograd.grad(value, logits)
        _require(bool(slope.isfinite().all()), f"{name} has a gradient that is not finite")
        right = torch.nn.functional.one_hot(labels, 3).float() * 4
        _require(
            bool(slope.any()) and bool(loss(right, labels, weights) < loss(-right, labels, weights)),
            f"{name} does not fall for the right classes; return what is minimised",
        )
        for order in (torch.arange(8).flip(0), torch.arange(8).repeat(2)):
            other = loss(logits[order], labels[order], weights)
            _require(torch.allclose(other, value, rtol=1e-4), f"{name} is no mean over the batch: {other} and {value}")


def check_aggregator(rule: OwnRule) -> None:
    """Check what every rule for updates has to keep.

    Of equal updates it gives that update, with all names, shapes and dtypes; of others it gives finite values, the same ones
    in any order, and it changes none.

    Args:
        rule: a function of updates and their weights.

    Raises:
        AssertionError: naming what is wrong.
    """
    import torch

    name = f"aggregator {getattr(rule, '__name__', repr(rule))}"
    updates = [
        {"w": torch.from_numpy(_generator(n).normal(size=(2, 3))).float(), "b": torch.full((2,), n / 2)}
        for n in range(5)
    ]
    kept, weights = (
        [{entry: value.clone() for entry, value in one.items()} for one in updates],
        [1.0, 2.0, 2.0, 3.0, 5.0],
    )
    for number in (1, 5):
        equal = rule([updates[1]] * number, weights[:number])
        _require(equal.keys() == updates[1].keys(), f"{name} gives the entries {list(equal)}; keep all")
        for entry, value in updates[1].items():
            _require(
                equal[entry].dtype == value.dtype and torch.allclose(equal[entry], value, atol=1e-5),
                f"{name} gives another {entry} than that of {number} equal updates",
            )
    result, other = rule(updates, weights), rule(updates[::-1], weights[::-1])
    for entry, value in result.items():
        _require(bool(value.isfinite().all()), f"{name} gives values of {entry} that are not finite")
        _require(torch.allclose(value, other[entry], atol=1e-4), f"{name} depends on the order of updates, in {entry}")
    same = all(torch.equal(one[entry], was[entry]) for one, was in zip(updates, kept, strict=True) for entry in was)
    _require(same, f"{name} changes an update that it gets; work on a copy")


def check_backbone(factory: Callable[[int, int], nn.Module], *, stride: int, head: str | None = None) -> None:
    """Check what every network has to keep.

    It maps grey and colour images to logits for any number of classes, is divided into an encoder and a linear head, has the
    same entries whenever it is built, and every weight that is trained gets a gradient.

    Args:
        factory: from the numbers of classes and of channels to a network.
        stride: how much smaller than the image its last feature map is.
        head: the name of its last linear layer, where it is not found.

    Raises:
        AssertionError: naming what is wrong.
    """
    import torch

    from grandrounds.errors import ConfigurationError
    from grandrounds.models.backbones.own import OwnBackbone

    name = getattr(factory, "__name__", repr(factory))
    for classes, channels in ((2, 3), (5, 1)):
        try:
            built = [OwnBackbone(name, factory, stride, head, "scaled").build(classes, channels) for _ in range(2)]
        except ConfigurationError as error:
            raise AssertionError(str(error)) from error
        shapes = [{entry: tuple(value.shape) for entry, value in network.state_dict().items()} for network in built]
        _require(shapes[0] == shapes[1], f"backbone {name} has other entries when it is built again")
        network = built[0].train()
        logits = network(torch.rand(3, channels, 2 * stride, 2 * stride))
        _require(logits.shape == (3, classes), f"backbone {name} gives {tuple(logits.shape)}, not (3, {classes})")
        logits.square().sum().backward()
        idle = [entry for entry, value in network.named_parameters() if value.requires_grad and value.grad is None]
        _require(not idle, f"backbone {name}: {', '.join(idle)} get no gradient; use or remove them")


def check_dataset(
    reader: Callable[[Path, Any], Iterable[Mapping[str, Any]] | ReadDataset],
    root: Path | str,
    options: PartitionOptions | None = None,
) -> None:
    """Check what every reader of a data set has to keep.

    It gives at least one row, the same rows in the same order each time, each with the name of an image below the folder, no
    name twice, a label (empty if unknown), and a known split if there is one; a patient is in one split.

    Args:
        reader: a function of the folder and the options.
        root: a folder with some images.
        options: of the reader.

    Raises:
        AssertionError: naming what is wrong and the row.
    """
    from grandrounds.data.families import ReaderOptions
    from grandrounds.data.manifest import SPLITS

    name, root = getattr(reader, "__name__", repr(reader)), Path(root)
    chosen = ReaderOptions() if options is None else options
    rows = _rows_of(reader(root, chosen))
    _require(bool(rows), f"data set {name} gives no row for {root}")
    _require(
        rows == _rows_of(reader(root, chosen)), f"data set {name} gives other rows the second time; sort the files"
    )
    images: set[str] = set()
    splits: dict[str, str] = {}
    for number, row in enumerate(rows, start=1):
        where = f"data set {name}, row {number}"
        _require("image" in row and "label" in row, f"{where}: image or label is missing in {sorted(row)}")
        image, split, patient = str(row["image"]), str(row.get("split", "")), str(row.get("patient", ""))
        _require(image not in images, f"{where}: image {image!r} is listed twice")
        images.add(image)
        _require(not root.is_dir() or (root / image).is_file(), f"{where}: there is no file {image!r} below {root}")
        _require(split in ("", *SPLITS), f"{where}: split must be train, val or test, got {split!r}")
        if patient:
            earlier = splits.setdefault(patient, split)
            _require(earlier == split, f"{where}: patient {patient!r} is in splits {earlier!r} and {split!r}")


def _rows_of(read: Any) -> list[dict[str, Any]]:
    """The rows that a reader gives, or those of its ``ReadDataset``."""
    from grandrounds.data.datasets.published import ReadDataset

    if isinstance(read, ReadDataset):
        return [
            {name: getattr(record, name) for name in ("image", "label", "split", "patient")} for record in read.records
        ]
    return [dict(row) for row in read]


def check_method(name: str, options: Mapping[str, Any] | None = None) -> None:
    """Check what every method has to keep, on two sites with drawn images.

    Its job is valid, two rounds run to their end, both sites report a score, and a second run with the same seed reports the
    same ones.

    Args:
        name: under which it is registered.
        options: values of options, ``{"executor.steps": 1}``; fewer steps make the test quicker.

    Raises:
        AssertionError: naming what is wrong.
    """
    import grandrounds as gr

    tables = []
    for _ in range(2):
        with tempfile.TemporaryDirectory() as folder:
            try:
                run = gr.run(name, 2, rounds=2, options=options or {}, workspace=Path(folder) / "run", progress=False)
                tables.append(run.scores())
            except gr.GrandRoundsError as error:
                raise AssertionError(f"method {name} does not run: {error}") from error
    sites = sorted(site for site in tables[0].index if str(site).startswith("site-"))
    _require(sites == ["site-1", "site-2"], f"method {name} has scores of {sites}, not of site-1 and site-2")
    _require(
        tables[0].equals(tables[1]),
        f"method {name} has other scores the second time; draw from context.generator or context.key only",
    )


def check_task(task: Task) -> None:
    """Check what every task has to keep, on the label cells of ``a``, ``b`` and ``c``.

    A cell is read as it is written; the scored classes of its questions are the vocabulary; decisions, probabilities and
    pseudo-labels have the shape of labels; losses are finite and zero where nothing is known; a row of the table of
    predictions is read as it was written.

    Args:
        task: an instance.

    Raises:
        AssertionError: naming what is wrong.
    """
    import torch

    name, names = f"task {task.name}", ("a", "b", "c")
    labels = task.read_labels([*(task.cell([text]) for text in names), ""], names)
    _require(task.known(labels).tolist() == [True] * 3 + [False], f"{name}: an empty cell is unknown, and no other one")
    _require(task.class_counts(labels, 3).tolist() == [1] * 3, f"{name}: cells of one name each must count once each")
    logits = torch.from_numpy(_generator(1).normal(size=(4, 3)))
    probabilities = task.probabilities(logits)
    values = probabilities.numpy()
    questions = task.questions(labels, values)
    _require(
        sum(len(question.scored) for question in questions) == 3,
        f"{name}: questions must have a scored class for each name",
    )
    for question in questions:
        _require(
            np.allclose(question.probabilities.sum(axis=1), 1), f"{name}: probabilities of a question must sum to one"
        )
    for what, output in (
        ("decide", task.decide(values)),
        ("likeliest", task.likeliest(logits).numpy()),
        ("pseudo_labels", task.pseudo_labels(probabilities, 0.5).labels.numpy()),
        ("entropy", task.entropy(probabilities).numpy()),
    ):
        _require(output.shape == labels.shape, f"{name}: {what} has shape {output.shape}, labels have {labels.shape}")
    known, unknown = (torch.from_numpy(part) for part in (labels[:3], labels[3:3]))
    loss = float(task.loss(logits[:3], known))
    _require(0 < loss < np.inf, f"{name}: the loss of three random images is {loss}")
    _require(float(task.loss(logits[:0], unknown)) == 0, f"{name}: the loss of no image must be zero")
    for label, row, decided in zip(labels, values.tolist(), task.decide(values), strict=True):
        again, read, called = task.read_prediction(task.prediction_cells(label, row, decided, names), names)
        same = np.array_equal([again, called], [label, decided]) and np.allclose(read, row, atol=1e-6)
        _require(same, f"{name}: a row of predictions is not read as it was written")


def _generator(seed: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(seed))


def _kind(value: object) -> str:
    return f"{value.dtype} {value.shape}" if isinstance(value, np.ndarray) else type(value).__name__


def _require(condition: Any, message: str) -> None:
    if not condition:
        raise AssertionError(message)
