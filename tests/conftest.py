"""What every test shares: the fixtures folder, hypothesis profiles, and the part of the tests that `make test` runs."""

from __future__ import annotations

import importlib
import os
import pkgutil
import random
from collections import defaultdict
from pathlib import Path

import pytest
import tracekit
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).parents[1]
FIXTURES = ROOT / "fixtures"
SHARED = ROOT.parent / "shared"

ALL = os.environ.get("TRACEKIT_TESTS") == "all"
"""Whether every example, fuzz case and public capture is tested: ``make test-all``."""
CAPTURES_PER_TEST = 6
REPEATED = {
    "test_conformance",
    "test_both_forms",
    "test_nothing_leaks",
    "test_ops_of_kernels",
    "test_outputs",
    "test_redact",
}
"""Modules that do with every capture what other tests do with one."""


def examples(number: int) -> int:
    """Return how many examples of a property are tested: all, or the same quarter every time."""
    return number if ALL else number // 4


settings.register_profile(
    "ci", derandomize=True, deadline=None, max_examples=examples(160), suppress_health_check=[HealthCheck.too_slow]
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


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Select a fixed part of the public captures, and test volume without measuring coverage.

    Properties and tests of every capture repeat code that other tests reach; measuring it takes half of their time.
    The properties of ``tracekit/core`` are measured, as all of it must be covered. Every module is imported first,
    because what a test imports while coverage is paused would never be measured.
    """
    for module in pkgutil.walk_packages(tracekit.__path__, "tracekit."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    for item in items:
        is_property = getattr(getattr(item, "obj", None), "is_hypothesis_test", False) and "core" not in item.path.parts
        if item.get_closest_marker("corpus") or is_property or item.path.stem in REPEATED:
            item.add_marker("no_cover")
    if not ALL:
        left_out = _beyond_the_part(items)
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=list(left_out))


def _beyond_the_part(items: list[pytest.Item]) -> dict[pytest.Item, None]:
    """Return the items beyond the fixed part of each test that has an item per public capture."""
    by_test: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("corpus"):
            by_test[item.nodeid.partition("[")[0]].append(item)
    parts = {i for same in by_test.values() for i in random.Random(0).sample(same, min(len(same), CAPTURES_PER_TEST))}
    return {item: None for same in by_test.values() for item in same if item not in parts}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let ``--golden`` write the golden files anew."""
    parser.addoption("--golden", action="store_true", help="write fixtures/golden anew")
