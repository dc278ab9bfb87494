"""What the documentation says of supported builds is what a comparison finds; the comparison finds what differs."""

from __future__ import annotations

import json
import random
import re
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from docs import support_matrix as support
from tests.conftest import ALL
from tests.test_every_format import FILES
from tracekit import schemas
from tracekit.readers.nsys_rep.container import NEWEST, OLDEST

WRITTEN: dict[str, list[dict[str, Any]]] = json.loads(support.DATA.read_text("utf-8"))
PAGE = support.ROOT / "docs" / "formats" / "nsys-rep.md"
PUBLIC = support.public_pairs()


def edited(folder: Path, *statements: str) -> support.Pair:
    """A report, and its export with changes."""
    report = Path(shutil.copyfile(support.FIXTURES / "graph_node.nsys-rep", folder / "a.nsys-rep"))
    export = Path(shutil.copyfile(support.FIXTURES / "graph_node.sqlite", folder / "a.sqlite"))
    with sqlite3.connect(export) as db:
        for statement in statements:
            db.execute(statement)
    db.close()
    return report, export


@pytest.mark.thorough
def test_the_rows_of_our_captures_are_up_to_date() -> None:
    assert support.matrix(support.own_pairs()) == WRITTEN["fixtures"], "run: python docs/support_matrix.py"


@pytest.mark.corpus
@pytest.mark.skipif(not PUBLIC, reason="no corpus beside the checkout")
def test_the_rows_of_public_captures_are_up_to_date() -> None:
    builds = {pair: support.build_of(pair) for pair in PUBLIC}
    written = {row["build"]: row for row in WRITTEN["public"]}
    assert written.keys() == set(builds.values())
    chosen = written if ALL else random.Random(0).sample(list(written), 4)
    found = support.matrix(pair for pair in PUBLIC if builds[pair] in chosen)
    stale = [row["build"] for row in found if row != written[row["build"]]]
    assert stale == [], "run: python docs/support_matrix.py"
    assert len(found) == len(chosen)


def test_every_column_that_is_not_equal_has_a_reason() -> None:
    for row in (row for rows in WRITTEN.values() for row in rows):
        assert set(row["unequal"]) <= set(support.REASONS), row["build"]
        assert row["equal"] + sum(map(len, row["unequal"].values())) == row["columns"]
        assert row["filled"] <= row["columns"]
        assert set(row["tables"]) <= set(schemas.tables())


def test_only_counts_are_told_of_public_captures() -> None:
    names = {*schemas.tables(), *support.REASONS}
    columns = {f"{t}.{c}" for t, schema in schemas.tables().items() for c in schema.names}
    facts = ("tool", "tool_version", "schema_version", "origin_utc_ns", "duration_ns", "os", *support.OF_DLPROF)
    columns |= {f"capture_info.{fact}" for fact in facts}
    for row in WRITTEN["public"]:
        assert all(isinstance(row[k], int) for k in ("pairs", "columns", "filled", "equal"))
        assert all(n.isdigit() for n in row["build"].split("."))
        assert {*row["tables"], *row["unequal"]} <= names
        assert {c for listed in row["unequal"].values() for c in listed} <= columns | {
            f"capture_info.{f}" for f in facts
        }


def test_builds_lie_between_the_oldest_and_the_newest_known() -> None:
    builds = [tuple(map(int, row["build"].split("."))) for rows in WRITTEN.values() for row in rows]
    assert len(builds) == len(set(builds)) == 22
    assert all(OLDEST <= build[:2] <= NEWEST for build in builds)
    known = " to ".join(".".join(map(str, release)) for release in (OLDEST, NEWEST))
    assert f"tracekit supports reports of the builds {known} of nsys." in PAGE.read_text("utf-8")


TESTED: list[dict[str, Any]] = json.loads(support.VERSIONS.read_text("utf-8"))


@pytest.mark.thorough
def test_the_versions_of_our_captures_are_up_to_date() -> None:
    rows = support.list_versions(filter(None, map(support.read_origin, support.own_captures())), [])
    stale = []
    for row in rows:
        (written,) = (w for w in TESTED if (w["format"], w["profiler"]) == (row["format"], row["profiler"]))
        is_listed = all(set(row[key]) <= set(written[key]) for key in ("versions", "schemas"))
        stale += [] if is_listed and row["fixtures"] == written["fixtures"] else [row["format"]]
    assert stale == [], "run: python docs/support_matrix.py"
    assert sum(row["fixtures"] for row in rows) == sum(row["fixtures"] for row in TESTED)


@pytest.mark.many(4)
@pytest.mark.parametrize("path", [paths[0] for paths in FILES.values()])
def test_the_version_of_a_capture_is_listed(path: str) -> None:
    origin = support.read_origin(support.FIXTURES / path)
    assert origin is not None
    name, profiler, version, schema = origin
    (row,) = (row for row in TESTED if (row["format"], row["profiler"]) == (name, profiler))
    assert row["fixtures"] > 0
    assert version in ("", *row["versions"])
    assert schema in ("", *row["schemas"])


def test_every_format_that_profilers_write_was_tested() -> None:
    assert {row["format"] for row in TESTED} == {*FILES, "dlprof-db"}


def test_a_file_that_is_no_capture_has_no_origin() -> None:
    assert support.read_origin(support.FIXTURES / "README.md") is None


def test_rows_of_versions_are_merged_and_sorted() -> None:
    fixtures = [("b", "tool", "2025.10", "1.0"), ("a", "tool", "", "")]
    public = [("b", "tool", "2025.9", "1.0"), ("b", "tool", "2025.10", "")]
    a = {"format": "a", "profiler": "tool", "versions": [], "schemas": [], "fixtures": 1, "public": 0}
    b = {"format": "b", "profiler": "tool", "versions": ["2025.9", "2025.10"], "schemas": ["1.0"]}
    assert support.list_versions(fixtures, public) == [a, b | {"fixtures": 1, "public": 2}]


def test_only_names_and_numbers_are_told_of_public_captures_by_version() -> None:
    programs = {*support.PROFILERS.values(), *support.STATED, *support.OTHER_PROFILER.values(), "any program"}
    for row in TESTED:
        assert row["profiler"] in programs
        assert all(re.fullmatch(r"\d+(\.\d+)?", text) for key in ("versions", "schemas") for text in row[key])


@pytest.mark.slow
def test_an_equal_pair_has_reasons_only_for_what_its_export_lacks(tmp_path: Path) -> None:
    (row,) = support.matrix([edited(tmp_path)])
    missing = row["unequal"].pop(support.NO_TABLE)
    assert {c.partition(".")[0] for c in missing} == {"cuda_overheads"}
    assert row["unequal"] == {
        support.NO_COLUMN: ["kernels.cluster_x", "kernels.cluster_y", "kernels.cluster_z", "kernels.graph_id"],
        support.OTHER_NSYS: ["capture_info.tool_version"],
        support.ONLY_EXPORTS: ["capture_info.schema_version"],
    }
    assert (row["build"], row["pairs"], row["tables"]["kernels"]) == ("2025.3.1", 1, 52)


@pytest.mark.slow
@pytest.mark.many(1)
@pytest.mark.parametrize(
    ("change", "differing"),
    [
        ("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = start - 1 WHERE rowid = 52", {"kernels.start_ns"}),
        ("UPDATE NVTX_EVENTS SET text = 'x' WHERE rowid = 1 AND text IS NOT NULL", {"nvtx_ranges.name"}),
        ("UPDATE CUPTI_ACTIVITY_KIND_MEMCPY SET bytes = 1 WHERE rowid = 1", {"memcpys.bytes"}),
        ("UPDATE ANALYSIS_DETAILS SET duration = 5", {"capture_info.duration_ns"}),
    ],
)
def test_a_changed_value_is_found(tmp_path: Path, change: str, differing: set[str]) -> None:
    (row,) = support.matrix([edited(tmp_path, change)])
    assert set(row["unequal"].get(support.DIFFERS, ())) == differing


@pytest.mark.slow
def test_a_missing_row_makes_every_column_differ(tmp_path: Path) -> None:
    (row,) = support.matrix([edited(tmp_path, "DELETE FROM CUPTI_ACTIVITY_KIND_MEMCPY WHERE rowid = 1")])
    assert row["unequal"][support.DIFFERS] == sorted(f"memcpys.{c}" for c in schemas.table("memcpys").names)


@pytest.mark.slow
def test_a_missing_table_and_a_missing_column_are_no_difference(tmp_path: Path) -> None:
    gone = ("DROP TABLE PROCESSES", "ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL DROP COLUMN mangledName")
    (row,) = support.matrix([edited(tmp_path, *gone)])
    assert "kernels.mangled_name" in row["unequal"][support.NO_COLUMN]
    missing = [c for c in row["unequal"][support.NO_TABLE] if not c.startswith("cuda_overheads.")]
    assert missing == ["processes.name", "processes.process_id"]
    assert support.DIFFERS not in row["unequal"]
