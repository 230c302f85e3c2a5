"""``grandrounds provision``, ``overlay`` and ``kit``: startup kits, what this project needs in them, and their service."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from grandrounds.commands.options import Json, comma_separated
from grandrounds.console.output import megabytes, notes, results, say, say_json
from grandrounds.errors import ConfigurationError

if TYPE_CHECKING:
    from grandrounds.deployment.kit.read import Kit

Wheel = Annotated[Path | None, typer.Option(help="The reviewed wheel; it must be the installed one.")]
PROVISION_HELP = """Make the startup kits of a project and apply this project's overlay to those of the server and the sites.

All private keys are made here. If a hospital's key must not leave the hospital, use nvflare cert and nvflare package
instead, as provisioning/README.md describes, and run grandrounds overlay at the hospital.

[bold]Examples[/bold]

\b
  grandrounds provision provisioning/project.yml --out kits
  grandrounds provision provisioning/project.yml --out kits --wheel dist/grandrounds-0.1.0-py3-none-any.whl
"""
OVERLAY_HELP = """Set a startup kit's local files: allowed classes, rights, privacy policy, data sets, storage.

Only files in the kit's folder local are written. Applying the overlay again changes nothing, and the site's own settings
stay. Rights and the privacy policy are read when FLARE starts: restart a running site afterwards.

[bold]Examples[/bold]

\b
  grandrounds overlay /opt/kits/server --storage /srv/flare --mandatory-sites hospital-a,hospital-b
  grandrounds overlay /opt/kits/hospital-a --wheel grandrounds-0.1.0-py3-none-any.whl --datasets grandrounds.json
  grandrounds overlay /opt/kits/hospital-a --gpus 1 --gpu-memory 24 --plugin our-networks
  grandrounds overlay /opt/kits/hospital-a --network timm:resnet50
"""

KIT_HELP = """Start and stop a startup kit, renew its certificate, remove folders of old jobs, and ask for support.

[bold]Examples[/bold]

\b
  grandrounds kit start /opt/kits/hospital-a --background
  grandrounds kit stop /opt/kits/hospital-a
  grandrounds kit renew /opt/kits/hospital-a --from kits/grand_rounds/prod_01/hospital-a
  grandrounds kit clean /opt/kits/hospital-a --older-than 30 --dry-run
  grandrounds kit support /opt/kits/hospital-a --out support.zip
"""
SUPPORT_HELP = """Write a zip with what helps to find a fault, to be read before it is sent.

It has versions, findings of status and doctor, options of the last jobs, digests, and the last lines of the logs, of which
only words that stand in the source of grandrounds and FLARE are kept. It has no key, image, name of a file or patient,
label, or row of a manifest. README.txt in it says what is in it; an existing file is not replaced.

[bold]Examples[/bold]

\b
  grandrounds kit support /opt/kits/hospital-a --dry-run
  grandrounds kit support /opt/kits/hospital-a --out support.zip
"""
KitFolder = Annotated[Path, typer.Argument(metavar="KIT", help="The startup kit of a server or a site.")]


def build_group() -> typer.Typer:
    """The command ``kit`` with its parts."""
    group = typer.Typer(help=KIT_HELP, no_args_is_help=True, rich_markup_mode="rich")
    group.command(help="Run the doctor, then FLARE, which is started again when it dies. SIGTERM stops it in 10 s.")(
        start
    )
    group.command(help="Stop the kit's FLARE and its jobs, however it was started.")(stop)
    group.command(
        help="Replace keys and certificates by those of a new kit; ledger, policy, states and paths stay. Stop it first."
    )(renew)
    group.command(help="Remove folders of finished jobs. Models, states, ledger and results are in other folders.")(
        clean
    )
    group.command(help=SUPPORT_HELP)(support)
    return group


def start(
    kit: KitFolder,
    background: Annotated[
        bool, typer.Option("--background", help="Return at once; the output goes to KIT/console.txt.")
    ] = False,
) -> None:
    """Start a kit in which the doctor finds no failure."""
    from grandrounds.deployment.kit import service
    from grandrounds.deployment.kit.read import require_owner

    participant = _participant(kit)
    require_owner(participant.folder)
    with service.stoppable():
        service.remove_stale_files(participant)
        service.require_running(participant)
        if background:
            process = service.start_in_background(participant)
            say(results(), f"{participant.name} runs (process {process}); logs: {participant.folder / 'log.txt'}")
        else:
            service.serve(participant, lambda line: say(notes(), line))


def stop(kit: KitFolder) -> None:
    """Stop a kit."""
    from grandrounds.deployment.kit import service

    participant = _participant(kit)
    stopped = service.stop(participant)
    say(results(), f"{participant.name}: {'stopped' if stopped else 'it was not running'}")


def renew(
    kit: Annotated[Path, typer.Argument(metavar="KIT", help="The kit in use, of a server, a site or a person.")],
    new: Annotated[Path, typer.Option("--from", help="The new kit of the same participant, without an overlay.")],
) -> None:
    """Renew a certificate and show what has stayed the same."""
    from grandrounds.deployment.kit.read import read_kit, require_owner
    from grandrounds.deployment.kit.renewal import renew as replace_certificate

    require_owner(read_kit(kit).folder)
    renewed = replace_certificate(read_kit(kit), read_kit(new))
    console = results()
    say(console, f"{kit}: the certificate is valid for {renewed.days:.0f} more days")
    say(console, f"{renewed.files} files in local are unchanged")
    if renewed.ledger_head:
        say(console, f"the head of the privacy ledger is unchanged: {renewed.ledger_head}")
    say(console, f"the old keys are in {renewed.old}; remove them when the kit has connected")


def clean(
    kit: KitFolder,
    older_than: Annotated[float, typer.Option(min=0, metavar="DAYS", help="Days without a change.")] = 30,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the folders; remove nothing.")] = False,
) -> None:
    """Remove or show folders of old jobs."""
    from grandrounds.deployment.kit.cleaning import old_jobs, remove

    old = old_jobs(_participant(kit), older_than)
    console = results()
    for job in old:
        say(console, f"{job.folder}: {megabytes(job.size)}, unchanged for {job.days:.0f} days")
    if not dry_run:
        remove(old)
    size = megabytes(sum(job.size for job in old))
    say(console, f"{len(old)} folders, {size}" + (" would be removed" if dry_run else " removed"))


def support(
    kit: KitFolder,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="The zip to write; nobody else can read it.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be in it; write nothing.")] = False,
    no_network: Annotated[bool, typer.Option("--no-network", help="Do not contact the server.")] = False,
) -> None:
    """Write a support bundle and show what is in it."""
    from grandrounds.deployment.operation.support import require_new, support_entries, write_bundle

    if out is None and not dry_run:
        raise typer.BadParameter("give --out FILE.zip, or --dry-run to see what would be in it")
    if out is not None:
        require_new(out)
    entries = support_entries(_participant(kit), not no_network)
    table = Table("file", "bytes", "what it is")
    for entry in entries:
        table.add_row(entry.name, str(len(entry.content)), entry.meaning)
    console = results()
    console.print(table)
    if out is None or dry_run:
        say(console, "nothing was written")
        return
    write_bundle(entries, out)
    say(console, f"{out}: {out.stat().st_size} bytes; read it (README.txt first), then send it")


def _participant(folder: Path) -> Kit:
    from grandrounds.deployment.kit.read import read_kit

    kit = read_kit(folder)
    if kit.kind == "person":
        raise ConfigurationError(f"{kit.folder} is the kit of a person; only servers and sites run FLARE")
    return kit


def provision(
    project: Annotated[Path, typer.Argument(metavar="PROJECT", help="The project's description, a YAML file.")],
    out: Annotated[
        Path, typer.Option(help="Folder for the kits and the private keys of the authority: keep it secret.")
    ] = Path("kits"),
    wheel: Wheel = None,
) -> None:
    """Make all kits and apply the overlay."""
    from grandrounds.deployment.kit.overlay import Settings, apply_overlay
    from grandrounds.deployment.kit.provision import provision as make
    from grandrounds.deployment.kit.read import read_kit

    kits = make(project, out)
    for folder in sorted(path for path in kits.iterdir() if (path / "startup").is_dir()):
        kit = read_kit(folder)
        if kit.kind != "person":
            apply_overlay(kit, Settings(wheel=wheel))
        say(results(), f"{kit.kind}: {folder}")


def overlay(
    kit: Annotated[Path, typer.Argument(metavar="KIT", help="The startup kit of a server or a site.")],
    wheel: Wheel = None,
    datasets: Annotated[Path | None, typer.Option(help="Site: a grandrounds.json with its data sets.")] = None,
    privacy: Annotated[Path | None, typer.Option(help="Site: its privacy.json; default: this project's.")] = None,
    gpus: Annotated[int | None, typer.Option(min=0, help="Site: number of GPUs that jobs may reserve.")] = None,
    gpu_memory: Annotated[float | None, typer.Option(min=0, help="Site: memory of each GPU, in GiB.")] = None,
    storage: Annotated[Path | None, typer.Option(help="Server: folder for jobs and results.")] = None,
    mandatory_sites: Annotated[
        str | None, typer.Option(help="Server: sites without which no job starts, a,b; '' for none.")
    ] = None,
    plugin: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Installed package whose plug-ins are used; '' for none.")
    ] = None,
    network: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Library's network that jobs may name; '' for none.")
    ] = None,
    allow_class: Annotated[
        list[str] | None, typer.Option(metavar="CLASS", help="Server: a class of FLARE's for jobs; '' for none.")
    ] = None,
    json: Json = False,
) -> None:
    """Apply the overlay and show which files were changed."""
    from grandrounds.deployment.kit.overlay import Settings, apply_overlay, read_at_start
    from grandrounds.deployment.kit.read import read_kit, require_owner, running_processes

    participant = read_kit(kit)
    require_owner(participant.folder)
    mandatory = None if mandatory_sites is None else comma_separated(mandatory_sites) or []
    before = read_at_start(participant)
    lists = (None if given is None else [*filter(None, given)] for given in (plugin, allow_class, network))
    changes = apply_overlay(
        participant, Settings(wheel, datasets, privacy, gpus, gpu_memory, storage, mandatory, *lists)
    )
    restart = before != read_at_start(participant) and bool(running_processes(participant))
    if json:
        entries = [{**asdict(change), "path": str(change.path)} for change in changes]
        say_json({"participant": participant.name, "kind": participant.kind, "files": entries, "restart": restart})
        return
    console = results()
    for change in changes:
        say(console, f"{change.state}: {change.path}")
    if restart:
        say(console, f"{participant.name} is running: restart it, because rights and privacy are read at its start")
