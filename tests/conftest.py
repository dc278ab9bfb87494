"""What every test shares: the fixtures folder and hypothesis profiles."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).parents[1]
FIXTURES = ROOT / "fixtures"
SHARED = ROOT.parent / "shared"

settings.register_profile(
    "ci", derandomize=True, deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "short", derandomize=True, deadline=None, max_examples=15, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("long", deadline=None, max_examples=3000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def captures() -> list[Path]:
    """The real captures, each a SQLite export."""
    return sorted(FIXTURES.glob("*.sqlite"))


@pytest.fixture(params=captures(), ids=lambda p: p.stem)
def capture(request: pytest.FixtureRequest) -> Path:
    """Each real capture in turn."""
    path: Path = request.param
    return path


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let ``--golden`` write the golden files anew."""
    parser.addoption("--golden", action="store_true", help="write fixtures/golden anew")
