"""The manager's database, asked as the manager would."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import KVCacheError
from .config_file import ConfigFile
from .loops import run
from .network import in_time, reason_of

MODULES = ("ai.backend.manager.config.bootstrap", "sqlalchemy.ext.asyncio")

_CORRECT = "correct [db] in manager.toml"

#: What the database's driver raises → what is wrong and what to do.
_PROBLEMS: Mapping[str, tuple[str, str]] = {
    "InvalidPasswordError": ("refuses the user or the password", _CORRECT),
    "InvalidAuthorizationSpecificationError": ("refuses the user or the password", _CORRECT),
    "InvalidCatalogNameError": ("has no database of the name in [db]", _CORRECT),
    "UndefinedTableError": (
        "has no table of slot types",
        "upgrade its schema as Backend.AI 26.4 needs it: `backend.ai mgr schema`",
    ),
    "BackendAISchemaValidationFailed": ("is described so that no manager would start", _CORRECT),
}


class DatabaseError(KVCacheError):
    """The database was not asked. The message holds nothing secret."""

    def __init__(self, text: str, remedy: str) -> None:
        super().__init__(text)
        self.remedy = remedy


def problem_of(error: BaseException) -> DatabaseError:
    """What is wrong, of what SQLAlchemy, the driver or the manager's configuration raised."""
    cause = getattr(error, "orig", None) or error
    # SQLAlchemy's own class around the driver's has the same name.
    for layer in (cause, cause.__cause__):
        if (known := _PROBLEMS.get(type(layer).__name__)) is not None:
            return DatabaseError(f"the manager's database {known[0]}", known[1])
    return DatabaseError(
        f"the manager's database cannot be asked: {reason_of(cause)}",
        f"start it, open the way to it, or {_CORRECT}",
    )


type Row = Mapping[str, Any]


async def _ask(file: ConfigFile, query: str, parameters: Mapping[str, Any]) -> list[Row]:
    import sqlalchemy as sa
    from ai.backend.manager.config.bootstrap import BootstrapConfig
    from sqlalchemy.ext.asyncio import create_async_engine

    config = await BootstrapConfig.load_from_file(file.path)
    engine = create_async_engine(config.db.sqlalchemy_url())
    try:
        async with in_time(), engine.connect() as connection:
            result = await connection.execute(sa.text(query), dict(parameters))
            return [dict(row) for row in result.mappings()]
    finally:
        await engine.dispose()


def ask(file: ConfigFile, query: str, **parameters: Any) -> Sequence[Row]:
    """What a query finds.

    Args:
        query: one that only reads.
        parameters: what its ``:names`` stand for.

    Raises:
        DatabaseError: it was not asked.
    """
    try:
        return run(_ask(file, query, parameters))
    except ImportError as e:
        raise DatabaseError(
            f"the manager's packages are not installed here ({e.name} is missing)",
            "run this with the Python of the manager",
        ) from e
    except Exception as e:
        raise problem_of(e) from e
