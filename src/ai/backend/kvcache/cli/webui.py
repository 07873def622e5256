"""``webui``: the page's stub on a web server."""

from __future__ import annotations

from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

import click

NAME = "kv-cache"

_DIRECTORY = click.Path(exists=True, file_okay=False, path_type=Path)


@click.group()
def webui() -> None:
    """The page "KV Cache" of the WebUI. Run on the host of the web server."""


@webui.command()
@click.argument("static_path", type=_DIRECTORY, required=False)
def install(static_path: Path | None) -> None:
    """Puts the page's stub into STATIC_PATH/dist/plugins.

    STATIC_PATH is what the web server's [service] static_path says; without it, the folder of the
    web server that is installed in this environment. The page itself comes from the manager.
    """
    target = (static_path or _installed()) / "dist" / "plugins" / f"{NAME}.js"
    content = files("ai.backend.kvcache").joinpath("webui", target.name).read_bytes()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    except OSError as e:
        raise click.ClickException(f"{target} cannot be written: {e.strerror}") from e
    click.echo(f"{target} is written.")
    click.echo(
        f'The web server\'s configuration has to name it: [plugin] page = "{NAME}", after other '
        "pages and a comma; restart the web server where it did not yet."
    )


def _installed() -> Path:
    """The folder that the web server of this environment serves by itself."""
    try:
        spec = find_spec("ai.backend.web")
    except ImportError:
        spec = None
    for package in (spec and spec.submodule_search_locations) or ():
        if (static := Path(package) / "static").is_dir():
            return static
    raise click.UsageError(
        "no web server is installed in this environment; name the folder that its [service] "
        "static_path names"
    )
