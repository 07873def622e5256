"""``policy``: who gets KV cache, in which folder, and how."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TextIO

import click
import yaml

from ..errors import KVCacheError, PolicyError
from ..policy.edit import Document, Level, levels_of, with_settings, without_settings
from ..policy.effective import Effective, effective_settings, value_text
from ..policy.place import Place, is_provisioned, parse_host, provisioned_place
from ..policy.policy import PROJECTS, check_policy, is_project_id
from .manager import connection
from .names import Names, read_names
from .policy_store import change, read_document, replace
from .provision import Outcome, look, make, places, read_vfolders, refuse_move, remove
from .table import table
from .types import InputError

SOMETHING_WAS_REFUSED = 1

_PROJECT = click.option("--project", metavar="ID|NAME", help="For one project.")
_RESOURCE_GROUP = click.option("--resource-group", metavar="NAME", help="For one resource group.")


@contextmanager
def _checked() -> Iterator[None]:
    """What cannot be used ends the command with its reason."""
    try:
        yield
    except KVCacheError as e:
        raise InputError(e) from e


@click.group()
def policy() -> None:
    """Who gets KV cache, in which folder, and how. For superadmins.

    Settings are said for the site, for a resource group or for a project; the narrower one wins.
    Sessions that start from then on follow them.
    """


def _row(setting: Effective, names: Names) -> tuple[str, str, str]:
    comes_from = "default" if setting.level is None else names.called(setting.level)
    # A folder's place is long, so values come last.
    return setting.name, comes_from, setting.value or "-"


def _as_table(settings: Sequence[Effective], names: Names) -> str:
    rows = [("setting", "from", "value"), *(_row(setting, names) for setting in settings)]
    return table(rows, text=(0, 1, 2))


def _all(document: Document) -> list[Effective]:
    """What applies to the site, then what each resource group and project says."""
    narrower = [
        Effective(name, value_text(value), level)
        for level in levels_of(document)
        if level.kind
        for name, value in level.said_in(document).items()
    ]
    return [*effective_settings(document), *narrower]


def _effective_json(
    settings: Sequence[Effective], project: str | None, resource_group: str | None
) -> str:
    answer = {
        "project": project,
        "resource_group": resource_group,
        "settings": {
            s.name: {"value": s.value, "from": "default" if s.level is None else str(s.level)}
            for s in settings
        },
    }
    return json.dumps(answer, indent=2)


@policy.command()
@click.option("--json", "as_json", is_flag=True, help="For programs: the document as it is stored.")
@click.option("--effective", is_flag=True, help="What applies to sessions, each setting once.")
@_PROJECT
@_RESOURCE_GROUP
def show(as_json: bool, effective: bool, project: str | None, resource_group: str | None) -> None:
    """Show the policy, and where each setting comes from.

    With --effective, what applies to the sessions of a project, a resource group, or a project in a
    resource group.
    """
    if not effective and (project or resource_group):
        raise click.UsageError("--project and --resource-group go with --effective")
    with connection() as api, _checked():
        document = read_document(api)
        if as_json and not effective:
            click.echo(json.dumps(document, indent=2))
            return
        check_policy(document)
        names = read_names(api)
        project_id = names.project(project).id if project else None
        resource_group = names.resource_group(resource_group) if resource_group else None
    if not effective:
        click.echo(_as_table(_all(document), names))
        return
    settings = effective_settings(document, resource_group, project_id)
    if as_json:
        click.echo(_effective_json(settings, project_id, resource_group))
    else:
        click.echo(_as_table(settings, names))


def _read_file(file: TextIO) -> Document:
    """A whole policy.

    Raises:
        PolicyError: the file holds none.
    """
    try:
        text = file.read()
        # In YAML "off" is a truth value, and 0.5 a number; here both are what one would type.
        document = (
            json.loads(text) if file.name.endswith(".json") else yaml.load(text, yaml.BaseLoader)
        )
    except (ValueError, RecursionError, yaml.YAMLError) as e:
        raise PolicyError(f"{file.name} is no policy: {e}") from e
    if not isinstance(document, dict):
        raise PolicyError(f"{file.name} is no policy: it maps no names to values")
    return document


def _one(api: Any, key: str, value: str, project: str | None, resource_group: str | None) -> None:
    names = read_names(api)
    level = names.level(project, resource_group)
    is_new = change(api, lambda document: with_settings(document, level, {key: value}))
    done = "is now" if is_new else "was already"
    click.echo(f"{key} {done} {value} for {names.called(level)}")


@policy.command("set")
@click.argument("key", required=False)
@click.argument("value", required=False)
@_PROJECT
@_RESOURCE_GROUP
@click.option(
    "--file",
    type=click.File("r", encoding="utf-8"),
    help="A whole policy as JSON or YAML, in the place of the one that is there. -: standard input",
)
def set_policy(
    key: str | None,
    value: str | None,
    project: str | None,
    resource_group: str | None,
    file: TextIO | None,
) -> None:
    """Set one setting, or the whole policy.

    KEY is a setting's name, as `show` lists them. What cannot be used is refused, and then nothing
    is written.
    """
    if file is None and value is None:
        raise click.UsageError("say KEY and VALUE, or --file with a whole policy")
    if file is not None and (key or project or resource_group):
        raise click.UsageError("--file is a whole policy, and goes with nothing else")
    with connection() as api, _checked():
        if file is not None:
            replace(api, _read_file(file))
            click.echo(f"the policy is now that of {file.name}")
        else:
            _one(api, str(key), str(value), project, resource_group)


@policy.command()
@click.argument("keys", metavar="KEY...", nargs=-1, required=True)
@_PROJECT
@_RESOURCE_GROUP
def unset(keys: tuple[str, ...], project: str | None, resource_group: str | None) -> None:
    """Say nothing of settings any more, so that a wider level or the default applies."""
    with connection() as api, _checked():
        names = read_names(api)
        level = names.level(project, resource_group, gone=levels_of(read_document(api)))
        is_new = change(api, lambda document: without_settings(document, level, keys))
    done = "not set any more" if is_new else "was not set"
    click.echo(f"{', '.join(keys)}: {done} for {names.called(level)}")


def _storage_host(_: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Checks a storage host for an option."""
    if value is not None:
        try:
            parse_host(value)
        except ValueError as e:
            raise click.UsageError(f"{parameter.opts[0]} {value}: {e}") from e
    return value


def _chosen(names: Names, texts: Sequence[str], everyone: bool) -> list[Any]:
    if everyone == bool(texts):
        raise click.UsageError("say which projects, or --all")
    if everyone:
        return [p for p in names.projects if p.is_active and p.is_general]
    return list(dict.fromkeys(names.project(text) for text in texts))


def _name_in_policy(api: Any, outcomes: Sequence[Outcome]) -> str:
    wanted = places(outcomes)

    def named(document: Document) -> Document:
        for project, place in wanted.items():
            document = with_settings(document, Level(PROJECTS, project), {"folder": place})
        return document

    return "names them now" if change(api, named) else "named them already"


@policy.command()
@click.argument("projects", metavar="[PROJECT]...", nargs=-1)
@click.option("--all", "everyone", is_flag=True, help="All that are active, without model stores.")
@click.option(
    "--storage-host",
    metavar="PROXY:VOLUME",
    callback=_storage_host,
    help="Where new folders are made. [default: as the policy says, else the manager's default]",
)
@click.option("--dry-run", is_flag=True, help="Only say what would be made.")
@click.option("--yes", is_flag=True, help="Also replace folders that others than agents can reach.")
def provision(
    projects: tuple[str, ...], everyone: bool, storage_host: str | None, dry_run: bool, yes: bool
) -> None:
    """Give projects a KV folder, and name it in the policy.

    PROJECT is an id or a name. The folder is no VFolder of anybody's: neither members nor admins of
    projects and domains see it, and only agents read and write in it, for sessions. A project that
    has such a folder keeps it, so this may be run again at any time, after an interruption too.

    Where the policy names a VFolder for a project, as earlier versions made it, those who reach the
    VFolder can read and change what others' sessions keep there. With --yes such a project gets a
    folder of the new kind. It starts empty; the VFolder stays as it is, and sessions that run keep
    it.

    Ends with 1 where a project was refused.
    """
    outcomes: list[Outcome] = []
    with connection() as api, _checked():
        names = read_names(api)
        chosen = _chosen(names, projects, everyone)
        current = check_policy(read_document(api))
        vfolders = read_vfolders(api)
        for number, project in enumerate(chosen, 1):
            needed = look(project, current, vfolders, storage_host)
            head = f"[{number}/{len(chosen)}] {project.name}: "
            if dry_run:
                click.echo(head + needed.text)
                continue
            is_agreed = needed.instead_of is None or yes
            outcomes.append(make(api, needed) if is_agreed else refuse_move(needed))
            click.echo(head + outcomes[-1].text)
        if places(outcomes):
            click.echo(f"The policy {_name_in_policy(api, outcomes)}.")
    if any(outcome.place is None for outcome in outcomes):
        # Not ctx.exit(), whose status the backend.ai command loses.
        sys.exit(SOMETHING_WAS_REFUSED)


@policy.command()
@click.argument("project", metavar="PROJECT")
@click.option(
    "--storage-host",
    metavar="PROXY:VOLUME",
    callback=_storage_host,
    help="Where the folder is, if the policy does not name it any more.",
)
@click.option("--yes", is_flag=True, help="Do not ask.")
def unprovision(project: str, storage_host: str | None, yes: bool) -> None:
    """Remove a project's KV folder, with all that lies in it.

    PROJECT is an id or a name. A project that is gone is named by its id; --storage-host is needed
    where the policy does not name the project any more either. The policy does not name the folder
    afterwards. Refused while sessions of the project run with KV cache.
    """
    with connection() as api, _checked():
        document = read_document(api)
        gone = [*levels_of(document)]
        if storage_host is not None and is_project_id(project):
            gone.append(Level(PROJECTS, project))
        level = read_names(api).level(project, None, gone=gone)
        named: Place | None = check_policy(document).projects.get(level.name, {}).get("folder")
        if storage_host is not None:
            host = parse_host(storage_host)
        elif named is not None and is_provisioned(named, level.name):
            host = named.host
        else:
            raise click.UsageError(
                "the policy names no provisioned folder for the project; say with --storage-host "
                "where its folder is"
            )
        place = provisioned_place(host, level.name)
        if not yes:
            click.confirm(f"Remove {place} with all that lies in it?", abort=True)
        if place == named:
            change(api, lambda document: without_settings(document, level, ["folder"]))
            click.echo(f"{project}: the policy does not name its folder any more")
        click.echo(f"{project}: {remove(api, project, level.name, place)}")
