"""Compute the answers to the questions of the tools. These functions run in the worker process."""

from __future__ import annotations

import hashlib
import os
import stat
from collections import OrderedDict
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import polars as pl

from tracekit import schemas
from tracekit.answers import answer, answer_diff, answer_what_if
from tracekit.answers.build import Asked
from tracekit.answers.envelope import AnswerColumn
from tracekit.answers.tables import DURATION_COLUMN, build_table
from tracekit.errors import SchemaError, TracekitError, collect_warnings, create_choices_hint
from tracekit.mcp.sql import run_query
from tracekit.registry import detection
from tracekit.registry.source import Source
from tracekit.sets.frames import RANK
from tracekit.sets.notices import explain_missing_rows
from tracekit.sets.trace_set import open_captures

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import pyarrow as pa

    from tracekit.answers.envelope import AnswerTable, Envelope
    from tracekit.mcp.private_text import PrivateTextMask
    from tracekit.mcp.roots import AllowedFolders
    from tracekit.sets import TraceSet
    from tracekit.text.names import TableName
    from tracekit.trace import Trace

    TraceOrSet: TypeAlias = Trace | TraceSet

Arguments: TypeAlias = "Mapping[str, Any]"
WORK = {
    "kernel": "cuda_gpu_kern_sum",
    "op": "op-type",
    "range": "nvtx_gpu_proj_sum",
    "category": "kernel_categories",
    "api": "cuda_api_sum",
    "memory": "cuda_gpu_mem_time_sum",
    "layer": "layer_gpu_sum",
}
"""The report that sums the work by each kind of part."""
RECORDED_TABLES = (
    *("kernels", "memcpys", "memsets", "syncs", "api_calls", "nvtx_ranges", "osrt_calls", "cpu_samples"),
    *("python_samples", "gpu_metrics", "memory_events", "cuda_graph_node_events", "communication_calls", "stacks"),
)
"""Tables that ``how_to_record`` describes unless others are named."""
MAX_OPEN = 3
"""Maximum number of captures that stay open."""
MAX_LISTED = 2000
"""Maximum number of captures that are listed."""
_SHOWN_COLUMNS = (
    *("name", "short_name", "text", "op_name", "domain", "category", "start_ns", "end_ns", "bytes", "copy_kind"),
    *("device_id", "stream_id", "process_id", "thread_id", "correlation_id", "value"),
)
_STEP = "Step"
_RECORDING_COLUMNS = (
    AnswerColumn("table", "string", None, "Name of the table."),
    AnswerColumn("rows", "int64", None, "Number of recorded rows."),
    AnswerColumn("state", "string", None, "recorded, or why there are no rows."),
    AnswerColumn("reason", "string", None, "Why there are no rows, as a clause, or null."),
    AnswerColumn("hint", "string", None, "What to do, such as the option that records the rows, or null."),
)


@dataclass(frozen=True, slots=True)
class QuestionLimits:
    """What the computation of an answer may use.

    Attributes:
        seconds: Time in seconds after which a query is interrupted.
        memory_bytes: Memory in bytes that a query may use.
    """

    seconds: float
    memory_bytes: int


class Questioner:
    """Answers questions about captures, the last of which stay open."""

    def __init__(self, folders: AllowedFolders, mask: PrivateTextMask, limits: QuestionLimits) -> None:
        self._folders = folders
        self._mask = mask
        self._limits = limits
        self._open: OrderedDict[tuple[str, str], TraceOrSet] = OrderedDict()

    def answer(self, question: str, arguments: Arguments) -> Any:
        """Return the answer to a question as JSON, without private values.

        Args:
            question: Name of the tool.
            arguments: Arguments of the tool, with resolved paths of captures.

        Raises:
            TracekitError: The question cannot be answered.
        """
        functions: Mapping[str, Callable[[Arguments], Any]] = {
            "compare": self._compare,
            "explain_slow_step": self._explain_slow_step,
            "explain_step": self._explain_step,
            "how_to_record": self._explain_recording,
            "list_captures": self._list_captures,
            "look_up_rows": self._look_up_rows,
            "open_capture": self._describe,
            "predict": self._predict,
            "query": self._query,
            "run_analysis": self._run_analysis,
            "timeline_slice": self._slice_timeline,
            "top_work": self._sum_work,
        }
        result = functions[question](arguments)
        if isinstance(result, dict):
            return self._mask.mask_answer(result) | {"captures": result["captures"]}
        return self._mask_envelope(result)

    def mask_error(self, error: TracekitError) -> str:
        """Return the message and the hint of an error, without private values and absolute paths of captures."""
        return self._mask.mask_text(str(error))

    def _mask_envelope(self, envelope: Envelope) -> dict[str, Any]:
        """Return the JSON of an envelope without private values, and with paths relative to the roots."""
        paths = [self._folders.show(Path(each.path).absolute()) for each in envelope.inputs]
        masked: dict[str, Any] = self._mask.mask_answer(self._mask.mask_programs(envelope).to_dict())
        for each, path in zip(masked["inputs"], paths, strict=True):
            each["path"] = path
        return masked

    def _get(self, path: str) -> TraceOrSet:
        """Return the capture or captures at a path, which stay open until others were used more recently."""
        key = (path, _compute_fingerprint(Path(path)))
        if key not in self._open:
            for other in [other for other in self._open if other[0] == path]:
                self._open.pop(other).close()
            self._open[key] = open_captures(path)
            while len(self._open) > MAX_OPEN:
                self._open.popitem(last=False)[1].close()
        self._open.move_to_end(key)
        return self._open[key]

    def _list_captures(self, arguments: Arguments) -> dict[str, Any]:
        pattern = (arguments.get("name_contains") or "").lower()
        listed: list[dict[str, Any]] = []
        for path in self._iterate_files():
            if pattern not in path.name.lower():
                continue
            try:
                reader = detection.find_reader(Source(path))
                size = path.stat().st_size if path.is_file() else None
            except (TracekitError, OSError):  # it was removed or replaced meanwhile, or nobody can tell what it is
                continue
            if reader is not None:
                listed.append({"path": self._folders.show(path), "format": reader.format, "bytes": size})
            if len(listed) >= MAX_LISTED:
                break
        return {"captures": listed, "is_complete": len(listed) < MAX_LISTED}

    def _iterate_files(self) -> Iterator[Path]:
        """Yield the files in the roots whose names do not begin with a dot, in the order of their names."""
        pending = list(reversed(self._folders.folders.values()))
        while pending:
            try:
                entries = sorted(pending.pop().iterdir())
            except OSError:
                continue
            visible = [path for path in entries if not path.name.startswith(".") and not path.is_symlink()]
            yield from (path for path in visible if path.is_file() or path.name.endswith(("_pqtdir", "_arwdir")))
            pending.extend(reversed([path for path in visible if path.is_dir()]))

    def _describe(self, arguments: Arguments) -> Envelope:
        return answer(self._get(arguments["capture"]), "info")

    def _explain_slow_step(self, arguments: Arguments) -> Envelope:
        return answer(self._get(arguments["capture"]), "why", step_time_ns=arguments.get("step_time_ns"))

    def _predict(self, arguments: Arguments) -> Envelope:
        traces = self._get(arguments["capture"])
        return answer_what_if(traces, arguments["edits"], step_time_ns=arguments.get("step_time_ns"))

    def _compare(self, arguments: Arguments) -> Envelope:
        return answer_diff(arguments["a"], arguments["b"], by=arguments.get("by"), limit=arguments["limit"])

    def _run_analysis(self, arguments: Arguments) -> Envelope:
        traces = self._get(arguments["capture"])
        return answer(
            traces,
            arguments["name"],
            kind=arguments["kind"],
            options=arguments.get("options"),
            limit=arguments["limit"],
        )

    def _sum_work(self, arguments: Arguments) -> Envelope:
        traces = self._get(arguments["capture"])
        return answer(traces, WORK[arguments["by"]], kind="report", limit=arguments["limit"])

    def _explain_step(self, arguments: Arguments) -> Envelope:
        envelope = answer(self._get(arguments["capture"]), ["step_parts", "step_ledger"], kind="report")
        step = arguments.get("step")
        if step is None:
            return replace(envelope, results=envelope.results[:1])
        results = tuple(_select_step(table, step) for table in envelope.results)
        if not any(table.rows for table in results) and envelope.status == "answered":
            numbers = {row[_find_column(envelope.results[0], _STEP)] for row in envelope.results[0].rows}
            known = sorted(number for number in numbers if isinstance(number, int))
            shown = f"{known[0]} to {known[-1]}" if known else "none"
            raise TracekitError(f"the capture has no step {step}", hint=f"its steps are {shown}")
        return replace(envelope, question=replace(envelope.question, scope={"step": step}), results=results)

    def _slice_timeline(self, arguments: Arguments) -> Envelope:
        traces = self._get(arguments["capture"])
        time = (arguments["start_ns"], arguments["end_ns"])
        if time[0] >= time[1]:
            raise TracekitError(f"the time from {time[0]} to {time[1]} ns is empty", hint="end_ns must be larger")
        names: tuple[TableName, ...] = tuple(dict.fromkeys(arguments["tables"]))
        limit = arguments["limit"]
        with collect_warnings() as texts:
            selected = traces.select(time=time, min_duration_ns=arguments.get("min_duration_ns"))
            results = [_select_longest(selected, name, limit) for name in names]
            scope = {"time": list(time), "min_duration_ns": arguments.get("min_duration_ns")}
            return Asked("rows", names, traces, scope, limit, texts).wrap_tables(results, names)

    def _look_up_rows(self, arguments: Arguments) -> Envelope:
        traces, table = self._get(arguments["capture"]), arguments["table"]
        schema = traces.schema(table)
        key = arguments.get("column") or next((each for each in schema.key if each != RANK), None)
        frame = traces.frame(table, names="string")
        columns = frame.collect_schema()
        if key is None or columns.get(key) is None or not columns[key].is_integer():
            integers = [name for name, kind in columns.items() if kind.is_integer()]
            raise SchemaError(
                f"table {table!r} has no column {key!r} of ids", hint=create_choices_hint("columns", integers, str(key))
            )
        with collect_warnings() as texts:
            selection = frame.filter(pl.col(key).cast(pl.Int64, strict=False).is_in(arguments["ids"]))
            if arguments.get("rank") is not None and RANK in columns:
                selection = selection.filter(pl.col(RANK) == arguments["rank"])
            rows = _select_columns(selection, arguments.get("columns"), table).collect()
            absences = explain_missing_rows(traces, table) if traces.count(table) == 0 else []
            result = build_table(
                table, table, rows.head(arguments["limit"]), [*schema], absences=absences, row_count=rows.height
            )
            scope = {"column": key, "ids": list(arguments["ids"])}
            return Asked("rows", (table,), traces, scope, arguments["limit"], texts).wrap_tables([result], [table])

    def _query(self, arguments: Arguments) -> Envelope:
        traces = self._get(arguments["capture"])

        def count_rows(name: str) -> int:
            return traces.count(name)  # type: ignore[arg-type]

        def read_table(name: str) -> pa.Table:
            return self._mask.mask_table(name, traces.table(name))  # type: ignore[arg-type]

        with collect_warnings() as texts:
            result, names = run_query(
                arguments["sql"],
                count_rows,
                read_table,
                memory_bytes=self._limits.memory_bytes,
                seconds=self._limits.seconds,
            )
            asked = Asked("rows", names, traces, {"sql": arguments["sql"]}, None, texts)
            envelope = asked.wrap_tables([result], [name for name in names if name in schemas.table_names()])
            if result.reason and result.rows:
                envelope = replace(envelope, warnings=(*envelope.warnings, result.reason))
            return envelope

    def _explain_recording(self, arguments: Arguments) -> Envelope:
        traces = self._get(arguments["capture"])
        names: Sequence[str] = arguments.get("tables") or RECORDED_TABLES
        counts = traces.count_all()
        rows: list[tuple[str, int, str, str | None, str | None]] = []
        for name in dict.fromkeys(names):
            count = counts.get(traces.schema(name).name, 0)  # type: ignore[arg-type]
            absences = [] if count else explain_missing_rows(traces, name)
            reasons = "; ".join(each.reason for each in absences) or None
            hints = "; ".join(dict.fromkeys(each.hint for each in absences if each.hint)) or None
            rows.append((name, count, absences[0].state.value if absences else "recorded", reasons, hints))
        kinds = {column.name: pl.Int64 if column.type == "int64" else pl.String for column in _RECORDING_COLUMNS}
        frame = pl.DataFrame(rows, schema=kinds, orient="row")
        result = build_table("how_to_record", "how_to_record", frame, _RECORDING_COLUMNS)
        return Asked("info", ("how_to_record",), traces).wrap_tables([result], list(dict.fromkeys(names)))


def _compute_fingerprint(path: Path) -> str:
    """Return a text that changes whenever a file changes, or any file in a folder and its subfolders."""
    digest = hashlib.blake2b(digest_size=16)
    pending = [path]
    while pending:
        current = pending.pop()
        state = current.stat()
        fields = (os.fspath(current), state.st_ino, state.st_mtime_ns, state.st_size)
        digest.update(repr(fields).encode("utf-8", "backslashreplace"))
        if stat.S_ISDIR(state.st_mode) and not (current != path and current.is_symlink()):
            pending.extend(sorted(current.iterdir()))
    return digest.hexdigest()


def _find_column(table: AnswerTable, name: str) -> int:
    return next(index for index, column in enumerate(table.columns) if column.name == name)


def _select_step(table: AnswerTable, step: int) -> AnswerTable:
    """Return the rows of a table that are about one step."""
    index = _find_column(table, _STEP)
    selection = [number for number, row in enumerate(table.rows) if row[index] == step]
    evidence = tuple(table.evidence[number] for number in selection) if table.evidence else ()
    return replace(
        table, rows=tuple(table.rows[number] for number in selection), row_count=len(selection), evidence=evidence
    )


def _select_columns(frame: pl.LazyFrame, names: Sequence[str] | None, table: str) -> pl.LazyFrame:
    """Return a frame with only some columns.

    Raises:
        SchemaError: A column does not exist.
    """
    known = frame.collect_schema().names()
    for name in names or ():
        if name not in known:
            hint = create_choices_hint("columns", known, name)
            raise SchemaError(f"table {table!r} has no column {name!r}", hint=hint)
    return frame.select(list(dict.fromkeys(names))) if names else frame


def _select_longest(traces: TraceOrSet, name: TableName, limit: int) -> AnswerTable:
    """Return the longest rows of a table, with the columns that tell most, the longest row first.

    Raises:
        SchemaError: The table has no times.
    """
    frame, schema = traces.frame(name, names="string"), traces.schema(name)
    known = frame.collect_schema().names()
    if not {"start_ns", "end_ns"} <= set(known):
        raise SchemaError(f"the rows of table {name!r} have no start and end", hint="use look_up_rows or query")
    shown = [each for each in known if each in (RANK, *schema.key, *_SHOWN_COLUMNS)]
    duration = (pl.col("end_ns") - pl.col("start_ns")).alias(DURATION_COLUMN.name)
    rows = frame.select(*shown, duration)
    count = rows.select(pl.len()).collect().item()
    # equally long rows are ordered by their start and key, so that an answer is always the same
    order = [DURATION_COLUMN.name, *dict.fromkeys(["start_ns", *(c for c in (RANK, *schema.key) if c in shown)])]
    is_ascending = [column != DURATION_COLUMN.name for column in order]
    longest = rows.top_k(limit, by=order, reverse=is_ascending).collect()
    ordered = longest.sort(order, descending=[not each for each in is_ascending], nulls_last=True)
    absences = explain_missing_rows(traces, name) if not count else []
    return build_table(name, name, ordered, [*schema, DURATION_COLUMN], absences=absences, row_count=count)
