"""What docs/stability.md promises: the comparison of contracts, and deprecations that end when they are due."""

from __future__ import annotations

import copy
import datetime as dt
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import tracekit as tk
from packaging.version import Version
from schemas.generate import contract, interface
from tracekit.text.deprecations import DEPRECATIONS, Deprecation

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[1]
STORED = contract.read_file()


def read_release_dates() -> dict[Version, dt.date]:
    """The dates of the versions in the changelog."""
    headings = re.findall(r"^## \[([\d.]+)\] - ([\d-]+)$", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    return {Version(version): dt.date.fromisoformat(date) for version, date in headings}


def list_overdue(deprecations: list[Deprecation], version: Version, date: dt.date) -> list[str]:
    """The names that a version of this date should no longer have, or removes too early."""
    due = [d for d in deprecations if version >= Version(d.removed_in)]
    overdue = [f"{d.name} is due: remove it, and its entry" for d in due]
    early = [d for d in deprecations if d.since == str(version) and dt.date.fromisoformat(d.not_before) < date]
    return overdue + [f"{d.name} may be removed before its first warning" for d in early]


def test_no_deprecation_is_past_its_version() -> None:
    version = Version(tk.__version__)
    assert list_overdue(list(DEPRECATIONS.values()), version, read_release_dates()[version]) == []


def test_a_deprecation_that_is_past_its_version_is_reported() -> None:
    counts = DEPRECATIONS["Trace.counts"]
    assert list_overdue([counts], Version("2.0.0"), dt.date(2028, 1, 1)) == [
        "Trace.counts is due: remove it, and its entry"
    ]
    assert list_overdue([counts], Version("1.9.0"), dt.date(2028, 1, 1)) == []
    (problem,) = list_overdue([counts._replace(not_before="2020-01-01")], Version("1.0.0"), dt.date(2026, 11, 28))
    assert problem == "Trace.counts may be removed before its first warning"


@pytest.mark.parametrize("each", DEPRECATIONS.values(), ids=lambda d: d.name)
def test_a_deprecation_lasts_a_year_and_until_a_major_version(each: Deprecation) -> None:
    released = read_release_dates()[Version(each.since)]
    assert dt.date.fromisoformat(each.not_before) >= released.replace(year=released.year + 1)
    removal = Version(each.removed_in)
    assert removal > Version(each.since)
    assert (removal.minor, removal.micro) == (0, 0)


def remove(*path: str) -> Callable[[dict[str, Any]], None]:
    """A change of a contract that removes what lies at a path."""

    def change(after: dict[str, Any]) -> None:
        for name in path[:-1]:
            after = after[name]
        del after[path[-1]]

    return change


def put(value: str, *path: str) -> Callable[[dict[str, Any]], None]:
    """A change of a contract that sets what lies at a path."""

    def change(after: dict[str, Any]) -> None:
        for name in path[:-1]:
            after = after[name]
        after[path[-1]] = value

    return change


MAJOR, MINOR = ": raise the major version", ": raise the minor version"


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (remove("python", "tracekit.load"), f"tracekit.load is missing{MAJOR}"),
        (remove("python", "tracekit.load", "via"), f"tracekit.load: via is missing{MAJOR}"),
        (
            put("keyword bool", "python", "tracekit.load", "cache"),
            f"tracekit.load: cache is keyword bool, but was keyword bool | None = None{MAJOR}",
        ),
        (
            put("keyword int", "python", "tracekit.load", "jobs"),
            f"tracekit.load: jobs is a new parameter without a default value{MAJOR}",
        ),
        (
            put("return Trace | None", "python", "tracekit.load", "return"),
            f"tracekit.load: return is return Trace | None, but was return Trace{MAJOR}",
        ),
        (remove("command_line", "tracekit why", "--step-time"), f"tracekit why: --step-time is missing{MAJOR}"),
        (remove("command_line", "tracekit mcp"), f"tracekit mcp is missing{MAJOR}"),
        (
            put("one of nsys", "command_line", "tracekit check", "--profiler"),
            f"tracekit check: --profiler is one of nsys, but was one of nsys, pytorch{MAJOR}",
        ),
        (
            put("5", "command_line", "exit statuses", "a condition holds"),
            f"exit statuses: a condition holds is 5, but was 3{MAJOR}",
        ),
        (remove("formats", "write csv"), f"write csv is missing{MAJOR}"),
        (remove("formats", "read proton"), f"read proton is missing{MAJOR}"),
        (
            remove("python", "tracekit.registry.interface.Reader()", "sniff"),
            f"tracekit.registry.interface.Reader(): sniff is missing{MAJOR}",
        ),
        (
            put("", "python", "tracekit.registry.tables.Tables", "abstract sort"),
            f"tracekit.registry.tables.Tables: abstract sort is a new method that plug-ins have to implement{MAJOR}",
        ),
        (
            remove("toolbox", "tracekit.readers.common.tries.Trie"),
            f"tracekit.readers.common.tries.Trie is missing{MINOR}",
        ),
    ],
)
def test_a_removal_or_a_changed_signature_breaks_the_contract(
    change: Callable[[dict[str, Any]], None], problem: str
) -> None:
    after = copy.deepcopy(STORED)
    change(after)
    assert contract.list_changes(STORED, after) == [problem]
    after["minor_version"] = "1.99"
    assert contract.list_changes(STORED, after) == ([] if problem.endswith(MINOR) else [problem])
    after["major_version"] = "2"
    assert contract.list_changes(STORED, after) == []


@pytest.mark.parametrize(
    "change",
    [
        put("keyword int = 1", "python", "tracekit.load", "jobs"),
        put("keyword bool | int | None = None", "python", "tracekit.load", "cache"),
        put("value", "command_line", "tracekit why", "--new"),
        put("one of other, nsys, pytorch", "command_line", "tracekit check", "--profiler"),
        put("suffix", "formats", "write csv", ".txt"),
        remove("python", "tracekit.registry.tables.Tables", "abstract count_many"),
    ],
)
def test_an_addition_keeps_the_contract(change: Callable[[dict[str, Any]], None]) -> None:
    after = copy.deepcopy(STORED)
    change(after)
    assert after != STORED
    assert contract.list_changes(STORED, after) == []


def test_everything_that_is_documented_is_in_the_contract() -> None:
    names = {*interface.list_documented_names(), *interface.list_toolbox()}
    owners = {*STORED["python"], *STORED["toolbox"]}
    assert {f"tracekit.{n}" for n in tk.__all__ if n != "errors"} <= names <= owners
    assert STORED["major_version"] == tk.__version__.partition(".")[0]


def test_the_page_lists_the_exit_statuses() -> None:
    page = (ROOT / "docs" / "stability.md").read_text("utf-8")
    for status in STORED["command_line"]["exit statuses"].values():
        assert f"| {status} |" in page
