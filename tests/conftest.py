"""What every test shares: the fixtures folder, hypothesis profiles, and the part of the tests that `make test` runs."""

from __future__ import annotations

import functools
import importlib
import os
import pkgutil
import random
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import pytest
import tracekit
from hypothesis import HealthCheck, settings

T = TypeVar("T")

ROOT = Path(__file__).parents[1]
FIXTURES = ROOT / "fixtures"
SHARED = ROOT.parent / "shared"

ALL = os.environ.get("TRACEKIT_TESTS") == "all"
"""Whether every example, fuzz case, parameter and capture is tested: ``make test-all``."""
PUBLIC_CAPTURES = 3
"""Number of public captures that each test reads in ``make test``."""
CAPTURES_PER_TEST = 4
"""Minimum number of other captures that each test reads in ``make test``, if it has that many. It reads a quarter."""
NOT_MEASURED = {
    *("cli/test_convert", "cli/test_correlate", "cli/test_main", "cli/test_outputs", "cli/test_printing"),
    *("cli/test_redact", "core/test_advise_figures", "core/test_containment", "core/test_groups"),
    *("core/test_report_reads", "exporters/test_tables", "readers/test_kineto_fuzz", "readers/test_ncu_pairs"),
    *("readers/test_nsys_folders_bad", "readers/test_nsys_sqlite_redact"),
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


def _use_one_polars_thread() -> None:
    """Let the queries of this process run in one thread, as a second one waits most of the time and costs a fifth.

    The programs that tests start use as many threads as there are cores.
    """
    os.environ["POLARS_MAX_THREADS"] = "1"
    importlib.import_module("polars")  # which reads the variable
    del os.environ["POLARS_MAX_THREADS"]


if not ALL and "POLARS_MAX_THREADS" not in os.environ:
    _use_one_polars_thread()


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
    """Return the tests that ``make test`` runs: a fixed part of the tests of many captures or of many parameters.

    All tests of a module read the same captures, so that each of them is loaded and exported once. Tests of
    ``tracekit/core`` run with all captures and parameters, because together they must cover all of it.
    """
    by_test: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        by_test[item.nodeid.partition("[")[0]].append(item)
    selected: set[pytest.Item] = set()
    for name, same in by_test.items():
        many = same[0].get_closest_marker("many")
        if same[0].get_closest_marker("every"):
            selected.update(same)
        elif many is not None:
            selected.update(_sample(name, same, *many.args))
        elif same[0].get_closest_marker("corpus"):
            selected.update(_sample(name, same, PUBLIC_CAPTURES))
        elif "core" not in same[0].path.parts and all(map(_capture, same)):
            captures = sorted(set(map(_capture, same)), key=lambda c: random.Random(_module(same[0]) + c).random())
            kept = captures[: max(CAPTURES_PER_TEST, len(captures) // 4)]
            selected.update(item for item in same if _capture(item) in kept)
        else:
            selected.update(same)
    return selected


def _sample(seed: str, population: Sequence[T], number: int) -> list[T]:
    return random.Random(seed).sample(population, min(len(population), number))


def _module(item: pytest.Item) -> str:
    return item.path.relative_to(ROOT / "tests").with_suffix("").as_posix()


@functools.cache
def _captures() -> dict[str, str]:
    """Map what tests have as parameters, paths and names of captures, to names of captures."""
    files = (p for p in FIXTURES.rglob("*") if p.is_file() or p.name.endswith("dir"))
    own = {p: p.relative_to(FIXTURES).as_posix() for p in files}
    shared = {p: p.relative_to(SHARED).as_posix() for p in (SHARED / "captures").rglob("*")}
    short = {p.stem: p.stem for p in FIXTURES.glob("*.nsys-rep")} | {p.name: name for p, name in own.items()}
    return short | {name: name for name in own.values()} | {str(p): name for p, name in (own | shared).items()}


def _capture(item: pytest.Item) -> str:
    """Return the name of the capture that is a parameter of a test, or an empty string."""
    values = map(str, getattr(getattr(item, "callspec", None), "params", {}).values())
    return next((_captures()[v] for v in values if v in _captures()), "")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let ``--golden`` write the golden files anew."""
    parser.addoption("--golden", action="store_true", help="write fixtures/golden anew")
