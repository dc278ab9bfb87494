"""A database of nvprof with 2 million events, against rows that the standard library reads and joins with names."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

TITLE = "nvprof"
PACKAGES: tuple[str, ...] = ()
LAUNCHES, NAMES, FIRST = 700_000, 200, 1_700_000_000_000_000_000
CALLS = "cbid INT, start INT, end INT, processId INT, threadId INT, correlationId INT, returnValue INT"
KERNELS = (
    *(
        "registersPerThread",
        "start",
        "end",
        "completed",
        "deviceId",
        "contextId",
        "streamId",
        "gridX",
        "gridY",
        "gridZ",
    ),
    *("blockX", "blockY", "blockZ", "staticSharedMemory", "dynamicSharedMemory", "localMemoryPerThread"),
    *("localMemoryTotal", "correlationId", "gridId", "name", "queued", "submitted", "launchType"),
    "sharedMemoryExecuted",
)


def write(folder: Path) -> Path:
    """Write the calls of runtime and driver, and the kernels."""
    path = folder / "large.nvprof"
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE StringTable(_id_ INTEGER PRIMARY KEY AUTOINCREMENT, value TEXT NOT NULL UNIQUE)")
        names = [(f"_Z{len(str(n)) + 6}kernel{n}PfS_",) for n in range(NAMES)]
        db.executemany("INSERT INTO StringTable(value) VALUES (?)", names)
        for kind, columns in (("RUNTIME", CALLS), ("DRIVER", CALLS), ("CONCURRENT_KERNEL", ", ".join(KERNELS))):
            db.execute(f"CREATE TABLE CUPTI_ACTIVITY_KIND_{kind}(_id_ INTEGER PRIMARY KEY AUTOINCREMENT, {columns})")
        times = [FIRST + 10_000 * n for n in range(LAUNCHES)]
        calls = [(211, t, t + 5000, 4242, -5, n, 0) for n, t in enumerate(times)]
        db.executemany(f"INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (NULL{', ?' * 7})", calls)
        calls = [(307, t + 1000, t + 4000, 4242, -5, LAUNCHES + n, 0) for n, t in enumerate(times)]
        db.executemany(f"INSERT INTO CUPTI_ACTIVITY_KIND_DRIVER VALUES (NULL{', ?' * 7})", calls)
        shape = (0, 1, 7, 80, 1, 1, 256, 1, 1, 1024, 0, 0, 1 << 28)
        kernels = (
            (32, t + 6000, t + 9000 + n % 999, t + 9999, *shape, n, n + 1, n % NAMES + 1, 0, 0, 0, 8192)
            for n, t in enumerate(times)
        )
        db.executemany(f"INSERT INTO CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL VALUES (NULL{', ?' * 24})", kernels)
        db.commit()
    return path


def read_with_peer(path: Path) -> int:
    """Read all rows, with the names of kernels."""
    with closing(sqlite3.connect(path)) as db:
        names = dict(db.execute("SELECT _id_, value FROM StringTable"))
        db.row_factory = sqlite3.Row
        rows = [
            dict(r) for kind in ("RUNTIME", "DRIVER") for r in db.execute(f"SELECT * FROM CUPTI_ACTIVITY_KIND_{kind}")
        ]
        kernels = [dict(r) for r in db.execute("SELECT * FROM CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL")]
        for kernel in kernels:
            kernel["name"] = names[kernel["name"]]
        return len(rows) + len(kernels)
