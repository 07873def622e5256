from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Timing says nothing on a machine that runs a whole cluster beside the tests.
settings.register_profile(
    "suite", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
settings.load_profile("suite")

DATA = Path(__file__).parent / "data"


@pytest.fixture
def data() -> Path:
    """Files captured from real models and engines."""
    return DATA
