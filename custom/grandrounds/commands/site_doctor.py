"""``grandrounds doctor --kit``: can this participant of a federation take part?"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import typer

from grandrounds.commands.output import results, say, say_json


def examine_kit(folder: Path, network: bool, json: bool) -> None:
    """Examine a startup kit, show the findings, and end with status 1 if something must be mended."""
    from grandrounds.commands.doctor import findings_table
    from grandrounds.deployment.kit import read_kit, running_processes
    from grandrounds.deployment.kit_doctor import examine_kit as examine

    kit = read_kit(folder)
    findings = examine(kit, network)
    failures = sum(finding.level == "failure" for finding in findings)
    warnings = sum(finding.level == "warning" for finding in findings)
    if json:
        say_json({kit.name: [asdict(finding) for finding in findings]})
    else:
        console = results()
        console.print(findings_table({kit.name: findings}))
        state = "running" if running_processes(kit) else "not running"
        end = "mend the failures, then start again" if failures else "it can take part"
        say(
            console,
            f"{kit.name} ({kit.kind} of {kit.project}, {state}): {failures} failures, {warnings} warnings; {end}",
        )
    if failures:
        raise typer.Exit(1)
