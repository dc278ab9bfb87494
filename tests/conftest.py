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
PUBLIC_CAPTURES = 3
"""Number of public captures that each test reads in ``make test``."""
FIXTURES_PER_TEST = 6
"""Minimum number of fixtures that each test reads in ``make test``, if it has that many. It reads half of them."""
NOT_MEASURED = {
    *("cli/test_convert", "cli/test_correlate", "cli/test_main", "cli/test_outputs", "cli/test_printing"),
    *("cli/test_redact", "core/test_advise_figures", "core/test_containment", "core/test_groups"),
    *("core/test_trees", "exporters/test_chrome_trace", "exporters/test_perfetto", "exporters/test_tfevents"),
    *("readers/test_changing_files", "readers/test_costs", "readers/test_dlprof_db"),
    *("readers/test_kineto_round_trip", "readers/test_ncu_csv", "readers/test_ncu_parts"),
    *("readers/test_ncu_rep_fuzz", "readers/test_nsys_folders", "readers/test_nsys_rep_fuzz"),
    *("readers/test_nsys_sqlite", "readers/test_nsys_versions", "readers/test_pages", "readers/test_redaction"),
    *("readers/test_special_files", "readers/test_tfevents_fixtures"),
    *("test_both_forms", "test_conformance", "test_every_format", "test_forks", "test_many_texts"),
    *("test_nothing_leaks", "test_ops_of_kernels", "test_pickling", "test_plan", "test_public_api"),
    *("test_redact", "test_schemas", "test_support"),
}
"""Modules whose tests reach almost no lines that other tests do not reach, so that their coverage is not measured."""


def examples(number: int) -> int:
    """Return how many examples of a property are tested: all, or the same eighth every time."""
    return number if ALL else number // 8


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
    """Select a fixed part of the captures of each test, and test volume without measuring coverage.

    Measuring takes a third of the time of a test. The properties of ``tracekit/core`` are measured, as all of it must
    be covered. Every module is imported first, because what a test imports while coverage is paused would never be
    measured.
    """
    for module in pkgutil.walk_packages(tracekit.__path__, "tracekit."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    for item in items:
        is_property = getattr(getattr(item, "obj", None), "is_hypothesis_test", False) and "core" not in item.path.parts
        if item.get_closest_marker("corpus") or is_property or _module(item) in NOT_MEASURED:
            item.add_marker("no_cover")
    if not ALL:
        selected = _selected(items)
        config.hook.pytest_deselected(items=[item for item in items if item not in selected])
        items[:] = [item for item in items if item in selected]


def _selected(items: list[pytest.Item]) -> set[pytest.Item]:
    """Return the tests that ``make test`` runs: for each test of many captures, a part that depends on its name only.

    Tests of ``tracekit/core`` run with all fixtures, because together they must cover all of it.
    """
    by_test: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        by_test[item.nodeid.partition("[")[0]].append(item)
    selected: set[pytest.Item] = set()
    for name, same in by_test.items():
        if same[0].get_closest_marker("corpus"):
            number = PUBLIC_CAPTURES
        elif "core" not in same[0].path.parts and all(map(_reads_fixture, same)):
            number = max(FIXTURES_PER_TEST, len(same) // 2)
        else:
            number = len(same)
        selected.update(random.Random(name).sample(same, min(len(same), number)))
    return selected


def _module(item: pytest.Item) -> str:
    return item.path.relative_to(ROOT / "tests").with_suffix("").as_posix()


def _reads_fixture(item: pytest.Item) -> bool:
    """Return whether a test has a parameter that is a fixture file."""
    values = getattr(getattr(item, "callspec", None), "params", {}).values()
    paths = [FIXTURES / v for v in values if isinstance(v, str | Path) and v and len(str(v)) < 200]
    return any(FIXTURES in path.parents and path.exists() for path in paths)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let ``--golden`` write the golden files anew."""
    parser.addoption("--golden", action="store_true", help="write fixtures/golden anew")
