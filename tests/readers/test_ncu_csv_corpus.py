"""Public CSV of Nsight Compute beside the checkout: all rows are read, or the file is refused for the right reason.

Their strings are private: none is printed, no path is a test id.
"""

from __future__ import annotations

import csv
import io
from pathlib import Path

import polars as pl
import pytest
import tracekit as tk
from tests.conftest import SHARED
from tracekit.errors import MissingTableError, UnsupportedVersionError
from tracekit.readers.ncu.units import find_unit_of_metric

CORPUS = SHARED / "corpus" / "ncu_csv"
FILES = sorted(p for p in CORPUS.rglob("*") if p.is_file()) if CORPUS.is_dir() else []
pytestmark = [pytest.mark.corpus, pytest.mark.skipif(not FILES, reason="no corpus beside the checkout")]


def records(path: Path) -> list[list[str]]:
    """Header and rows of the only table, by the csv module; none if there is none."""
    lines = path.read_text("utf-8-sig").splitlines(keepends=True)
    first = next((i for i, line in enumerate(lines) if line.startswith('"ID","Process ID"')), len(lines))
    return list(csv.reader(io.StringIO("".join(line for line in lines[first:] if line.startswith('"')))))


def failure(path: Path) -> str | None:
    """Read a file and count its rows; return what is wrong, but nothing of the file."""
    expected = records(path)
    try:
        with tk.load(path) as trace:
            counted = {t: trace[t].num_rows for t in ("ncu_launches", "ncu_metrics", "ncu_rules")}
            mapped = trace.frame("ncu_metrics").filter(pl.col("label").is_not_null()).drop_nulls("metric").collect()
    except (MissingTableError, UnsupportedVersionError) as e:
        return None if not expected else type(e).__name__
    except Exception as e:  # noqa: BLE001 - its text may be private
        return type(e).__name__
    header, *rows = expected
    if "Metric Name" in header:
        rules = sum(
            len(row) == len(header) and "Rule Name" in header and row[header.index("Rule Name")] != "" for row in rows
        )
        wanted = {
            "ncu_launches": len({tuple(r[:2]) for r in rows}),
            "ncu_metrics": len(rows) - rules,
            "ncu_rules": rules,
        }
    else:
        rows = rows[1:]
        filled = sum(cell != "" for row in rows for cell in row[header.index("CC") + 1 :])
        wanted = {"ncu_launches": len(rows), "ncu_metrics": filled, "ncu_rules": 0}
    units = {
        u is None or find_unit_of_metric(m) == u
        for m, u in mapped.select(pl.col("metric", "unit").cast(pl.String)).unique().rows()
    }
    return (
        None if counted == wanted and units <= {True} else f"{counted} is not {wanted}, or a label means another unit"
    )


@pytest.mark.parametrize("number", range(len(FILES)))
def test_every_file(number: int) -> None:
    assert failure(FILES[number]) is None


def test_how_many_hold_no_table() -> None:
    assert sum(not records(path) for path in FILES) == 14
