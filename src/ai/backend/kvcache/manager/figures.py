"""The figures of running sessions, as the manager itself has them: from Prometheus."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

from ai.backend.logging import BraceStyleAdapter
from ai.backend.manager.clients.prometheus.client import PrometheusClient

from ..metrics.indicators import INDICATORS
from .presets import METRIC

log = BraceStyleAdapter(logging.getLogger(__spec__.name))

#: Who lists sessions sees them without figures then.
QUERY_TIMEOUT_SECONDS = 5.0

_KEYS = frozenset(indicator.key for indicator in INDICATORS)


def query_of(kernel_ids: Sequence[str]) -> str:
    """PromQL for the current figures of some kernels.

    An agent that changed its address leaves a second series of a kernel behind for some minutes, so
    they are not summed up.
    """
    return (
        f'max by (kernel_id, container_metric_name)({METRIC}{{container_metric_name=~"kvcache_.+",'
        f'value_type="current",kernel_id=~"{"|".join(kernel_ids)}"}})'
    )


async def figures_of(
    client: PrometheusClient, kernel_ids: Sequence[str]
) -> Mapping[str, Mapping[str, float]]:
    """Kernel id → figures by the keys of INDICATORS, by one query.

    Nothing where Prometheus does not answer, which the log says.

    Args:
        kernel_ids: UUIDs.
    """
    if not kernel_ids:
        return {}
    try:
        async with asyncio.timeout(QUERY_TIMEOUT_SECONDS):
            # Of the client's methods the one that runs a query as it is.
            answer = await client.preview_query_template(query_of(kernel_ids), "")
    except Exception as e:
        log.warning("figures of sessions cannot be asked for: {!r}", e)
        return {}
    figures: defaultdict[str, dict[str, float]] = defaultdict(dict)
    for series in answer.data.result:
        key, kernel_id = series.metric.container_metric_name, series.metric.kernel_id
        value = float(series.values[-1][1])
        if key in _KEYS and kernel_id is not None and math.isfinite(value):
            figures[kernel_id][key] = value
    return figures
