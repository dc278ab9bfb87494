"""A rocpd database of rocprofv3, against pandas with the joins that ROCm's own package ``rocpd`` makes."""

from __future__ import annotations

import sys
from pathlib import Path

TITLE = "rocpd"
PACKAGES = ("pandas==2.3.3",)
STEPS = 40_000
PROGRAMS = Path(__file__).parents[2] / "fixtures" / "programs"
NAMES = (
    *("kernel_dispatch", "info_kernel_symbol", "event", "string"),
    *("region", "memory_copy", "memory_allocate", "pmc_event"),
)
KERNELS = """SELECT k.*, s.display_name, s.arch_vgpr_count, e.stack_id, c.string FROM {kernel_dispatch} k
    JOIN {info_kernel_symbol} s ON s.id = k.kernel_id JOIN {event} e ON e.id = k.event_id
    JOIN {string} c ON c.id = e.category_id"""
OTHERS = """SELECT r.*, n.string AS name, e.stack_id, e.extdata, c.string FROM {table} r
    JOIN {string} n ON n.id = r.name_id JOIN {event} e ON e.id = r.event_id JOIN {string} c ON c.id = e.category_id"""


def write(folder: Path) -> Path:
    """Write the run of the fixtures with many steps."""
    sys.path.insert(0, str(PROGRAMS))
    import gen_rocm

    path = folder / "big_results.db"
    if not path.exists():
        gen_rocm.write_rocpd(path, STEPS)
    return path


def read_with_peer(path: str) -> float:
    """Read kernels, calls, copies, allocations and counters."""
    import sqlite3

    import pandas as pd

    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as db:
        found = [name for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        tables = {n: next(f for f in found if f.startswith(f"rocpd_{n}_0")) for n in NAMES}
        queries = [
            KERNELS.format(**tables),
            *(OTHERS.format(table=tables[n], **tables) for n in ("region", "memory_copy")),
        ]
        queries += [f"SELECT * FROM {tables[name]}" for name in ("memory_allocate", "pmc_event")]
        return float(sum(len(pd.read_sql_query(query, db)) for query in queries))
