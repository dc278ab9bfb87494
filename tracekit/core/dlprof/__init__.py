"""A capture as DLProf 1.8.0 kept it: the rows of every table of its database.

``frames`` has what tables are made of, ``recorded`` the tables of what was recorded, ``aggregated`` those of one choice
of iterations. ``strings`` is the dictionary that all texts are kept in, ``metrics`` the table of distinct metrics,
``model`` the figures of the whole, ``advice`` the findings of the expert systems. Times are those of the capture, rows
and ids in DLProf's order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.core.dlprof.aggregated import Aggregated

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracekit.core.rollup import Rollup

_FIRST = (
    *("dictionary", "read_only_domains", "read_only_gpu_infos", "gpu_memories", "read_only_system_config"),
    *("db_version", "read_only_model_config", "read_only_model_info"),
)
_LAST = (
    *("aggregations", "expert_systems_feedback", "iteration_key", "iteration_list", "iteration_aggregation_list"),
    *("category_summary", "model_summary", "device_gpu_utilizations", "metric", "node_time_metrics"),
    *("kernel_time_metrics", "op_nodes", "group_ops", "kernel_summaries", "kernel_iteration_stats"),
    *("kernel_iteration_node", "kernel_summary_metrics", "memory_summary_metrics", "op_type_metrics"),
)
_OF_KIND: Mapping[str, tuple[str, ...]] = {
    "kernel": ("read_only_grid_block", "read_only_kernels"),
    "memset": ("read_only_memsets",),
    "memcpy": ("read_only_memcpys",),
    "sync": ("read_only_cuda_syncs",),
    "call": ("read_only_cuda_calls",),
    "graph": ("read_only_cuda_calls",),
}


def tables(rollup: Rollup) -> dict[str, pl.DataFrame]:
    """Make the rows of every table of the database, without their ids, which are the numbers of the rows from 1.

    Returns:
        Tables by name in the order in which DLProf writes the first row of each; those without rows at the end.
    """
    made = Database(rollup)
    return {name: getattr(made, name) for name in made.order()}


class Database(Aggregated):
    """The tables of the database, each an attribute of its name; made when first asked for.

    Attributes:
        rollup: The roll-up they are made of.
    """

    def order(self) -> list[str]:
        """Names of the tables, in the order in which they get their first row."""
        names = [*_FIRST, *self._op_tables(), *_LAST]
        filled = [n for n in names if getattr(self, n).height]
        return [*filled, *(n for n in names if n not in filled)]

    def _op_tables(self) -> list[str]:
        """Tables that are filled op by op, in the order of their first row."""
        first = self.rollup.children.with_row_index("row").group_by("kind").agg(pl.col("row").min()).sort("row")
        found = [t for k in first["kind"].cast(pl.String) for t in _OF_KIND[k]]
        every = [t for names in _OF_KIND.values() for t in names]
        return ["read_only_ops", "read_only_op_instances", *dict.fromkeys([*found, *every]), "read_only_sub_ops"]
