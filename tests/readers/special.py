"""Reads what is no regular file; run as a program, which the system ends if it waits: ``… tests.readers.special JOBS``.

``JOBS`` is a JSON list of paths, formats (null: recognize it) and tables (null: none).
"""

from __future__ import annotations

import json
import signal
import sys
import warnings

import tracekit as tk

SECONDS = 20


def outcome(path: str, format: str | None, table: str | None) -> str:
    """Load a path and read a table: what is said."""
    signal.alarm(SECONDS)
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            with tk.load(path, format) as trace:
                rows = 0 if table is None else trace[table].num_rows
        return "; ".join([f"{rows} rows", *(str(w.message) for w in warned)])
    except tk.TracekitError as e:
        return str(e)
    finally:
        signal.alarm(0)


if __name__ == "__main__":
    print(json.dumps([outcome(*job) for job in json.loads(sys.argv[1])]))
