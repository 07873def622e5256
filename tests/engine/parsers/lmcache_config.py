"""What the real LMCache makes of a configuration: an oracle for this project's own settings.

    PYTHONPATH=WHEEL:SITE python lmcache_config.py < QUESTION > ANSWER

LMCache renames options from version to version, ignores names that it does not know, and turns
values that it cannot convert into nothing, all of that without an error. So what a version makes of
a configuration is asked of that version's own loader, the one that its connector for vLLM calls.

The question is `{"environment": {...}, "file": YAML text or null}`. Of this process's own
environment nothing that begins with `LMCACHE_` counts, nor does `LMCACHE_CONFIG_FILE` in the
question: with a `file`, this is where that lies. The answer is one JSON object. It has `error` if
the loader raised, or else `values`: every option that this version knows, and what it became. Both
have `version`, `warnings`, which are the messages that were logged as warnings or worse, and
`unknown`: the keys of the file, and the names of variables, that this version does not know. A
variable is known if it belongs to an option, or if any module of the package mentions its name.

This needs Python 3.11, an unpacked wheel of LMCache, and behind it PyTorch and what else LMCache
imports. It imports nothing of this project. An old wheel will do with a newer PyTorch and without
CUDA: nothing compiled is needed to load a configuration, and none of it is replaced here.
"""

# Linters run where none of the engine's packages is installed.
# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import logging
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from answering import answer_question

_PREFIX = "LMCACHE_"
_FILE_VARIABLE = "LMCACHE_CONFIG_FILE"
_UNKNOWN_KEY = re.compile(r"Unknown configuration key: (?P<key>.+) \(source: (?P<source>.+)\)")


def _record_warnings() -> list[str]:
    """The messages of level WARNING or above, as they come in.

    LMCache's loggers do not propagate, and drop the handlers that they find.
    """
    messages: list[str] = []
    make_record = logging.getLogRecordFactory()

    def record(*arguments: Any, **keywords: Any) -> logging.LogRecord:
        made = make_record(*arguments, **keywords)
        if made.levelno >= logging.WARNING:
            messages.append(made.getMessage())
        return made

    logging.setLogRecordFactory(record)
    return messages


def _set_environment(environment: Mapping[str, str], file: str | None, folder: Path) -> None:
    for name in [name for name in os.environ if name.startswith(_PREFIX)]:
        del os.environ[name]
    os.environ.update(environment)
    os.environ.pop(_FILE_VARIABLE, None)
    # Below this level no warning could be recorded.
    os.environ.pop("LMCACHE_LOG_LEVEL", None)
    if file is not None:
        path = folder / "lmcache.yaml"
        path.write_text(file)
        os.environ[_FILE_VARIABLE] = str(path)


def _unread_variables(environment: Mapping[str, str], options: Sequence[str]) -> list[str]:
    import lmcache

    of_options = {_PREFIX + option.upper() for option in options}
    names = {
        name for name in environment if name.startswith(_PREFIX) and name not in of_options
    } - {_FILE_VARIABLE}
    if names:
        for path in Path(lmcache.__file__).parent.rglob("*.py"):
            source = path.read_text(errors="replace")
            names = {name for name in names if not re.search(rf"\b{name}\b", source)}
    return sorted(names)


def _unknown_keys(messages: Sequence[str]) -> list[str]:
    """What the loader complained about, a variable under the name that it has."""
    keys = set()
    for message in messages:
        if match := _UNKNOWN_KEY.search(message):
            of_variable = match["source"] == "environment variables"
            keys.add(_PREFIX + match["key"].upper() if of_variable else match["key"])
    return sorted(keys)


def answer(question: Mapping[str, Any]) -> dict[str, Any]:
    environment: dict[str, str] = question.get("environment") or {}
    messages = _record_warnings()
    result: dict[str, Any] = {"version": version("lmcache")}
    with tempfile.TemporaryDirectory() as folder:
        _set_environment(environment, question.get("file"), Path(folder))
        from lmcache.integration.vllm.utils import lmcache_get_or_create_config
        from lmcache.v1.config import _CONFIG_DEFINITIONS

        options = list(_CONFIG_DEFINITIONS)
        try:
            config = lmcache_get_or_create_config()
        except Exception as error:
            result["error"] = f"{type(error).__name__}: {error}"
        else:
            result["values"] = {option: getattr(config, option) for option in options}
    result["unknown"] = sorted({
        *_unknown_keys(messages),
        *_unread_variables(environment, options),
    })
    result["warnings"] = messages
    return result


if __name__ == "__main__":
    answer_question(answer)
