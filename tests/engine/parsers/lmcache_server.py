"""What the real `lmcache server` makes of its arguments: an oracle for this project's own commands.

    PYTHONPATH=WHEEL:SITE python lmcache_server.py < QUESTION > ANSWER

The multiprocess server gains and loses arguments from version to version, and some are JSON whose
fields nothing but the server knows. So the arguments are given to the server's own parser, and
then, as the server does before it starts anything, to the functions which check them and build its
configuration.

The question is `{"arguments": [...]}` with what follows `lmcache server`. The answer is one JSON
object with `version`, and `error` if the server refuses, or else `values`, the parsed arguments by
name, and `config`, what the server would be configured with. Of a JSON argument that is the only
place which tells whether a field was understood: most adapters of L2 storage ignore those that they
do not know.

This needs Python 3.11, an unpacked wheel of LMCache (0.4.3 or newer, older ones have no such
command), and behind it PyTorch and what else LMCache imports. It imports nothing of this project,
and no GPU is needed.
"""

# Linters run where none of the engine's packages is installed.
# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

from answering import answer_question, plain

#: By module, what turns the parsed arguments into a part of the configuration. Not every version
#: has all of them; which ones it calls is up to `ServerCommand.execute`.
_BUILDERS = (
    ("lmcache.v1.multiprocess.config", "parse_args_to_http_frontend_config"),
    ("lmcache.v1.multiprocess.config", "parse_args_to_mp_server_config"),
    ("lmcache.v1.distributed.config", "parse_args_to_config"),
    ("lmcache.v1.mp_observability.config", "parse_args_to_observability_config"),
    ("lmcache.v1.multiprocess.config", "parse_args_to_coordinator_config"),
)


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    from lmcache.cli.commands.server import ServerCommand

    parser = argparse.ArgumentParser(prog="lmcache")
    ServerCommand().register(parser.add_subparsers(dest="command"))
    return parser.parse_args(["server", *arguments])


def _build(namespace: argparse.Namespace) -> dict[str, Any]:
    config = {}
    for module, name in _BUILDERS:
        if build := getattr(importlib.import_module(module), name, None):
            config[name.removeprefix("parse_args_to_")] = plain(build(namespace))
    return config


def answer(question: Mapping[str, Any]) -> dict[str, Any]:
    result: dict[str, Any] = {"version": version("lmcache")}
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            namespace = _parse(question["arguments"])
        values = {key: value for key, value in vars(namespace).items() if key != "func"}
        config = _build(namespace)
    except SystemExit:
        result["error"] = complaint.getvalue().strip().rpartition("error: ")[2]
    except Exception as error:
        result["error"] = f"{type(error).__name__}: {error}"
    else:
        result |= {"values": plain(values), "config": config}
    return result


if __name__ == "__main__":
    answer_question(answer)
