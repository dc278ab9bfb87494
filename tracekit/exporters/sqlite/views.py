"""Generate the SQL views that join events with their calls, ranges, threads and devices, or summarize events."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tracekit.exporters.sqlite.keys import list_declared_foreign_keys

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tracekit.exporters.sqlite.keys import ForeignKey, Keys
    from tracekit.schemas import TableSchema


@dataclass(frozen=True, slots=True)
class Details:
    """An SQL view of one table, with additional columns from the tables to which the table refers.

    Attributes:
        view: Name of the view.
        table: Name of the table.
    """

    view: str
    table: str


DETAILS = (
    Details("kernel_details", "kernels"),
    Details("memcpy_details", "memcpys"),
    Details("memset_details", "memsets"),
    Details("graph_launch_details", "graph_launches"),
    Details("sync_details", "syncs"),
    Details("api_call_details", "api_calls"),
    Details("nvtx_range_details", "nvtx_ranges"),
    Details("nvtx_mark_details", "nvtx_marks"),
    Details("osrt_call_details", "osrt_calls"),
    Details("memory_event_details", "memory_events"),
    Details("mpi_call_details", "mpi_calls"),
    Details("op_instance_details", "op_instances"),
)
JOINED = {
    "processes": {"name": "process_name"},
    "threads": {"name": "thread_name"},
    "devices": {"name": "device_name"},
    "streams": {"name": "stream_name"},
    "api_calls": {"name": "api_call_name"},
    "nvtx_ranges": {"domain": "range_domain", "category": "range_category"},
    "ops": {"op_type": "op_type"},
}
"""Columns that a view of details adds, with their names in the view, by the table that contains the columns."""
ACTIVITIES = {
    "kernels": ("kernel", "kernel_id", "name"),
    "memcpys": ("memcpy", "memcpy_id", "copy_kind"),
    "memsets": ("memset", "memset_id", "memory_kind"),
    "graph_launches": ("graph", "graph_launch_id", None),
}
"""Tables in the view ``gpu_activities``: the kind of their rows, their id, and the column with the name."""
_SHARED = ("rank", "start_ns", "end_ns", "process_id", "device_id", "context_id", "stream_id", "correlation_id")
_ADDED = ("api_call_id", "api_start_ns", "thread_id", "range_id", "range_name", "range_path", "op_id", "op_name")
SUMMARIES = {
    "kernel_summary": ("kernels", ("name",)),
    "memcpy_summary": ("memcpys", ("copy_kind",)),
    "api_call_summary": ("api_calls", ("api", "name")),
    "nvtx_range_summary": ("nvtx_ranges", ("domain", "kind", "name")),
    "osrt_call_summary": ("osrt_calls", ("name",)),
}
"""Views with one row per name: the table, and the columns by which its rows are grouped."""


def quote_identifier(name: str) -> str:
    """Return a name as a quoted SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def build_view_queries(schemas: Mapping[str, TableSchema], keys: Keys) -> Iterator[tuple[str, str]]:
    """Yield the name and the SQL query of each view.

    Args:
        schemas: The schemas of the tables in the database.
        keys: The valid keys. Tables without a unique key are not joined, because the join would repeat rows.
    """
    for details in DETAILS:
        if details.table in schemas:
            yield details.view, _build_details_query(schemas, details.table, keys)
    if all(table in schemas for table in ACTIVITIES):
        yield "gpu_activities", _build_activities_query(schemas)
    for view, (table, columns) in SUMMARIES.items():
        if table in schemas:
            yield view, _build_summary_query(table, columns)


def _build_details_query(schemas: Mapping[str, TableSchema], table: str, keys: Keys) -> str:
    schema = schemas[table]
    columns, joins = ["t.*"], []
    names = {name.lower() for name in schema.names}
    if {"start_ns", "end_ns"} <= names:
        columns.append("t.end_ns - t.start_ns AS duration_ns")
    if "api_start_ns" in names:
        columns.append("t.start_ns - t.api_start_ns AS launch_latency_ns")
    for number, key in enumerate(_list_joined_keys(schemas, schema, keys)):
        added = {c: new for c, new in JOINED[key.parent].items() if new not in names}
        names.update(added.values())
        if added:
            alias = f"j{number}"
            columns += [f"{alias}.{quote_identifier(c)} AS {quote_identifier(new)}" for c, new in added.items()]
            pairs = zip(key.columns, key.key, strict=True)
            condition = " AND ".join(
                f"{alias}.{quote_identifier(theirs)} = t.{quote_identifier(own)}" for own, theirs in pairs
            )
            joins.append(f"LEFT JOIN {quote_identifier(key.parent)} AS {alias} ON {condition}")
    return " ".join([f"SELECT {', '.join(columns)} FROM {quote_identifier(table)} AS t", *joins])  # noqa: S608 - names are quoted


def _list_joined_keys(schemas: Mapping[str, TableSchema], schema: TableSchema, keys: Keys) -> Iterator[ForeignKey]:
    """Yield the foreign keys of a table whose parent tables are joined in the details view of the table."""
    for key in list_declared_foreign_keys(schema, schemas):
        is_main = key.columns == key.key
        if is_main and key.parent in JOINED and key.parent in keys.unique and key.parent != schema.name:
            yield key


def _build_activities_query(schemas: Mapping[str, TableSchema]) -> str:
    return " UNION ALL ".join(_build_activity_query(schemas[table], *ACTIVITIES[table]) for table in ACTIVITIES)


def _build_activity_query(schema: TableSchema, kind: str, id_column: str, name_column: str | None) -> str:
    shared = [quote_identifier(c) for c in (*_SHARED, *_ADDED) if c in schema.names]
    named = "NULL" if name_column is None else quote_identifier(name_column)
    added = f"{quote_identifier(id_column)} AS activity_id, {named} AS name, end_ns - start_ns AS duration_ns"
    return f"SELECT '{kind}' AS kind, {added}, {', '.join(shared)} FROM {quote_identifier(schema.name)}"  # noqa: S608 - names are quoted


def _build_summary_query(table: str, columns: Sequence[str]) -> str:
    group = ", ".join(map(quote_identifier, columns))
    durations = ("sum", "total_ns"), ("avg", "average_ns"), ("min", "min_ns"), ("max", "max_ns")
    values = ", ".join(f"{function}(end_ns - start_ns) AS {name}" for function, name in durations)
    rows = f"FROM {quote_identifier(table)} WHERE end_ns IS NOT NULL GROUP BY {group} ORDER BY total_ns DESC"
    return f"SELECT {group}, count(*) AS count, {values} {rows}"
