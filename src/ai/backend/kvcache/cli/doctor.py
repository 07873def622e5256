"""``doctor``: what this host lacks for KV caches."""

from __future__ import annotations

import io
import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from ..doctor.check import Result, Role, Status, repair, run_checks
from ..doctor.checks import checks_for
from ..doctor.host import Host, this_host
from .table import table

SOMETHING_IS_MISSING = 1

#: Failures catch the eye.
_SHOWN: Mapping[Status, str] = {status: str(status) for status in Status} | {
    Status.FAILED: "FAILED"
}
_COLORS: Mapping[Status, str] = {
    Status.OK: "green",
    Status.WARNING: "yellow",
    Status.FAILED: "red",
    Status.SKIPPED: "bright_black",
}


def _run(host: Host) -> list[Result]:
    """All checks' results in their order, with a bar on the terminal meanwhile."""
    checks = checks_for(host)
    results: dict[str, Result] = {}
    # Elsewhere the bar's label would be printed alone.
    file = sys.stderr if sys.stderr.isatty() else io.StringIO()
    with click.progressbar(
        length=len(checks),
        label="Looking",
        file=file,
        show_eta=False,
        show_pos=True,
        item_show_func=_waits_for,
    ) as bar:
        for result in run_checks(checks, host):
            results[result.check.name] = result
            bar.update(1, [check.name for check in checks if check.name not in results])
    return [results[check.name] for check in checks]


def _waits_for(names: Sequence[str] | None) -> str | None:
    return f"waits for {', '.join(names[:3])}" if names else None


def _as_json(host: Host, results: Sequence[Result]) -> str:
    def one(result: Result) -> dict[str, Any]:
        finding = result.finding
        return {
            "check": result.check.name,
            "status": str(finding.status),
            "text": finding.text,
            "remedy": finding.remedy,
            "can_be_fixed": finding.repair is not None,
            "fixed": result.repaired,
            "not_fixed": result.not_repaired,
        }

    answer = {
        "roles": sorted(host.roles),
        "ok": not _is_missing(results),
        "checks": [one(result) for result in results],
    }
    return json.dumps(answer, indent=2)


def _is_missing(results: Sequence[Result]) -> bool:
    return any(result.finding.status is Status.FAILED for result in results)


def _lines(result: Result) -> list[tuple[str, str, str]]:
    finding = result.finding
    lines = [(_SHOWN[finding.status], result.check.name, finding.text)]
    if result.repaired:
        lines.append(("", "", f"fixed: {result.repaired}"))
    if finding.remedy:
        lines.append(("", "", f"to fix: {finding.remedy}"))
    if result.not_repaired:
        lines.append(("", "", f"not fixed: {result.not_repaired}"))
    return lines


def _summary(results: Sequence[Result], fix: bool) -> str:
    counts = Counter(result.finding.status for result in results)
    parts = [f"{counts[status]} {_SHOWN[status]}" for status in Status if counts[status]]
    can = [result.check.name for result in results if result.finding.repair is not None]
    hint = f"; --fix puts right: {', '.join(can)}" if can and not fix else ""
    return f"{', '.join(parts)}{hint}"


def _skipped_lines(results: Sequence[Result]) -> list[str]:
    """One line for each reason: many checks have the same."""
    by_reason: dict[str, list[str]] = {}
    for result in results:
        if result.finding.status is Status.SKIPPED:
            by_reason.setdefault(result.finding.text, []).append(result.check.name)
    word = _SHOWN[Status.SKIPPED]
    return [f"{word} {', '.join(names)}: {reason}" for reason, names in by_reason.items()]


def _as_text(host: Host, results: Sequence[Result], fix: bool) -> str:
    looked = [result for result in results if result.finding.status is not Status.SKIPPED]
    rows = [line for result in looked for line in _lines(result)]
    lines = [*table(rows, text=(0, 1, 2)).splitlines(), "", *_skipped_lines(results)]
    head = f"{' and '.join(sorted(host.roles))}, {host.reason}"
    return "\n".join((head, "", *map(_colored, lines), "", _summary(results, fix)))


def _colored(line: str) -> str:
    """With the first word in its color, which click takes out where there is no terminal."""
    for status, word in _SHOWN.items():
        if line.startswith(f"{word} "):
            return click.style(word, fg=_COLORS[status]) + line[len(word) :]
    return line


@click.command()
@click.option(
    "--role",
    "roles",
    type=click.Choice([str(role) for role in Role]),
    multiple=True,
    help="What this host is. [default: as its files and packages say]",
)
@click.option(
    "--config",
    "configs",
    type=click.Path(path_type=Path),
    multiple=True,
    help="agent.toml or manager.toml. [default: where Backend.AI looks]",
)
@click.option(
    "--folder",
    metavar="PATH|PROXY:VOLUME",
    help="Tries a KV folder, or the volume that it lies in, with a small file.",
)
@click.option("--fix", is_flag=True, help="Puts right what is safe to.")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def doctor(
    roles: tuple[str, ...],
    configs: tuple[Path, ...],
    folder: str | None,
    fix: bool,
    as_json: bool,
) -> None:
    """Say what this host lacks for KV caches, and how to put it right.

    Run it on agents, on the manager's host and where the client is, each with the Python that
    Backend.AI runs with there. Where several roles are one host's, all are looked at.

    --fix adds the slot's type to the manager's database, and puts allocation-order in agent.toml
    right, with a copy of the file beside it. Nothing else is changed.

    Ends with 0 where nothing that is needed is missing, with 1 where something is, with 2 where
    the command is not understood.
    """
    if folder is not None and not (folder.startswith("/") or ":" in folder):
        raise click.UsageError(f"--folder {folder}: neither a whole path nor PROXY:VOLUME")
    host = this_host([Role(role) for role in roles], configs, folder)
    results = _run(host)
    if fix:
        results = [repair(result, host) for result in results]
    click.echo(_as_json(host, results) if as_json else _as_text(host, results, fix))
    if _is_missing(results):
        # Not ctx.exit(), whose status the backend.ai command loses.
        sys.exit(SOMETHING_IS_MISSING)
