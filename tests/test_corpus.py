"""Every public capture beside the checkout reads. Their strings are private: none is printed, no path is a test id."""

from __future__ import annotations

from pathlib import Path

import pytest
import tracekit as tk
from tracekit.errors import TracekitError

CORPUS = Path(__file__).parents[2] / "shared" / "corpus"
MAX_BYTES = 2 << 20
"""Maximum size of the public reports whose steps are examined."""
FILES = sorted(CORPUS.glob("**/*.sqlite")) if CORPUS.is_dir() else []
pytestmark = [pytest.mark.corpus, pytest.mark.skipif(not FILES, reason="no corpus beside the checkout")]


def read(path: Path) -> str | None:
    """Read and correlate everything; return the kind of the failure and the table, but nothing of the file."""
    table = "load"
    try:
        with tk.load(path) as trace:
            linked = trace.correlate()
            for table in trace.tables:
                found = linked[table]
                found.validate(full=True)
                if linked.count(table) != found.num_rows:
                    return f"{table}: {linked.count(table)} rows counted, {found.num_rows} read"
    except Exception as e:  # noqa: BLE001 - its text may be private
        return f"{table}: {type(e).__name__}"
    return None


@pytest.mark.parametrize("number", range(len(FILES)))
def test_every_table_reads_and_correlates(number: int) -> None:
    assert read(FILES[number]) is None


REPORTS = sorted(path for path in CORPUS.glob("**/*.nsys-rep") if path.stat().st_size < MAX_BYTES)


def examine_steps(path: Path) -> str | None:
    """Return what is wrong with the steps of a capture, but nothing of the file."""
    try:
        with tk.load(path) as trace:
            kernels = trace.count("kernels")
            row = trace.stats("steps").row(0, named=True) if kernels else None
    except TracekitError:
        return None
    if row is None:
        return None
    if row["Kernels"] != kernels:
        return f"{row['Kernels']} of {kernels} kernels are counted"
    has_few = min(row["Kernels In Steps (%)"], row["GPU Time In Steps (%)"] or 100) < 90
    if not row["Kernels In Steps"]:
        return "no kernel lies in a step"
    if row["Range"] is None and row["Steps"] != 1:
        return "steps without a range"
    return "few kernels lie in steps, without a warning" if has_few != row["Summary"].startswith("Warning: ") else None


@pytest.mark.filterwarnings("ignore::tracekit.errors.TracekitWarning")
@pytest.mark.parametrize("number", range(len(REPORTS)))
def test_steps_contain_the_gpu_work_or_say_so(number: int) -> None:
    assert examine_steps(REPORTS[number]) is None
