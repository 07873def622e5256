"""The route at which anybody asks what sessions of a model would get."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

import trafaret as t
from ai.backend.manager.api.rest.middleware.auth import auth_required
from ai.backend.manager.errors.common import ServiceUnavailable
from aiohttp import web

from ..errors import KVCacheError, SizeError
from ..model.catalog import find_in_catalog
from ..model.source import ModelSource
from ..plan.ask import sizing_request
from ..plan.sizing import size
from ..sizes import MAX_BYTES, parse_size
from .body import read_body
from .errors import InvalidRequestError
from .services import PLANNER

#: A plan takes milliseconds; those who ask at the same time wait for each other.
PLAN_TIMEOUT_SECONDS = 10.0

#: No model's, GPU's or context's count is larger.
MAX_COUNT = 2**31 - 1

#: Longer than any name or version.
_MAX_TEXT = 256


def _whole(highest: int) -> Callable[[Any], int]:
    """A check for counts. Trafaret's own lets texts and booleans through."""

    def check(value: Any) -> int:
        is_whole = type(value) is int or (type(value) is float and value.is_integer())
        if not is_whole or not 1 <= value <= highest:
            raise t.DataError(f"is not a whole number from 1 to {highest}", value=value)
        return int(value)

    return check


def _size(value: Any) -> int:
    if not isinstance(value, str):
        return _whole(MAX_BYTES)(value)
    try:
        return parse_size(value)
    except SizeError as e:
        raise t.DataError(str(e), value=value) from e


def _decimal(value: Any) -> Decimal:
    if type(value) not in (int, float, str):
        raise t.DataError("is not a number", value=value)
    try:
        # By its text: a float's own value has digits that nobody wrote.
        number = Decimal(str(value))
    except (InvalidOperation, ValueError):
        number = Decimal("NaN")
    if not number.is_finite():
        raise t.DataError("is not a number", value=value)
    return number


def _share(value: Any) -> Decimal:
    share = _decimal(value)
    if not 0 < share <= 1:
        raise t.DataError("is not above 0 and up to 1", value=value)
    return share


def _gpus(value: Any) -> Decimal:
    gpus = _decimal(value)
    if not 0 < gpus <= MAX_COUNT or (gpus > 1 and gpus % 1):
        raise t.DataError("is neither a number of GPUs nor a part of one", value=value)
    return gpus


_COUNT = _whole(MAX_COUNT)
_NAME = t.String(max_length=_MAX_TEXT)

#: Named as the command's options are.
_ASKED = t.Dict({
    t.Key("model"): _NAME | t.Mapping(t.String(allow_blank=True), t.Any),
    **{
        t.Key(name, optional=True): check
        for name, check in {
            "gpus": _gpus,
            "gpu_memory": _size,
            "tensor_parallel": _COUNT,
            "pipeline_parallel": _COUNT,
            "decode_context_parallel": _COUNT,
            "gpu_memory_utilization": _share,
            "pin_utilization": t.Bool,
            "max_model_len": _COUNT,
            "kv_cache_dtype": _NAME,
            "weights": _size,
            "overhead": _size,
            "concurrent_transfers": _whole(64),
            "context": _COUNT,
            "chunk_size": _whole(2**20),
            "lmcache_version": _NAME,
            "vllm_version": _NAME,
        }.items()
    },
})


def _model(asked: str | Mapping[str, Any]) -> ModelSource:
    """A model of the catalog, or one that is described. Never a path: it would be the manager's."""
    if isinstance(asked, str):
        known = find_in_catalog(asked)
        return ModelSource(known.name, known.config, f"{known.name} in the catalog", known.source)
    return ModelSource("config.json", asked, "config.json", "the request")


def plan_for(asked: Mapping[str, Any]) -> dict[str, Any]:
    """What ``backend.ai kvcache plan --format json`` prints.

    Args:
        asked: checked.

    Raises:
        KVCacheError: the model is not understood, or what was asked for contradicts itself.
    """
    options = {name: value for name, value in asked.items() if name != "model"}
    return size(sizing_request(_model(asked["model"]), **options)).to_json()


@auth_required
async def make_plan(request: web.Request) -> web.Response:
    """The plan; one that says no is an answer too."""
    asked = await read_body(request, _ASKED)
    try:
        async with asyncio.timeout(PLAN_TIMEOUT_SECONDS):
            loop = asyncio.get_running_loop()
            plan = await loop.run_in_executor(request.app[PLANNER], plan_for, asked)
    except KVCacheError as e:
        raise InvalidRequestError(str(e)) from e
    except TimeoutError as e:
        raise ServiceUnavailable("others are waiting for their plans; ask again") from e
    return web.json_response(plan)
