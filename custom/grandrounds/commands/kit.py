"""``grandrounds provision``, ``overlay`` and ``kit``: startup kits, what this project needs in them, and their service."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from grandrounds.commands.options import Json, comma_separated
from grandrounds.console.output import megabytes, notes, results, say, say_json, table_of
from grandrounds.errors import ConfigurationError

if TYPE_CHECKING:
    from grandrounds.deployment.kit.read import Kit

Wheel = Annotated[Path | None, typer.Option(help="The reviewed wheel; it must be the installed one.")]
Policy = Annotated[
    str | None, typer.Option(metavar="NAME", help="Shipped privacy policy of hospitals: sums, open or strict.")
]
KitFolder = Annotated[Path, typer.Argument(metavar="KIT", help="The startup kit of a server or a site.")]


def kit() -> None:
    """Start and stop a startup kit, renew its certificate, pin partners, remove folders of old jobs, and ask for support.

    Examples:
      grandrounds kit start /opt/kits/hospital-a --background
      grandrounds kit stop /opt/kits/hospital-a
      grandrounds kit renew /opt/kits/hospital-a --from kits/grand_rounds/prod_01/hospital-a
      grandrounds kit partners /opt/kits/hospital-a --list partners.txt --write
      grandrounds kit clean /opt/kits/hospital-a --older-than 30 --dry-run
      grandrounds kit support /opt/kits/hospital-a --out support.zip
    """


def start(
    kit: KitFolder,
    background: Annotated[
        bool, typer.Option("--background", help="Return at once; the output goes to KIT/console.txt.")
    ] = False,
) -> None:
    """Run the doctor, then FLARE, which is started again when it dies. SIGTERM stops it in 10 s."""
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


def approve(
    folder: Annotated[Path, typer.Argument(metavar="JOB", help="The job's folder, as grandrounds build writes it.")],
    kit: Annotated[Path, typer.Option(help="The startup kit of the site.")],
) -> None:
    """Approve what a job runs, where the site's signers.json has "approval": true. Other code or policy: approve again.

    Examples:
      grandrounds approve build/jobs/fedavg --kit /opt/kits/hospital-a
    """
    from grandrounds.deployment.kit.read import require_owner
    from grandrounds.deployment.manifest import approve as approve_job

    participant = _participant(kit)
    require_owner(participant.folder)
    manifest = approve_job(participant.local, folder)
    say(results(), f"{participant.name} runs {manifest.job} ({manifest.content[:12]}) with code {manifest.code[:12]}")


def stop(kit: KitFolder) -> None:
    """Stop the kit's FLARE and its jobs, however it was started."""
    from grandrounds.deployment.kit import service

    participant = _participant(kit)
    stopped = service.stop(participant)
    say(results(), f"{participant.name}: {'stopped' if stopped else 'it was not running'}")


def renew(
    kit: Annotated[Path, typer.Argument(metavar="KIT", help="The kit in use, of a server, a site or a person.")],
    new: Annotated[Path, typer.Option("--from", help="The new kit of the same participant, without an overlay.")],
) -> None:
    """Replace keys and certificates by those of a new kit; ledger, policy, states and paths stay. Stop it first."""
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


def partners(
    kit: Annotated[Path, typer.Argument(metavar="KIT", help="The kit of a hospital.")],
    listed: Annotated[
        Path | None,
        typer.Option("--list", metavar="FILE", help="Lines of the other hospitals, got from them: name and SHA-256."),
    ] = None,
    write: Annotated[bool, typer.Option("--write", help="Pin the keys of the list in the hospital's policy.")] = False,
) -> None:
    """Show, compare and pin the keys of the hospitals with which this one adds up.

    The first line is this hospital's: give it to the others, by telephone or on paper, and not by way of the server. With
    --list each key is compared with what the policy pins; --write pins it. Without pins secure sums protect against a
    curious server only, because one with code of its own can play hospitals.

    Examples:
      grandrounds kit partners /opt/kits/hospital-a
      grandrounds kit partners /opt/kits/hospital-a --list partners.txt --write
    """
    from grandrounds.deployment.kit import partners as compared_keys
    from grandrounds.deployment.kit.read import read_kit, require_owner

    if write and listed is None:
        raise typer.BadParameter("--write needs the --list of the other hospitals")
    participant = read_kit(kit)
    found = compared_keys.compared(participant, compared_keys.read_list(listed) if listed else {})
    for partner in found:
        say(results(), f"{partner.name} {partner.digest} {partner.state}")
    if write:
        require_owner(participant.folder)
        compared_keys.pin(participant, found)
        say(results(), f"{len(found)} keys are pinned in {participant.local}; restart the hospital's FLARE")


def clean(
    kit: KitFolder,
    older_than: Annotated[float, typer.Option(min=0, metavar="DAYS", help="Days without a change.")] = 30,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the folders; remove nothing.")] = False,
) -> None:
    """Remove folders of finished jobs. Models, states, ledger and results are in other folders."""
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
    """Write a zip with what helps to find a fault, to be read before it is sent.

    It has versions, findings of status and doctor, options of the last jobs, digests, and the last lines of the logs, of
    which only words that stand in the source of grandrounds and FLARE are kept. It has no key, image, name of a file or
    patient, label, or row of a manifest. README.txt in it says what is in it; an existing file is not replaced.

    Examples:
      grandrounds kit support /opt/kits/hospital-a --dry-run
      grandrounds kit support /opt/kits/hospital-a --out support.zip
    """
    from grandrounds.deployment.operation.support import require_new, support_entries, write_bundle

    if out is None and not dry_run:
        raise typer.BadParameter("give --out FILE.zip, or --dry-run to see what would be in it")
    if out is not None:
        require_new(out)
    entries = support_entries(_participant(kit), not no_network)
    console = results()
    rows = ([entry.name, str(len(entry.content)), entry.meaning] for entry in entries)
    console.print(table_of(("file", "bytes", "what it is"), rows))
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
    policy: Policy = None,
) -> None:
    """Make the startup kits of a project and apply this project's overlay to those of the server and the sites.

    All private keys are made here. If a hospital's key must not leave the hospital, use nvflare cert and nvflare package
    instead, as provisioning/README.md describes, and run grandrounds overlay at the hospital.

    Examples:
      grandrounds provision provisioning/project.yml --out kits
      grandrounds provision provisioning/project.yml --out kits --policy strict
      grandrounds provision provisioning/project.yml --out kits --wheel dist/grandrounds-0.1.0-py3-none-any.whl
    """
    from grandrounds.deployment.kit.overlay import Settings, apply_overlay
    from grandrounds.deployment.kit.provision import hospitals, read_project
    from grandrounds.deployment.kit.provision import provision as make
    from grandrounds.deployment.kit.read import read_kit
    from grandrounds.deployment.kit.shipped import policy_lines, policy_name

    chosen = policy_name(policy, len(hospitals(read_project(project))))
    kits = make(project, out)
    for folder in sorted(path for path in kits.iterdir() if (path / "startup").is_dir()):
        kit = read_kit(folder)
        if kit.kind != "person":
            apply_overlay(kit, Settings(wheel=wheel, policy=chosen if kit.kind == "site" else None))
        say(results(), f"{kit.kind}: {folder}")
    for line in policy_lines(chosen):
        say(results(), line)


def overlay(
    kit: Annotated[Path, typer.Argument(metavar="KIT", help="The startup kit of a server or a site.")],
    wheel: Wheel = None,
    datasets: Annotated[Path | None, typer.Option(help="Site: a grandrounds.json with its data sets.")] = None,
    policy: Policy = None,
    privacy: Annotated[Path | None, typer.Option(help="Site: a privacy.json of its own, in place of a policy.")] = None,
    gpus: Annotated[int | None, typer.Option(min=0, help="Site: number of GPUs that jobs may reserve.")] = None,
    gpu_memory: Annotated[float | None, typer.Option(min=0, help="Site: memory of each GPU, in GiB.")] = None,
    storage: Annotated[Path | None, typer.Option(help="Server: folder for jobs and results.")] = None,
    mandatory_sites: Annotated[
        str | None, typer.Option(help="Server: sites without which no job starts, a,b; '' for none.")
    ] = None,
    max_sites: Annotated[
        int | None, typer.Option(min=1, help="Server: sites that may be connected; FLARE's default is 100.")
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
    """Set a startup kit's local files: allowed classes, rights, privacy policy, data sets, storage.

    Only files in the kit's folder local are written. Applying the overlay again changes nothing, and the site's own
    settings stay. Rights and the privacy policy are read when FLARE starts: restart a running site afterwards.

    Examples:
      grandrounds overlay /opt/kits/server --storage /srv/flare --mandatory-sites hospital-a,hospital-b
      grandrounds overlay /opt/kits/hospital-a --wheel grandrounds-0.1.0-py3-none-any.whl --datasets grandrounds.json
      grandrounds overlay /opt/kits/hospital-a --gpus 1 --gpu-memory 24 --plugin our-networks
      grandrounds overlay /opt/kits/hospital-a --network timm:resnet50
    """
    from grandrounds.deployment.kit.overlay import Settings, apply_overlay, read_at_start
    from grandrounds.deployment.kit.read import read_kit, require_owner, running_processes
    from grandrounds.deployment.kit.shipped import policy_lines, policy_name
    from grandrounds.privacy.gate.policy import POLICY_FILE

    participant = read_kit(kit)
    require_owner(participant.folder)
    first = participant.kind == "site" and not (participant.local / POLICY_FILE).is_file()
    mandatory = None if mandatory_sites is None else comma_separated(mandatory_sites) or []
    before = read_at_start(participant)
    lists = (None if given is None else [*filter(None, given)] for given in (plugin, allow_class, network))
    plugins, classes, networks = lists
    kept = Settings(wheel, datasets, privacy, gpus, gpu_memory, storage, mandatory, plugins, classes, networks)
    changes = apply_overlay(participant, replace(kept, policy=policy, max_sites=max_sites))
    restart = before != read_at_start(participant) and bool(running_processes(participant))
    if json:
        entries = [{**asdict(change), "path": str(change.path)} for change in changes]
        say_json({"participant": participant.name, "kind": participant.kind, "files": entries, "restart": restart})
        return
    console = results()
    for change in changes:
        say(console, f"{change.state}: {change.path}")
    for line in policy_lines(policy_name(policy)) if policy or (first and privacy is None) else ():
        say(console, line)
    if restart:
        say(console, f"{participant.name} is running: restart it, because rights and privacy are read at its start")
