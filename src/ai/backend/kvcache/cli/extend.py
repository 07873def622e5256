"""Gives the client's commands that create sessions our flags.

They are added when such a command is about to be run. Whatever is missing, renamed or broken then,
the command is left as it was, and so are all others.
"""

from __future__ import annotations

import functools
import json
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import attrs
import click

from ..errors import KVCacheError
from .session_flags import FLAGS, KV_CACHE, Choice, Flag, Shape, as_id, choose, mount_to_add

type Said = Mapping[Flag, str]
type Arguments = MutableMapping[str, Any]

#: What all of our options begin with.
_PREFIX = KV_CACHE.name


class Carrier(ABC):
    """How a command takes what a session's environment and mounts are."""

    @property
    @abstractmethod
    def needs(self) -> frozenset[str]:
        """The command's own parameters."""

    @abstractmethod
    def carry(self, said: Said, arguments: Arguments) -> AbstractContextManager[None]:
        """Puts what the flags mean into the command's own arguments, for as long as it runs.

        Raises:
            KVCacheError: it cannot be used.
            click.ClickException: what it takes to know cannot be found out.
        """


@attrs.frozen
class Options(Carrier):
    """``--env`` and ``--mount``."""

    env: str = "env"
    mount: str = "mount"

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({self.env, self.mount})

    @contextmanager
    def carry(self, said: Said, arguments: Arguments) -> Iterator[None]:
        env: Sequence[str] = arguments[self.env]
        mounts: Sequence[str] = arguments[self.mount]
        choice = choose(said, dict(e.split("=", 1) for e in env if "=" in e))
        mount = mount_to_add(choice, _mounted(mounts))
        if mount is not None:
            _check_mount(mount, str(choice.folder))
            arguments[self.mount] = (*mounts, mount)
        added = (f"{name}={value}" for name, value in choice.environ.items())
        arguments[self.env] = (*env, *added)
        yield


def _parse_mounts(mounts: Sequence[str]) -> Mapping[str, str | None]:
    """Folder → where it is mounted, as the client understands ``--mount``.

    Raises:
        ValueError: it does not.
    """
    from ai.backend.client.cli.session.execute import prepare_mount_arg

    folders, targets, _ = prepare_mount_arg(mounts, escape=True)
    return {folder: targets.get(folder) for folder in folders}


def _mounted(mounts: Sequence[str]) -> Mapping[str, str | None]:
    try:
        return _parse_mounts(mounts)
    except ValueError as e:
        raise click.UsageError(f"--mount: {e}") from e


def _check_mount(mount: str, folder: str) -> None:
    try:
        _parse_mounts((mount,))
    except ValueError as e:
        raise click.UsageError(
            f"{KV_CACHE.name} {folder}: --mount of this client takes no such name, only letters, "
            "digits, _ and -, a letter first; rename the folder"
        ) from e


@attrs.frozen
class Document(Carrier):
    """A JSON document, as text or as ``@FILE``."""

    parameter: str
    shape: Shape

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({self.parameter})

    @contextmanager
    def carry(self, said: Said, arguments: Arguments) -> Iterator[None]:
        text = arguments[self.parameter]
        if text is None:
            raise click.UsageError(f"{_listed(said)}: there is no session to set it for yet")
        if text.startswith("@"):
            text = _read(Path(text[1:]))
        arguments[self.parameter] = _changed(text, self.shape, said)
        yield


class DocumentFile(Document):
    """The path of a JSON document."""

    @contextmanager
    def carry(self, said: Said, arguments: Arguments) -> Iterator[None]:
        changed = _changed(_read(Path(arguments[self.parameter])), self.shape, said)
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", suffix=".json") as file:
            file.write(changed)
            file.flush()
            arguments[self.parameter] = file.name
            yield


def _listed(said: Said) -> str:
    return ", ".join(flag.name for flag in said)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as e:
        raise click.UsageError(f"{path}: {e}") from e


def _changed(text: str, shape: Shape, said: Said) -> str:
    """The document with what the flags mean."""
    with _understood(said):
        document = json.loads(text)
        described = shape.described(document)
        environ = shape.environ_of(described)
    choice = choose(said, environ)
    folder_id = _folder_id(choice)
    with _understood(said):
        shape.add(described, choice, folder_id)
    return json.dumps(document)


@contextmanager
def _understood(said: Said) -> Iterator[None]:
    """Turns what a document of any other shape leads to into words."""
    try:
        yield
    except (AttributeError, LookupError, TypeError, ValueError, RecursionError) as e:
        raise click.UsageError(
            f"{_listed(said)}: the JSON document is none that this command takes "
            f"({type(e).__name__}: {e})"
        ) from e


def _folder_id(choice: Choice) -> str | None:
    """The ID of the folder to mount, from the manager where the user says a name."""
    if choice.folder is None:
        return None
    if (folder_id := as_id(choice.folder)) is not None:
        return folder_id
    from .manager import connection

    try:
        with connection() as api:
            return str(api.VFolder(choice.folder).get_id())
    except click.ClickException as e:
        raise click.ClickException(
            f"{KV_CACHE.name} {choice.folder}: {e.message}; the folder's ID is taken too"
        ) from e


_V1_ENVIRON = ("model_runtime_config", "environ")
_V1_MOUNTS = {"mounts": "extra_mounts", "target": "mount_destination"}

#: The words of a command → how it takes what the flags mean.
CARRIERS: Mapping[tuple[str, ...], Carrier] = {
    ("create",): Options(),
    ("session", "create"): Options(),
    ("service", "create"): Options(),
    ("deployment", "create"): DocumentFile(
        "config_file", Shape(("initial_revision",), _V1_ENVIRON, False, **_V1_MOUNTS)
    ),
    ("deployment", "revision", "add"): DocumentFile(
        "config_file", Shape(("revision",), _V1_ENVIRON, False, **_V1_MOUNTS)
    ),
    ("v2", "deployment", "create"): Document(
        "initial_revision", Shape((), _V1_ENVIRON, True, **_V1_MOUNTS)
    ),
    ("v2", "deployment", "revision", "add"): Document(
        "config", Shape((), _V1_ENVIRON, True, **_V1_MOUNTS)
    ),
    ("v2", "session", "enqueue"): Document(
        "payload", Shape((), ("environ",), False, mounts="mounts", target="mount_path")
    ),
}


def add_session_flags() -> None:
    """Has ``backend.ai`` give its commands our flags, once in the life of a process.

    Raises:
        ImportError: this is not an environment with ``backend.ai``.
    """
    from ai.backend.cli.main import main

    resolve = main.resolve_command

    @functools.wraps(resolve)
    def resolve_command(ctx: click.Context, args: list[str]) -> Any:
        found = resolve(ctx, args)
        try:
            if found[1] is not None:
                _extend_below(found[1], ctx, args[1:])
        except Exception as e:
            # Only those who ask for the flags need to know.
            if any(word.startswith(_PREFIX) for word in args):
                click.echo(f"{_PREFIX} cannot be used with this client: {e}", err=True)
        return found

    main.resolve_command = resolve_command  # type: ignore[method-assign]


def _extend_below(head: click.Command, ctx: click.Context, words: Sequence[str]) -> None:
    """Extends the commands of a group that may be meant by the words behind it."""
    for path, carrier in CARRIERS.items():
        # Groups are read when they are needed, so the others stay unread.
        if path[0] == head.name and set(path[1:]) <= set(words):
            command = _find(head, ctx, path[1:])
            if command is not None:
                extend(command, carrier)


def _find(head: click.Command, ctx: click.Context, words: Sequence[str]) -> click.Command | None:
    command: click.Command | None = head
    for word in words:
        if not isinstance(command, click.Group):
            return None
        command = command.get_command(ctx, word)
    return command


def extend(command: click.Command, carrier: Carrier) -> None:
    """Gives one command our flags, unless it has one of their names already.

    Raises:
        LookupError: it lacks what the flags become.
    """
    taken = {name for parameter in command.params for name in (*parameter.opts, parameter.name)}
    if taken & {name for flag in FLAGS for name in (flag.name, flag.parameter)}:
        return
    callback = command.callback
    if callback is None or not carrier.needs <= taken:
        raise LookupError(f"{command.name} does not take {', '.join(sorted(carrier.needs))}")
    options = [_option(flag) for flag in FLAGS]

    @functools.wraps(callback)
    def with_flags(*args: Any, **arguments: Any) -> Any:
        values = {flag: arguments.pop(flag.parameter, None) for flag in FLAGS}
        said = {flag: value for flag, value in values.items() if value is not None}
        if not said:
            return callback(*args, **arguments)
        try:
            with carrier.carry(said, arguments):
                return callback(*args, **arguments)
        except KVCacheError as e:
            raise click.UsageError(str(e)) from e

    command.callback = with_flags
    command.params.extend(options)


def _option(flag: Flag) -> click.Option:
    kind = click.Choice(flag.choices) if flag.choices else click.STRING
    return click.Option([flag.name], type=kind, metavar=flag.metavar, help=flag.help)
