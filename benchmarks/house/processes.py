"""What each process of a kit may load: the committed lists, the page about them, and what processes have loaded.

python -m benchmarks.house.processes table              # modules and lines of each process
python -m benchmarks.house.processes write              # the lists and the page, after any change of imports
python -m benchmarks.house.processes observe FOLDER     # run FedAvg and ridge in kits, and compare with the lists

Lists follow from the imports at the top of modules; what is imported inside a function is an addition with its condition.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import socket
import sys
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.house.counting import counted
from benchmarks.tables import markdown_table
from grandrounds.data.partition.phantom_site import phantom_site
from grandrounds.data.site import CONFIG_NAME
from grandrounds.deployment.jobs import job_names, load_job, named_classes
from grandrounds.deployment.kit.classes import JOB_FILTERS
from grandrounds.deployment.kit.overlay import Settings
from grandrounds.deployment.local_federation import Federation, prepare, start, stop_federation
from grandrounds.deployment.presets import with_options
from grandrounds.deployment.submission import submit_and_watch, with_roster
from grandrounds.errors import GrandRoundsError
from grandrounds.files import write_bytes, write_json
from grandrounds.seal import CHILDREN, LISTS, PROCESSES, allowed

ON_A_MACHINE = False
"""Lists are the same on every machine."""
PACKAGE = LISTS.parent
SITES = ("hospital-a", "hospital-b")
UNSEEN = ("submitter", "training", "inventory", "drawing")
"""Processes that are not observed: walls keep the children of a job, and what they start, from writing elsewhere."""
EXAMPLES = Path(__file__).parents[2] / "examples"
PAGE = Path(__file__).parents[2] / "docs" / "what-a-hospital-runs.md"
OBSERVER = Path(__file__).parent / "observer"
FOLDER_VARIABLE = "HOUSE_MODULES"
CLIENT = ("federation.channels", "deployment.kit.admission", "logs.lines", "privacy.gate.filters")
"""What FLARE builds from a site's own files in each of its processes."""
ROOTS: Mapping[str, Sequence[str]] = {
    "client": CLIENT,
    "job": (*CLIENT, "federation.site.executor"),
    "training": ("federation.site.training_child", "federation.site.serving", "federation.site.executor", "seal"),
    "inventory": ("privacy.inventory", "seal"),
    "drawing": ("data.images.drawing", "seal"),
    "server": ("federation.channels", "logs.lines"),
    "server_job": ("federation.channels", "logs.lines", "federation.server.controller"),
    "submitter": ("commands.submit",),
}
TITLES = {
    "client": "the hospital's client, which stands open day and night",
    "job": "a job at the hospital",
    "training": "trains for a job, behind walls",
    "inventory": "reads manifests and digests of images for the gate of a job",
    "drawing": "draws views of images for a job",
    "server": "the server",
    "server_job": "a job at the server",
    "submitter": "the person who submits; not sealed",
}
BACKBONES = {
    **dict.fromkeys(("compact", "resnet9", "resnet10", "resnet12"), "small_resnets"),
    **dict.fromkeys(("mobilenetv2", "shufflenet"), "mobile"),
    **dict.fromkeys(("efficientnet_lite0", "resnet22"), ""),
    **dict.fromkeys(("densenet121", "efficientnet_b0", "resnet18", "monai:*", "timm:*", "torchvision:*"), "libraries"),
}
"""The module of each network, where it has another name."""
IMAGES = (
    "data.images.dicom",
    "data.images.mammogram",
    "data.images.devices",
    "data.images.files.raster",
    "data.tables",
)
NETWORKS = {f"*={name}": (f"models.backbones.{module or name}",) for name, module in BACKBONES.items()}
BOTH: Mapping[str, Sequence[str]] = {
    **NETWORKS,
    "weights=*": ("models.weights", "models.backbones.own"),
    "dataset=phantom*": ("data.partition.phantom_site",),
    "manifest=*": IMAGES,
    "inference=fast": ("models.inference.engine",),
    "inference=bfloat16": ("models.inference.engine",),
    "norm=site": ("models.adaptation",),
    "record_noise_multiplier=*": ("privacy.mechanisms.dp_sgd",),
}
OPTIONS: Mapping[str, Mapping[str, Sequence[str]]] = {"job": BOTH, "server_job": BOTH}
"""What a process loads beside its list, by what a job or the participant's own files state."""
REGISTRIES = (
    "models.backbones.own", "models.backbones.libraries", "data.families", "data.own_schemes",
    "federation.server.controller", "federation.site.executor", "evaluation.metrics", "protocol.tasks",
    "data.images.augmentation", "data.datasets.published", "data.options",
)  # fmt: skip
"""What plug-ins register with."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, dest="command")
    commands.add_parser("table")
    commands.add_parser("write")
    commands.add_parser("observe").add_argument("folder", type=Path, help="new folder for the federation")
    arguments = parser.parse_args()
    if arguments.command == "write":
        content = lists()
        write_json(LISTS, content)
        write_bytes(PAGE, page(content).encode())
    if arguments.command == "observe":
        differences = compared(observed(arguments.folder))
        print("\n".join(differences) or "every process has loaded what its list has, and nothing else")
        sys.exit(bool(differences))
    print(table(json.loads(LISTS.read_text())["processes"]))


def lists() -> dict[str, Any]:
    """The content of ``processes.json``, from the imports of the package as it is."""
    processes = {name: sorted(reached(roots)) for name, roots in ROOTS.items()}
    processes["submitter"] = sorted(reached(ROOTS["submitter"], inside=True))
    parts = {"client": {}, "job": _methods("client"), "server": {}, "server_job": _methods("server")}
    plugins = reached(
        [*REGISTRIES, *_imported_by_examples(), *(root for more in parts.values() for (root,) in more.values())]
    )
    additions = {}
    for process, methods in parts.items():
        roots = {**OPTIONS.get(process, {}), **methods}
        found = {key: reached(more) - {*processes[process]} for key, more in roots.items()}
        found["plugins=*"] = (plugins - {*processes[process]}).union(*found.values())
        additions[process] = {key: sorted(modules) for key, modules in sorted(found.items()) if modules}
    return {"processes": processes, "additions": additions}


def _methods(part: str) -> dict[str, tuple[str]]:
    """The module of each class of this package that jobs may name in their configuration of a client, or of a server."""
    paths = {path for name in job_names() for path in named_classes(getattr(load_job(name), part))}
    if part == "client":
        paths.update(JOB_FILTERS)
    modules = {path: path.rpartition(".")[0].partition(".") for path in paths}
    return {f"path={path}": (module,) for path, (package, _, module) in modules.items() if package == PACKAGE.name}


def _imported_by_examples() -> set[str]:
    """What the plug-ins of the repository import, inside functions too."""
    trees = [ast.parse(path.read_text()) for path in EXAMPLES.rglob("*.py")]
    return {name.partition(".")[2] for tree in trees for name in _imported(tree, inside=True) if "." in name}


def reached(roots: Iterable[str], inside: bool = False) -> set[str]:
    """The modules that an import of these loads; with those that functions import ``inside`` if they are asked for."""
    found, waiting = set[str](), [f"grandrounds.{root}" for root in roots]
    while waiting:
        module = waiting.pop()
        if module not in found:
            found.add(module)
            waiting += imports(module, inside)
    return found


@cache
def imports(module: str, inside: bool = False) -> frozenset[str]:
    """The modules of the package that a module imports, packages around them included."""
    known = {*_imported(ast.parse(file_of(module).read_text()), inside), module}
    parents = {name.rsplit(".", count)[0] for name in known for count in range(1, name.count(".") + 1)}
    return frozenset(known | parents) - {module}


def _imported(tree: ast.AST, inside: bool) -> set[str]:
    names = set[str]()
    for node in _statements(tree, inside):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        else:
            names |= {str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)}
    return {name for name in names if name.partition(".")[0] == PACKAGE.name and file_of(name).is_file()}


def _statements(tree: ast.AST, inside: bool) -> Iterator[ast.Import | ast.ImportFrom]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        elif isinstance(node, ast.If) and "environ" in ast.unparse(node.test):
            continue  # the seal of processes that a job has started
        elif inside or not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from _statements(node, inside)


def file_of(module: str) -> Path:
    """The file of a module of the package; it need not exist."""
    place = PACKAGE.joinpath(*module.split(".")[1:])
    return place / "__init__.py" if place.is_dir() else place.with_suffix(".py")


def code_lines(modules: Iterable[str]) -> int:
    """Lines of code, without blanks, comments and docstrings."""
    return sum(map(_code_lines, modules))


@cache
def _code_lines(module: str) -> int:
    return counted(file_of(module).read_text())["code"]


def site_modules(
    jobs: Iterable[str] = ("fedavg", "ridge"), processes: Sequence[str] = ("client", *CHILDREN)
) -> set[str]:
    """What a hospital runs for these jobs, with images of its own as plain files, in all its processes."""
    known = json.loads(LISTS.read_text())["processes"]
    alone = {module for process in processes for module in known[process]}
    return alone.union(*(allowed("job", [own_images(load_job(name))]) for name in jobs))


def own_images(job: Any) -> Any:
    """A job's configuration, about images of the hospital's own."""
    text = json.dumps([job.client, job.server]).replace('"dataset": "phantom"', '"dataset": "skin"')
    return json.loads(text)


def table(processes: Mapping[str, Collection[str]]) -> str:
    """Modules and lines of each process, in Markdown."""
    rows = [[name, len(modules), code_lines(modules), TITLES[name]] for name, modules in processes.items()]
    site = site_modules()
    rows.append(
        ["**a hospital**", len(site), code_lines(site), "all its processes, for FedAvg and ridge on its own images"]
    )
    return markdown_table(["process", "modules", "code lines", "what it is"], rows, 1)


def page(content: Mapping[str, Any]) -> str:
    """The page about the lists: each module of a hospital once, with the processes that may load it."""
    known = {name: modules for name, modules in content["processes"].items() if name in LETTERS}
    folders = defaultdict[str, dict[str, list[str]]](lambda: defaultdict(list))
    for module in sorted({module for modules in known.values() for module in modules}):
        letters = "".join(LETTERS[name] for name, modules in known.items() if module in modules)
        folder, _, name = module.rpartition(".")
        if lines := code_lines([module]):
            folders[folder or module][letters].append(f"{name} {lines}")
    modules = [
        [f"`{folder}`", "; ".join(f"**{letters}** {', '.join(entries)}" for letters, entries in by_process.items())]
        for folder, by_process in folders.items()
    ]
    more = [
        f"`{key.rpartition('.')[2]}` {code_lines(found)}"
        for key, found in content["additions"]["job"].items()
        if key != "plugins=*"
    ]
    keys = ", ".join(f"{letter} {name}" for name, letter in LETTERS.items())
    heading = f"## Modules\n\nBy processes of a hospital ({keys}): the modules that they may load, with code lines."
    parts = [table(content["processes"]), heading, markdown_table(["folder", "modules"], modules), ADDITIONS]
    return "\n\n".join([INTRODUCTION, *parts, ", ".join(more) + "."]) + "\n"


LETTERS = {"client": "C", "job": "J", "training": "T", "inventory": "I", "drawing": "D"}
"""The letter of each process of a hospital on the page."""
INTRODUCTION = """# What a hospital runs

The Python modules of this package that each process of a startup kit may load. The lists are part of the package
(`processes.json`), and importing another module is an error that names module and process
(`test_a_module_that_is_not_on_the_list_is_refused_by_name_and_process`). FLARE, torch and other libraries come beside
them. `python -m benchmarks.house.processes write` makes this page, and
`test_each_process_loads_its_list_for_fedavg_and_ridge` compares the lists with a federation of kits."""
ADDITIONS = """## What a job adds

A job's process loads more if the signed configuration, or the hospital's own `grandrounds.json` or lock, has the entry: a
method's class, a network, an option. `manifest=*` is any data set of the hospital's own: readers of DICOM files,
mammograms and tables. `processes.json` has the names of the modules, also for plug-ins and for the server. Entries and
code lines:"""


def observed(folder: Path) -> dict[str, set[str]]:
    """What each process of kits has loaded for FedAvg and ridge, on a policy that lets sums out."""
    folder = folder.absolute()
    modules = folder / "modules"
    modules.mkdir(parents=True)
    os.environ[FOLDER_VARIABLE] = str(modules)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(OBSERVER), *filter(None, [os.environ.get("PYTHONPATH")])])
    federation = prepare(folder / "federation", SITES, _free_port(), _own_images(folder))
    for site in federation.sites:
        _let_sums_out(federation.kits / site / "local" / "privacy.json")
    start(federation)
    try:
        for name in ("fedavg", "ridge"):
            _submit(federation, name, folder / name)
    finally:
        stop_federation(federation)
    return read_observed(modules)


def read_observed(folder: Path) -> dict[str, set[str]]:
    """What the observer has written, by process."""
    found = defaultdict[str, set[str]](set)
    for path in folder.glob("*.json"):
        content = json.loads(path.read_text())
        command = " ".join(content["command"])
        names = {**PROCESSES, **{roots[0]: name for name, roots in ROOTS.items() if name in CHILDREN}}
        for name in {name for mark, name in names.items() if mark in command}:
            found[name].update(content["modules"])
    return dict(found)


def compared(found: Mapping[str, Collection[str]]) -> list[str]:
    """How what processes have loaded for FedAvg and ridge differs from the lists; a line for each module."""
    content = json.loads(LISTS.read_text())
    jobs = [load_job(job) for job in ("fedavg", "ridge")]
    paths = {f"path={path}" for job in jobs for path in named_classes([job.client, job.server])}
    differences = [f"{name}: no process was seen" for name in content["processes"] if name not in (*found, *UNSEEN)]
    for name, loaded in sorted(found.items()):
        sealed_as = "job" if name in CHILDREN else name
        more = content["additions"].get(sealed_as, {})
        wanted = {*content["processes"][name]}.union(
            *(more[path] for path in paths if path in more and name == sealed_as)
        )
        possible = wanted | allowed(sealed_as, [{"manifest": "own.csv"}, *([job.client, job.server] for job in jobs)])
        started = {f"grandrounds.{ROOTS[name][0]}"} if name in CHILDREN else set()  # as __main__
        differences += [f"{name} has loaded {module}, which its list lacks" for module in sorted({*loaded} - possible)]
        differences += [
            f"{name} has not loaded {module} of its list" for module in sorted(wanted - {*loaded} - started)
        ]
    return differences


def _submit(federation: Federation, name: str, results: Path) -> None:
    options = ["executor.device=cpu", "executor.cpu_threads=1", "controller.round_timeout=300"]
    if name == "fedavg":
        options += ["executor.steps=2", "executor.batch_size=8", "controller.rounds=2"]
    job = with_roster(
        with_options(load_job(name), options), mandatory=federation.sites, min_sites=len(federation.sites)
    )
    if not submit_and_watch(federation.kit(federation.researcher), job, results, print).finished:
        raise GrandRoundsError(f"{name} did not finish; see {federation.folder}")


def _own_images(folder: Path) -> dict[str, Settings]:
    """Images of each hospital's own, which are there before its kit."""
    drawn = {site: phantom_site(site, folder / "images", labelled=1.0) for site in SITES}
    return {site: Settings(datasets=path if path.is_file() else path / CONFIG_NAME) for site, path in drawn.items()}


def _let_sums_out(path: Path) -> None:
    """Also of two patients, as few as the images here are of."""
    content = json.loads(path.read_text())
    for rule in content["scopes"][0]["properties"]["grandrounds"]["releases"]:
        if rule["kind"] == "sufficient_statistics":
            rule["minimum"] = 2
    write_json(path, content)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    main()
