"""Build the tables of a DLProf 1.8.0 database from a roll-up.

- ``recorded``: the tables that do not depend on the aggregated iterations
- ``aggregated``: the tables that depend on the aggregated iterations
- ``frames``: intermediate frames from which tables are built
- ``strings``: the dictionary of all strings
- ``metrics``: the table of distinct metrics
- ``model``: statistics of the whole model
- ``advice``: the findings of the expert systems

Times are unchanged from the capture. Rows and ids are in the order in which DLProf writes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import polars as pl

from tracekit.core.diagnosis.events import READ_COLUMNS as DIAGNOSIS_COLUMNS
from tracekit.core.dlprof.aggregated import AggregatedTables
from tracekit.core.relations import THREAD
from tracekit.core.rollup import tables as rollup_tables
from tracekit.core.series import spill_frame
from tracekit.system import memory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tracekit.core.rollup import Rollup

_TABLES_BEFORE_OPS = (
    *("dictionary", "read_only_domains", "read_only_gpu_infos", "gpu_memories", "read_only_system_config"),
    *("db_version", "read_only_model_config", "read_only_model_info"),
)
_TABLES_AFTER_OPS = (
    *("aggregations", "expert_systems_feedback", "iteration_key", "iteration_list", "iteration_aggregation_list"),
    *("category_summary", "model_summary", "device_gpu_utilizations", "metric", "node_time_metrics"),
    *("kernel_time_metrics", "op_nodes", "group_ops", "kernel_summaries", "kernel_iteration_stats"),
    *("kernel_iteration_node", "kernel_summary_metrics", "memory_summary_metrics", "op_type_metrics"),
)
_FINDINGS = "expert_systems_feedback"
_TABLES_OF_CALLS: Mapping[str, tuple[str, ...]] = {
    "kernel": ("read_only_grid_block", "read_only_kernels"),
    "memset": ("read_only_memsets",),
    "memcpy": ("read_only_memcpys",),
    "sync": ("read_only_cuda_syncs",),
    "call": ("read_only_cuda_calls",),
    "graph": ("read_only_cuda_calls",),
}
_OWN_COLUMNS: Mapping[str, tuple[str, ...]] = {
    "kernels": ("context_id", "stream_id", "graph_node_id"),
    "memcpys": ("bytes", "copy_kind", "src_memory_kind", "dst_memory_kind"),
    "memsets": ("bytes",),
    "syncs": ("sync_type", "event_id"),
    "osrt_calls": ("event_class",),
    "jit_operations": ("start_ns", "end_ns", *THREAD, "name", "operation_type", "entry_type"),
    "cpu_scheduling": ("timestamp_ns", *THREAD, "is_scheduled_in", "thread_state"),
    "cpu_samples": ("timestamp_ns", *THREAD),
}
_COLUMNS = (rollup_tables.READ_COLUMNS, _OWN_COLUMNS, DIAGNOSIS_COLUMNS)
READ_COLUMNS: Mapping[str, tuple[str, ...]] = {
    table: tuple(dict.fromkeys(c for columns in _COLUMNS for c in columns.get(table, ())))
    for table in dict.fromkeys(name for columns in _COLUMNS for name in columns)
}
"""The columns from which the database is computed, keyed by table. They include the columns of the roll-up."""


def build_tables(rollup: Rollup) -> dict[str, pl.DataFrame]:
    """Build all tables of a DLProf database.

    Returns:
        The tables, keyed by name, in the order in which DLProf writes their first rows. Empty tables are last. The
        tables have no id column, because the id of a row is its row number plus 1.
    """
    return dict(sorted(build_tables_in_background(rollup).items(), key=lambda table: table[1].is_empty()))


def build_tables_in_background(rollup: Rollup) -> Mapping[str, pl.DataFrame]:
    """Build all tables of a DLProf database, with the findings computed in a separate thread.

    Returns:
        The tables, keyed by name, in the order of ``DlprofDatabase.list_table_names``. The lookup of the table
        ``expert_systems_feedback`` blocks until the findings are computed.
    """
    return _TablesInBackground(DlprofDatabase(rollup))


class _TablesInBackground(Mapping[str, pl.DataFrame]):
    """The tables of a DLProf database, keyed by name.

    A separate thread computes the findings, because they take longer than all other tables. If the memory is limited,
    the findings are computed when they are accessed, because both computations together need more memory.
    """

    def __init__(self, database: DlprofDatabase) -> None:
        database.cache_shared_frames()
        self._compute_findings: Callable[[], pl.DataFrame] = lambda: database.expert_systems_feedback
        if memory.get_memory_limit() is None:
            pool = ThreadPoolExecutor(1, "tracekit")
            self._compute_findings = pool.submit(self._compute_findings).result
            pool.shutdown(wait=False)
        self._names = database.list_table_names()
        self._tables = {n: spill_frame(getattr(database, n)) for n in self._names if n != _FINDINGS}

    def __getitem__(self, name: str) -> pl.DataFrame:
        return self._compute_findings() if name == _FINDINGS else self._tables[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class DlprofDatabase(AggregatedTables):
    """The tables of a DLProf database. Each table is an attribute, computed on access.

    Attributes:
        rollup: The roll-up from which the tables are computed.
    """

    def list_table_names(self) -> list[str]:
        """Return the names of all tables, in the order in which DLProf writes their first rows."""
        return [*_TABLES_BEFORE_OPS, *self._list_op_table_names(), *_TABLES_AFTER_OPS]

    def cache_shared_frames(self) -> None:
        """Compute and cache the frames from which both the findings and other tables are built.

        Without this call, two threads that access such a frame at the same time would both compute it.
        """
        _ = self.rollup.ops, self.rollup.breakdown

    def _list_op_table_names(self) -> list[str]:
        """Return the names of the tables that DLProf writes op by op, in the order of their first rows."""
        first = (
            self.rollup.select_calls("kind").with_row_index("row").group_by("kind").agg(pl.col("row").min()).sort("row")
        )
        filled = [t for k in first["kind"].cast(pl.String) for t in _TABLES_OF_CALLS[k]]
        possible = [t for names in _TABLES_OF_CALLS.values() for t in names]
        return ["read_only_ops", "read_only_op_instances", *dict.fromkeys([*filled, *possible]), "read_only_sub_ops"]
