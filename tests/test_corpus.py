"""Every public capture beside the checkout reads. Their strings are private: none is printed, no path is a test id."""

from __future__ import annotations

from pathlib import Path

import pytest
import tracekit as tk

CORPUS = Path(__file__).parents[2] / "shared" / "corpus"
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
