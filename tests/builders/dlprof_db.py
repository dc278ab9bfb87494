"""DLProf databases to test with, made here: the tables that the reader knows, with rows drawn from a seed."""

from __future__ import annotations

import contextlib
import random
import sqlite3
from pathlib import Path

CALL = (
    "name_id INTEGER, api_start INTEGER, api_stop INTEGER, process_id INTEGER, thread_id INTEGER, op_instance INTEGER"
)
OWNED = f"id INTEGER PRIMARY KEY AUTOINCREMENT, read_only_ops_id INTEGER, {CALL}"
GPU = "gpu_start INTEGER, gpu_stop INTEGER, device_id INTEGER"
TABLES = {
    "dictionary": "id INTEGER PRIMARY KEY AUTOINCREMENT, string TEXT UNIQUE",
    "db_version": "id INTEGER PRIMARY KEY, current_version TEXT, original_version TEXT",
    "read_only_system_config": "id INTEGER PRIMARY KEY, framework TEXT, dlprof_version TEXT, driver_version TEXT, "
    "mode_string TEXT, original_command TEXT",
    "read_only_model_config": "id INTEGER PRIMARY KEY, num_workers INTEGER, amp_enabled BOOLEAN",
    "aggregations": "id INTEGER PRIMARY KEY, server_user_name TEXT, server_host_name TEXT",
    "read_only_gpu_infos": "id INTEGER PRIMARY KEY, device_id INTEGER UNIQUE, gpu_name TEXT, "
    "compute_capability_major INTEGER, compute_capability_minor INTEGER, sm_count INTEGER",
    "read_only_grid_block": "id INTEGER PRIMARY KEY, x INTEGER, y INTEGER, z INTEGER",
    "read_only_ops": "id INTEGER PRIMARY KEY, op_id_id INTEGER, op_name STRING",
    "read_only_op_instances": "id INTEGER PRIMARY KEY, read_only_ops_id INTEGER, cpu_start INTEGER, cpu_stop INTEGER, "
    "process_id INTEGER, thread_id INTEGER",
    "read_only_kernels": f"{OWNED}, long_name_id INTEGER, uses_tc BOOLEAN, {GPU}, grid_id INTEGER, block_id INTEGER",
    "read_only_memsets": f"{OWNED}, {GPU}, num_bytes INTEGER",
    "read_only_memcpys": f"{OWNED}, {GPU}, num_bytes INTEGER, copy_kind INTEGER",
    "read_only_cuda_syncs": f"{OWNED}, {GPU}, sync_type INTEGER, event_id INTEGER",
    "read_only_cuda_calls": OWNED,
}
NAMES = ["gemm", "void gemm<float>(T1)", "cudaMemcpyAsync_v3020", "cudaMemsetAsync_v3020", "cudaMalloc_v3020", "RELU_1"]
CHILDREN = [t for t, columns in TABLES.items() if columns.startswith(OWNED)]


def database(path: Path, *statements: str, seed: int = 0, calls: int = 40) -> Path:
    """Write a database of one process and two GPUs, then run the statements on it."""
    draw = random.Random(seed)
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA synchronous = OFF")
        for table, columns in TABLES.items():
            db.execute(f"CREATE TABLE {table} ({columns})")
        for name in NAMES:
            insert(db, "dictionary", string=name)
        _machine(db)
        for n in range(calls):
            _call(db, draw, 1000 * n)
        for statement in statements:
            db.execute(statement)
        db.commit()
    return path


def insert(db: sqlite3.Connection, table: str, **values: object) -> None:
    """Insert a row."""
    sql = f"INSERT INTO {table} ({', '.join(values)}) VALUES ({', '.join('?' * len(values))})"
    db.execute(sql, tuple(values.values()))


def _machine(db: sqlite3.Connection) -> None:
    insert(db, "db_version", current_version="1.8.0", original_version="1.8.0")
    private = {
        "original_command": "dlprof python secret-script.py",
        "driver_version": "UNKNOWN",
        "mode_string": "pytorch",
    }
    insert(db, "read_only_system_config", framework="PyTorch 1.10", dlprof_version="v1.8.0", **private)
    insert(db, "read_only_model_config", num_workers=4, amp_enabled=1)
    insert(db, "aggregations", server_user_name="secret-user", server_host_name="secret-host")
    for device in (3, 0):
        insert(db, "read_only_gpu_infos", device_id=device, gpu_name=f"GPU {device}", sm_count=80)
    for size in (1, 2, 32):
        insert(db, "read_only_grid_block", x=size, y=1, z=1)
    insert(db, "read_only_ops", op_id_id=6, op_name="/relu")
    insert(db, "read_only_op_instances", read_only_ops_id=1, cpu_start=0, cpu_stop=10, process_id=7, thread_id=8)


def _call(db: sqlite3.Connection, draw: random.Random, start: int) -> None:
    table = draw.choice(CHILDREN)
    thread = draw.choice([7, 8, 9])
    row = {"api_start": start, "api_stop": start + draw.randrange(1, 900), "process_id": 7, "thread_id": thread}
    more: dict[str, object] = {"name_id": 5}
    if table != "read_only_cuda_calls":
        gpu = start + draw.randrange(500)
        more |= {"gpu_start": gpu, "gpu_stop": gpu + draw.randrange(5000), "device_id": draw.choice([1, 2])}
    if table == "read_only_kernels":
        more |= {"name_id": 1, "long_name_id": 2, "uses_tc": 0, "grid_id": draw.choice([1, 2]), "block_id": 3}
    elif table == "read_only_memcpys":
        more |= {"name_id": 3, "num_bytes": draw.randrange(1 << 40), "copy_kind": draw.choice([1, 2, 8])}
    elif table == "read_only_memsets":
        more |= {"name_id": 4, "num_bytes": draw.randrange(1 << 40)}
    elif table == "read_only_cuda_syncs":
        more |= {"gpu_start": 0, "gpu_stop": 0, "sync_type": 3, "event_id": 4294967295}
    insert(db, table, **row, **more)
