"""Digests of columns that nsys exported, to compare reports with exports that are not in this repository.

``python -m tests.builders.nsys_exported NAME TABLE EXPORT`` writes the digests of a table of an export anew.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import polars as pl
import tracekit as tk

DIGESTS = Path(__file__).parents[1] / "readers" / "nsys_exported.json"


def digest_columns(path: Path, table: str) -> dict[str, str]:
    """Return the number of values that are not null and a digest of all values, for each column of a table."""
    with tk.load(path) as trace:
        rows = trace.frame(table).with_columns(pl.col(pl.Categorical).cast(pl.String)).collect()
    return {
        name: f"{rows[name].count()} {hashlib.sha256(json.dumps(rows[name].to_list()).encode()).hexdigest()[:16]}"
        for name in rows.columns
    }


def read_digests(name: str) -> dict[str, dict[str, str]]:
    """Return the digests of the columns of each table of a capture that nsys exported."""
    digests: dict[str, dict[str, str]] = json.loads(DIGESTS.read_text("utf-8"))[name]["tables"]
    return digests


def main(name: str, table: str, export: str) -> None:
    """Write the digests of a table of an export anew."""
    with tk.load(export) as trace:
        by = f"nsys {trace.info['tool_version']}"
    captures = json.loads(DIGESTS.read_text("utf-8")) if DIGESTS.exists() else {}
    capture = captures.setdefault(name, {"exported_by": by, "tables": {}})
    capture["exported_by"] = by
    capture["tables"][table] = digest_columns(Path(export), table)
    DIGESTS.write_text(json.dumps(captures, indent=1, sort_keys=True) + "\n", "utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
