"""Nsight Compute CSV against the csv module, in cells per second.

The files repeat the launches of our captures under new numbers. The baseline makes the same long table: rows of the csv
module, numbers in base units, put into Arrow columns. ``make bench`` runs the jobs.
"""

from __future__ import annotations

import csv
import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import tracekit as tk
from measuring import Measure, median_of_runs, peak_mib
from tracekit.readers.ncu.units import find_base_unit_and_exponent

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[2]
CAPTURES = ROOT / "fixtures" / "ncu"
LAUNCHES = int(os.environ.get("LAUNCHES", "10000"))
NAMES = ["launch_id", "metric", "value", "text", "unit"]


def raw_page(folder: Path) -> tuple[Measure, Measure]:
    """Measure tracekit and the baseline on a raw page."""
    path = generate(folder, "ncu_raw")
    return ours("tables", path), ours("baseline_raw", path)


def details_page(folder: Path) -> tuple[Measure, Measure]:
    """Measure tracekit and the baseline on a details page."""
    path = generate(folder, "ncu_details")
    return ours("tables", path), ours("baseline_details", path)


def generate(folder: Path, name: str) -> Path:
    """Print the launches of a capture again and again, once."""
    path = folder / f"{name}_{LAUNCHES}.csv"
    if path.exists():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    lines = [x for x in (CAPTURES / f"{name}.csv").read_bytes().splitlines(keepends=True) if x.strip()]
    head = [x for x in lines if not x[1:2].isdigit()]
    rows = [(int(number.strip(b'"')), rest) for number, _, rest in (x.partition(b",") for x in lines[len(head) :])]
    own = 1 + max(number for number, _ in rows)
    with path.open("wb") as file:
        file.writelines(head)
        for first in range(0, LAUNCHES, own):
            file.writelines(b'"%d",%b' % (first + number, rest) for number, rest in rows if first + number < LAUNCHES)
    return path


def ours(job: str, path: Path) -> Measure:
    """Run a job in fresh processes; medians."""
    return median_of_runs([sys.executable, __file__, job, str(path)])


def tables(path: str) -> tuple[float, int]:
    """CSV to all tables."""
    began = time.perf_counter()
    with tk.load(path) as trace:
        trace.table("ncu_metrics")
    return time.perf_counter() - began, cells(path)


def baseline_raw(path: str) -> tuple[float, int]:
    """The metrics of a raw page with the csv module."""
    began = time.perf_counter()
    with Path(path).open(newline="", encoding="utf-8") as file:
        header, units, *rows = csv.reader(file)
    lead = header.index("CC") + 1
    bases = [find_base_unit_and_exponent(u) for u in units]
    found = []
    for row in rows:
        for name, cell, (base, power) in zip(header[lead:], row[lead:], bases[lead:], strict=True):
            found.append((int(row[0]), name, *_number(cell, power), base))
    pa.table([pa.array(column) for column in zip(*found, strict=True)], names=NAMES)
    return time.perf_counter() - began, cells(path)


def baseline_details(path: str) -> tuple[float, int]:
    """The metrics of a details page with the csv module."""
    began = time.perf_counter()
    with Path(path).open(newline="", encoding="utf-8") as file:
        header, *rows = csv.reader(file)
    name, unit, value = (header.index(f"Metric {n}") for n in ("Name", "Unit", "Value"))
    found = []
    for row in rows:
        if row[name]:
            base, power = find_base_unit_and_exponent(row[unit])
            found.append((int(row[0]), row[name], *_number(row[value], power), base))
    pa.table([pa.array(column) for column in zip(*found, strict=True)], names=NAMES)
    return time.perf_counter() - began, cells(path)


def _number(cell: str, power: int) -> tuple[float | None, str | None]:
    try:
        return float(cell.replace(",", "")) * 10.0**power, None
    except ValueError:
        return None, cell


def cells(path: str) -> int:
    """Cells of a file."""
    with Path(path).open(newline="", encoding="utf-8") as file:
        return sum(map(len, csv.reader(file)))


JOBS: dict[str, Callable[[str], tuple[float, int]]] = {f.__name__: f for f in (tables, baseline_raw, baseline_details)}


if __name__ == "__main__":
    seconds, count = JOBS[sys.argv[1]](sys.argv[2])
    print(json.dumps({"seconds": seconds, "rows": count, "peak_mb": peak_mib()}))
