"""What every test shares: the fixtures folder, hypothesis profiles, and the part of the tests that `make test` runs."""

from __future__ import annotations

import functools
import gc
import importlib
import itertools
import os
import pkgutil
import random
import sqlite3
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import pytest
import tracekit
from hypothesis import HealthCheck, settings
from xdist import is_xdist_controller

T = TypeVar("T")

ROOT = Path(__file__).parents[1]
FIXTURES = ROOT / "fixtures"
SHARED = ROOT.parent / "shared"

ALL = os.environ.get("TRACEKIT_TESTS") == "all"
"""Whether every example, fuzz case, parameter and capture is tested: ``make test-all``."""
QUICK = os.environ.get("TRACEKIT_TESTS") == "quick"
"""Whether each quick test runs with one of its parameter sets: ``make quick``."""
PUBLIC_CAPTURES = 1
"""Number of public captures that each test reads in ``make test``."""
CAPTURES_PER_TEST = 1
"""Minimum number of other captures that each test reads in ``make test``. It reads a sixteenth of them."""
PARAMETER_SETS = 12
"""Largest number of parameter sets of each test in ``make test``, except in tests of ``tracekit/core``."""
QUICK_TESTS = int(os.environ.get("TRACEKIT_QUICK_TESTS", "600"))
"""Largest number of tests of ``make quick``."""
SLOW = ("slow", "browser", "corpus", "perfetto")
"""Markers of tests that ``make quick`` does not run."""
WHOLE_MODULES = ("test_names", "test_public_api", "test_schemas")
"""Quick modules whose tests run with all parameter sets."""


os.environ["TRACEKIT_CACHE"] = "off"


def _use_one_polars_thread() -> None:
    """Let the queries of this process run in one thread, as a second one waits most of the time and costs a fifth.

    The programs that tests start use as many threads as there are cores.
    """
    os.environ["POLARS_MAX_THREADS"] = "1"
    importlib.import_module("polars")  # which reads the variable
    del os.environ["POLARS_MAX_THREADS"]


if not ALL and "POLARS_MAX_THREADS" not in os.environ:
    _use_one_polars_thread()
import polars as pl  # noqa: E402 - after the number of threads


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Let polars compute in memory, except in the tests of ``tracekit/core``, as its streaming engine starts slowly.

    The programs that tests start use the default engine.
    """
    if not ALL:
        _use_engine("auto" if "core" in item.path.parts else "in-memory")


@functools.lru_cache(1)  # the engine stays until the next one is chosen
def _use_engine(name: Literal["auto", "in-memory"]) -> None:
    pl.Config.set_engine_affinity(name)
    os.environ.pop("POLARS_ENGINE_AFFINITY", None)


def examples(number: int) -> int:
    """Return how many examples of a property are tested: all, or the same part of them every time."""
    return number if ALL else max(number // (64 if QUICK else 16), 3)


settings.register_profile(
    "ci", derandomize=True, deadline=None, max_examples=examples(160), suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "short", derandomize=True, deadline=None, max_examples=15, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("long", deadline=None, max_examples=3000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


class ClosedWhenDeleted(sqlite3.Connection):
    """A connection that is closed when it is deleted. Python 3.13 warns of other connections that nobody closed."""

    def __init__(self, database: str, **options: Any) -> None:
        super().__init__(database, **{**options, "check_same_thread": False})

    def __del__(self) -> None:
        self.close()


def captures() -> list[Path]:
    """The real captures, each a SQLite export."""
    return sorted(FIXTURES.glob("*.sqlite"))


@pytest.fixture(params=captures(), ids=lambda p: p.stem)
def capture(request: pytest.FixtureRequest) -> Path:
    """Each real capture in turn."""
    path: Path = request.param
    return path


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """A browser."""
    from playwright.sync_api import sync_playwright
    from tests import chromium
    from tests.view.browser import SWITCHES

    with sync_playwright() as play:
        started = play.chromium.launch(executable_path=chromium.executable(), args=SWITCHES)
        yield started
        started.close()


def pytest_configure(config: pytest.Config) -> None:
    """Stop the first measurement in each worker of pytest-xdist, which would go on while the second one is paused.

    pytest-cov starts a second one at the start of the session, and reads only that one.
    """
    controller = _coverage_controller(config)
    if controller is not None and hasattr(config, "workerinput"):
        controller.pause()


@pytest.hookimpl(trylast=True)  # coverage is measured by then
def pytest_sessionstart(session: pytest.Session) -> None:
    """Import every module while coverage is measured: later, tests would import some of them while it is paused."""
    if _coverage_controller(session.config) is not None and not is_xdist_controller(session):
        for module in pkgutil.walk_packages(tracekit.__path__, "tracekit."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
        _measure_coverage(session.config, is_measured=False)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Select a fixed part of the captures of each test.

    Tests whose coverage is measured run first, because what other tests put into a cache would not be measured.
    """
    items.sort(key=lambda item: not _is_measured(item))
    if not ALL:
        selected = _selected(items)
        config.hook.pytest_deselected(items=[item for item in items if item not in selected])
        items[:] = [item for item in items if item in selected]


def pytest_collection_finish() -> None:
    """Exclude the modules and tests from garbage collections, which would take up to a second, and collect less often.

    With the default threshold of 700 objects, tests of many small frames collect for a twentieth of their time.
    """
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> None:
    """Pause or resume the measurement of coverage before the fixtures of a test are set up."""
    _measure_coverage(item.config, is_measured=_is_measured(item))


def _coverage_controller(config: pytest.Config) -> Any:
    """Return the object of pytest-cov that starts and pauses the measurement, or None if nothing is measured."""
    return getattr(config.pluginmanager.getplugin("_cov"), "cov_controller", None)


def _measure_coverage(config: pytest.Config, *, is_measured: bool) -> None:
    controller = _coverage_controller(config)
    if controller is not None and controller.started != is_measured:
        (controller.resume if is_measured else controller.pause)()


def _is_measured(item: pytest.Item) -> bool:
    """Return whether the coverage of a test is measured, which makes it slower."""
    of_core = "core" in item.path.parts
    if not ALL:
        measured = of_core and item.nodeid.partition("[")[0] not in _read_unmeasured()
        return measured or item.get_closest_marker("core") is not None
    is_property = getattr(getattr(item, "obj", None), "is_hypothesis_test", False)
    return item.get_closest_marker("corpus") is None and (of_core or not is_property)


@functools.cache
def _read_unmeasured() -> frozenset[str]:
    """Return the tests of ``tracekit/core`` that run no code that no other test runs: see ``tests/unmeasured.py``."""
    path = ROOT / "tests" / "core" / "unmeasured.txt"
    return frozenset(path.read_text("utf-8").splitlines() if path.exists() else ())


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
        if same[0].get_closest_marker("thorough") or (QUICK and any(map(same[0].get_closest_marker, SLOW))):
            continue
        if QUICK:
            selected.update(_sample(name, same, 1))
            continue
        if same[0].get_closest_marker("every"):
            selected.update(same)
        elif many is not None:
            selected.update(_sample(name, same, *many.args))
        elif same[0].get_closest_marker("corpus"):
            selected.update(_sample(name, same, PUBLIC_CAPTURES))
        elif "core" not in same[0].path.parts and all(map(_capture, same)):
            captures = sorted(set(map(_capture, same)), key=lambda c: random.Random(_module(same[0]) + c).random())
            kept = captures[: max(CAPTURES_PER_TEST, len(captures) // 16)]
            selected.update(item for item in same if _capture(item) in kept)
        elif "core" in same[0].path.parts or same[0].path.stem in WHOLE_MODULES:
            selected.update(same)
        else:
            selected.update(_sample(name, same, PARAMETER_SETS))
    return _limit_per_module(selected) if QUICK else selected


def _limit_per_module(tests: set[pytest.Item]) -> set[pytest.Item]:
    """Return ``QUICK_TESTS`` tests at most: equally many of each module, or all that a module has."""
    by_module: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in sorted(tests, key=lambda item: random.Random(item.nodeid).random()):
        by_module[_module(item)].append(item)
    columns = itertools.zip_longest(*(by_module[name] for name in sorted(by_module)))
    return set(itertools.islice(filter(None, itertools.chain.from_iterable(columns)), QUICK_TESTS))


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
