"""The class ``Trace``, which represents one profile, and functions that load, analyze and convert profiles."""

from __future__ import annotations

import contextlib
import functools
import os
from typing import TYPE_CHECKING, Literal, Self, TypeAlias, TypeVar, cast

from tracekit import registry, schemas
from tracekit.core.select import create_condition
from tracekit.errors import MissingTableError, TracekitError, UnknownFormatError, warn
from tracekit.plan import (
    Aggregation,
    Correlate,
    InMemory,
    JoinGraph,
    JoinNcu,
    OpenedFile,
    Plan,
    PlanStep,
    RecordedTables,
    RollUp,
    SelectRows,
    SelectTables,
    TraceView,
    UseLayers,
)
from tracekit.registry import analyses, detection, tables
from tracekit.registry.absence import Description
from tracekit.registry.source import Source
from tracekit.registry.tables import convert_names, count_rows, read_table, scan_table
from tracekit.system.files import convert_file_url_to_path
from tracekit.text.deprecations import DEPRECATIONS, warn_about_deprecation
from tracekit.text.urls import is_url

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path
    from types import TracebackType

    import polars as pl
    import pyarrow as pa

    from tracekit.core.diagnosis import WhatIf, Why
    from tracekit.core.reports import ReportTable
    from tracekit.core.select import RowCondition
    from tracekit.plan.figures import Plots
    from tracekit.registry.absence import Absence
    from tracekit.registry.analyses import Value
    from tracekit.registry.interface import LaunchMetadata, Progress, Undecoded
    from tracekit.system.files import FileState, Input
    from tracekit.system.remote import KeptCopy
    from tracekit.text.names import ExporterName, ReaderName, ReportName, RuleName, TableName

    Layers: TypeAlias = "str | os.PathLike[str] | Trace"

Result = TypeVar("Result")
CAPTURE = "capture"
"""Names the capture itself as the source of layers."""
QUICK_BYTES = 1 << 27
"""Maximum size of a file whose rows are counted to describe it, because counting larger files may take seconds."""


def load(
    path: str | os.PathLike[str],
    format: ReaderName | str | None = None,  # noqa: A002 - the public name of the argument
    *,
    via: str | None = None,
    cache: bool | None = None,
    layers: Layers | None = None,
) -> Trace:
    """Open a profile, and return its trace. Tables are read when they are first used.

    Args:
        path: File or folder. A file at a URL such as ``https://host/report.nsys-rep`` is downloaded to a temporary
            file, which is deleted when the trace is closed.
        format: Name of the format, such as ``nsys-sqlite``. If None, it is detected from the content.
        via: ``nsys`` reads a report through Nsight Systems: the nsys on the PATH exports the report to a temporary
            SQLite file, which is deleted when the trace is closed. By default, tracekit never runs nsys.
        cache: Whether to read columns from the cache on disk and to store columns in it. Only nsys reports, their
            SQLite exports and PyTorch traces are cached, and only files of at least 16 MiB. If None, the cache is used
            if the environment variable ``TRACEKIT_CACHE`` is ``on``.
        layers: Where the ranges come from that are placed inside the replays of CUDA graphs, as for
            ``Trace.with_layers``. If None, replays have no ranges of their own.

    Returns:
        The trace. Close it, or use it in a ``with`` statement.

    Raises:
        UnknownFormatError: The format is unknown, or no reader recognizes the file.
        TracekitError: The file cannot be read, or nsys is missing or fails.
        CorruptTraceError: The file is damaged.
        FileNotFoundError: The file does not exist.

    Examples:
        >>> import tracekit as tk
        >>> with tk.load("fixtures/train_amp.nsys-rep") as trace:
        ...     trace.count("kernels")
        334
    """
    if layers is not None:
        with contextlib.ExitStack() as stack:
            trace = stack.enter_context(load(path, format, via=via, cache=cache))
            layered = trace.with_layers(layers)
            stack.pop_all()
        return layered
    path = convert_file_url_to_path(path)
    if isinstance(path, str) and is_url(path):
        return load_remote(path, format, via)
    source = Source(path)
    reader = detection.detect_reader(source) if format is None else registry.reader(format)
    if not source.exists:
        raise FileNotFoundError(2, os.strerror(2), str(source.path))
    opened = OpenedFile.from_source(source, reader, via, cache=uses_cache(cache))
    reader = opened.create_reader(source)
    recorded = RecordedTables(opened, opened=opened.open_unchecked(reader, source), path=source.path)
    return Trace(Plan(recorded), path=source.path, format=reader.format)


def load_remote(
    url: str,
    format: str | None,  # noqa: A002
    via: str | None,
    *,
    expected: FileState | None = None,
    kept_copy: KeptCopy | None = None,
) -> Trace:
    """Download the profile at a URL, and return its trace. See ``open_remote`` for the arguments."""
    from tracekit.plan.remote_file import open_remote

    origin, capture = open_remote(url, format, via, expected=expected, kept_copy=kept_copy)
    return Trace(Plan(RecordedTables(origin, opened=capture)), path=origin.path, format=origin.format)


def uses_cache(cache: bool | None, *, default: bool = False) -> bool:  # noqa: FBT001
    """Return whether to use the cache on disk.

    Args:
        cache: The choice of the caller. If None, the environment variable ``TRACEKIT_CACHE`` decides.
        default: Result if ``cache`` is None and the environment variable is not set.
    """
    if cache is None and "TRACEKIT_CACHE" not in os.environ:
        return default
    from tracekit.plan.cache import is_enabled

    return is_enabled(default=default) if cache is None else cache


class Trace:
    """One loaded profile, with all declared tables by name and metadata of the capture. Tables may be empty.

    ``table`` returns any table as an Arrow table, and ``frame`` returns it as a polars LazyFrame. ``devices``,
    ``wide``, ``stats``, ``analyze``, ``ncu_matches`` and ``graph_matches`` return polars DataFrames. ``correlate``,
    ``rollup``, ``select``, ``join_ncu`` and ``join_graph`` return another trace of the same open file. The order of
    these calls does not matter.

    A column is read from the file once, when it is first used, even if several threads use it. It stays in memory until
    the trace is closed. Closing a trace also closes the traces that were derived from it. Tables that were already
    returned stay valid. Reading from a closed trace raises ``TracekitError``.

    A trace can be pickled and copied. The copy opens the file again by its absolute path when it is first used. It
    raises ``TracekitError`` if the size or the modification time of the file has changed. Tables in memory are pickled
    with the trace.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        path: Path | None = None,
        format: str = "memory",  # noqa: A002
    ) -> None:
        self._plan = plan
        self._view = TraceView(plan, path)
        self.path = path
        self.format = format

    @classmethod
    def from_tables(cls, tables: Mapping[str, pa.Table]) -> Trace:
        """Create a trace from Arrow tables in memory. Tables that are not in the mapping are empty.

        Raises:
            SchemaError: A table name is not declared. If a table does not match its declaration, the error is raised
                when the table is read.
        """
        for name in tables:
            schemas.table(name)
        origin = InMemory(dict(tables))
        return cls(Plan(RecordedTables(origin, opened=origin.open())))

    @property
    def tables(self) -> list[TableName]:
        """Names of the tables."""
        return cast("list[TableName]", list(schemas.table_names()))

    @property
    def info(self) -> dict[str, str]:
        """Metadata of the capture, as strings by name.

        The names ``tool``, ``tool_version``, ``schema_version``, ``origin_utc_ns`` and ``duration_ns`` are included if
        the capture contains them.
        """
        return self._view.info

    @functools.cached_property
    def undecoded(self) -> dict[str, Undecoded]:
        """Number and size of the recorded events that are in no table, by class of event, most frequent class first.

        For SQLite exports of nsys, a class is a source table that is not decoded, and its size is unknown.
        Selections do not change the numbers. The mapping is empty if all events are decoded, or if the reader of the
        format does not count events. The first use reads the whole file.

        Raises:
            CorruptTraceError: The file is damaged.

        Examples:
            >>> import tracekit as tk
            >>> tk.load("fixtures/osrt_libs.nsys-rep").undecoded["memory map"]
            Undecoded(count=89, bytes=4726)
        """
        undecoded = self._plan.source.undecoded()
        return dict(sorted(undecoded.items(), key=lambda item: (-item[1].count, item[0])))

    @property
    def devices(self) -> pl.DataFrame:
        """The GPUs of the machine, one row each."""
        return self.frame("devices").collect()

    def __getitem__(self, name: TableName) -> pa.Table:
        return self.table(name)

    def table(self, name: TableName, columns: Sequence[str] | None = None) -> pa.Table:
        """Return a table as an Arrow table with the declared schema. Rows are in the order of the file.

        Args:
            name: Name of the table.
            columns: Names of the columns to read. If None, all columns are read.

        Raises:
            SchemaError: The table or a column does not exist.
            CorruptTraceError: The file is damaged in this table.
        """
        self._warn_about_undecoded_events(name)
        return read_table(self._view.tables, name, columns)

    def frame(self, name: TableName, *, names: Literal["categorical", "string"] = "categorical") -> pl.LazyFrame:
        """Return a table as a polars LazyFrame. Collecting the frame reads only the columns that the query uses.

        Args:
            name: Name of the table.
            names: Type of the columns that contain names and other repeated strings. ``categorical`` takes 4 bytes per
                row. ``string`` returns them as ``String``, whose namespace ``str`` has more methods.

        Raises:
            SchemaError: The table does not exist.
            CorruptTraceError: The file is damaged in this table. The error is raised when the frame is collected.
        """
        self._warn_about_undecoded_events(name)
        return convert_names(scan_table(self._view.tables, name), names)

    def _warn_about_undecoded_events(self, name: str) -> None:
        """Warn if a table has no rows because its events are recorded, but not decoded."""
        if self._plan.source.is_open:
            with contextlib.suppress(TracekitError, OSError):  # reading the table raises the error
                self._plan.source.warn_about_undecoded_events(name)

    def explain_missing_rows(self, name: str) -> Absence:
        """Return why a table, a report or a rule has no rows.

        Args:
            name: Name of a table, of a report, as for ``report``, or of a rule, as for ``analyze``.

        Returns:
            The kind of reason (``state``), the ``reason`` as a clause that follows "because", and a ``hint``, which may
            be None. The states are: not recorded, recorded but not decoded, nothing found, not selected, and does not
            apply.

        Raises:
            UnknownFormatError: The name is unknown.
            CorruptTraceError: The file is damaged.

        Examples:
            >>> import tracekit as tk
            >>> print(tk.load("fixtures/train_amp.sqlite").explain_missing_rows("openacc_sum").reason)
            no openacc_events were recorded
        """
        return self._view.explain_missing_rows(name)

    def schema(self, name: TableName) -> schemas.TableSchema:
        """Return the schema of a table, with its declared columns and the columns that this trace adds.

        Raises:
            SchemaError: The table does not exist.
        """
        return self._view.tables.schema(name)

    def count(self, name: TableName) -> int:
        """Return the number of rows of a table.

        Raises:
            SchemaError: The table does not exist.
        """
        return count_rows(self._view.tables, name)

    def count_all(self) -> dict[str, int]:
        """Return the number of rows of every table, by table name. An ``nsys-rep`` file is read in one pass.

        Raises:
            CorruptTraceError: The file is damaged.

        Examples:
            >>> import tracekit as tk
            >>> {name: n for name, n in tk.load("fixtures/train_amp.sqlite").count_all().items() if n > 500}
            {'api_calls': 781, 'nvtx_ranges': 1534}
        """
        return dict(self._view.tables.count_many(self.tables))

    def span(self) -> tuple[int, int] | None:
        """Return the time span of all GPU activities, API calls, OS runtime calls, NVTX ranges and allocator events.

        Returns:
            The first start and the last end in ns since the trace origin. None if these tables have no rows.

        Raises:
            CorruptTraceError: The file is damaged.

        Examples:
            >>> import tracekit as tk
            >>> tk.load("fixtures/train_amp.sqlite").span()
            (19012963, 497328044)
        """
        from tracekit.plan import presence

        return presence.find_time_span(self._view)

    def correlate(self) -> Trace:
        """Join GPU activities with their API calls and NVTX ranges.

        Returns:
            A trace with the same rows and additional columns. Kernels, memcpys, memsets and graph_launches have the
            API call that launched them, the thread of the call, the innermost push/pop range around the call with its
            path and depth, and the start/end range that was open when the call started. NVTX ranges have their parent,
            depth, path and projection.

        Examples:
            >>> import tracekit as tk
            >>> trace = tk.load("fixtures/graph_node.sqlite").correlate()
            >>> trace.frame("kernels").group_by("range_name").len().sort("range_name").collect().rows()[:3]
            [('capture', 2), ('eager', 25), ('replay 0', 5)]
        """
        return self._with_steps(Correlate())

    def rollup(
        self,
        *,
        key_op: str | None = None,
        iterations: tuple[int | None, int | None] | None = None,
        include_warm_up: bool | None = None,
        dialect: str | None = None,
        tensor_cores: Literal["extended", "dlprof"] = "extended",
    ) -> Trace:
        """Aggregate GPU activities by op, iteration and group of ops.

        If the trace is already rolled up, choosing another key op or other iterations reads nothing from the file.

        Args:
            key_op: Id or name of the op that delimits iterations, or the name of a range, such as ``step``. If None, an
                op is chosen that covers the GPU work. If there is none, the whole capture is one iteration.
            iterations: First and last iteration to aggregate, both inclusive. None stands for the first or the last
                iteration of the capture.
            include_warm_up: Whether the first iterations are aggregated even if they are much slower than the others.
                If None, tables and reports aggregate them, and advice and pages do not. If ``iterations`` are chosen,
                exactly these are aggregated.
            dialect: Name of the conventions by which the ranges are written, such as ``pyprof``. If None, the dialect
                is detected.
            tensor_cores: ``extended`` detects all kernels that are known to use Tensor Cores. ``dlprof`` computes
                everything as DLProf 1.8.0 did, including iterations, means over GPUs and findings.

        Returns:
            A trace in which ``ops``, ``op_instances``, ``iterations`` and ``group_nodes`` have rows. Kernels, memcpys,
            memsets and graph_launches have the same rows and additional columns for their op, which are null if the
            API call was not recorded. Tables and columns are computed when they are first used.

        Raises:
            UnknownFormatError: The dialect does not exist. The error is raised when a table is used.
            TracekitError: The iterations or the key op do not exist. The error is raised when a table is used.

        Examples:
            >>> import tracekit as tk
            >>> trace = tk.load("fixtures/train_amp.sqlite").rollup()
            >>> trace.frame("iterations").select("iteration", "kernel_count").collect().rows()
            [(0, 104), (1, 82), (2, 74), (3, 74)]
            >>> nodes = trace.rollup(iterations=(2, 3)).frame("group_nodes").collect()
            >>> nodes.select("path", "instance_count").row(0)
            ('', 136)
        """
        return self._with_steps(RollUp(Aggregation(key_op, iterations, dialect, tensor_cores, include_warm_up)))

    def report(self, name: ReportName | RuleName, *, options: Mapping[str, bool | int] | None = None) -> ReportTable:
        """Compute a report of ``nsys stats``, DLProf or tracekit, or apply a rule of ``nsys analyze``.

        Args:
            name: Name of the report, as for ``tracekit.stats``, or of a rule, as for ``tracekit.analyze``.
            options: Values of options of the report or rule, by option name. An option without a value is True. Options
                can also follow the name after colons, as in ``um_sum:rows=5``.

        Returns:
            The report. ``frame()`` returns its rows as a polars DataFrame. ``csv(file)`` writes the same bytes as the
            tool that defined the report.

        Raises:
            UnknownFormatError: The report or one of its options does not exist.

        Examples:
            >>> import tracekit as tk
            >>> tk.load("fixtures/train_amp.sqlite").report("op-type").frame().columns[:3]
            ['Op Type', '# Ops', '# Calls']
        """
        return self._view.report(name, options)

    def stats(self, report: ReportName, *, options: Mapping[str, bool | int] | None = None) -> pl.DataFrame:
        """Return the rows of a report, as ``tracekit.stats`` does.

        Args:
            report: Name of the report.
            options: Values of options of the report, by option name.

        Raises:
            UnknownFormatError: The report or one of its options does not exist.
        """
        return self.report(report, options=options).frame()

    def analyze(self, rule: RuleName, *, options: Mapping[str, bool | int] | None = None) -> pl.DataFrame:
        """Return the rows that a rule finds, as ``tracekit.analyze`` does.

        Args:
            rule: Name of the rule.
            options: Values of options of the rule, by option name.

        Raises:
            UnknownFormatError: The rule or one of its options does not exist, or the value of an option is not allowed.
        """
        return self._view.report(rule, options, (analyses.RULE,)).frame()

    def why(self, *, step_time_ns: int | None = None) -> Why:
        """Explain why the steps of the trace take as long as they do.

        The time of the steady steps is divided into a ledger in which each nanosecond is counted once. Causes are found
        by rules, and what the cure of each cause saves is predicted by replaying the events of the steps with an edit.

        Args:
            step_time_ns: Duration of a step without the profiler, in ns. It calibrates the times on the CPU. If None,
                the predicted intervals are wider.

        Returns:
            The answer: one sentence, the ledger, at most five causes ordered by saving, and the warm-up. Captures
            without GPU work have an answer, too.

        Examples:
            >>> import tracekit as tk
            >>> answer = tk.load("fixtures/train_amp.sqlite").why()
            >>> sum(part.ns for part in answer.ledger) == answer.step.median_ns
            True
        """
        from tracekit.core.diagnosis import Options

        return self._view.why(Options(step_time_ns))

    def what_if(self, edits: str | Iterable[str], *, step_time_ns: int | None = None) -> WhatIf:
        """Predict how long the steps of the trace take after edits of their events.

        The events of the steady steps are replayed with other times. An edit consists of a selector and an action, such
        as ``kernel *gemm* x0.5``, ``range data removed``, ``call cudaStreamSynchronize removed``,
        ``copy Host-to-Device pageable =20us`` or ``cause:data_loading``, as for the command ``tracekit what-if``. Edits
        apply one after another.

        Args:
            edits: One or several edits.
            step_time_ns: Duration of a step without the profiler, in ns. It calibrates the times on the CPU.

        Returns:
            The prediction: the duration of a step before and after the edits, what each edit selects, and the ledger of
            the predicted step.

        Raises:
            UnknownFormatError: A text is not an edit, or an edit matches nothing in the steady steps.

        Examples:
            >>> import tracekit as tk
            >>> answer = tk.load("fixtures/train_amp.sqlite").what_if("range * x0.5")
            >>> answer.after_ns < answer.before_ns
            True
        """
        from tracekit.core.diagnosis import Options, check_matches, parse_edits

        parsed = parse_edits(edits)
        answer = self._view.what_if(parsed, Options(step_time_ns))
        check_matches(parsed, answer)
        return answer

    @property
    def plot(self) -> Plots:
        """Methods that draw figures of the trace with plotly.

        Examples:
            >>> import tracekit as tk
            >>> figure = tk.load("fixtures/train_amp.sqlite").plot.top_kernels(3)
            >>> len(figure.data[0].y)
            3
        """
        from tracekit.plan.figures import Plots

        return Plots(self._view)

    def wide(self) -> pl.DataFrame:
        """Return the Nsight Compute results with one column per metric.

        Returns:
            The rows and columns of ``ncu_launches``, with an additional column for each metric of ``ncu_metrics``.
            Numbers are in base units. Values that are not numbers are strings. The column of a metric whose name is
            unknown is called ``section: label``.

        Raises:
            TracekitError: The results have so few common metrics that nearly all cells would be empty.

        Examples:
            >>> import tracekit as tk
            >>> wide = tk.load("fixtures/ncu/ncu_details.csv").wide()
            >>> wide.select("launch_id", "duration_ns", "dram__bytes.sum").rows()[:2]
            [(0, 2370, 5380.0), (1, 2300, 12030.0)]
        """
        from tracekit.core import ncu

        return ncu.add_metric_columns(self.frame("ncu_launches"), self.frame("ncu_metrics"))

    def join_ncu(self, ncu: Trace, *, metrics: Sequence[str] | None = None) -> Trace:
        """Join the kernels with the Nsight Compute results of the same program.

        Results are matched by kernel name (in any spelling), grid and block size, the NVTX ranges around the launch,
        and the order of launches. A kernel whose launch has no result gets the result of another launch with the same
        name, grid and block. The column ``ncu_match`` contains the kind of match.

        Args:
            ncu: A trace with Nsight Compute results of single launches or of groups of launches. It has to stay open
                while the joined trace is used.
            metrics: Names of the metrics to add. If None, all metrics are added.

        Returns:
            A correlated trace. Its kernels have the additional columns ``ncu_launch_id`` and ``ncu_match``, and one
            column per metric. Its Nsight Compute tables are those of ``ncu``.

        Raises:
            MissingTableError: This trace has no kernels, or ``ncu`` has no results.
            SchemaError: ``ncu`` does not have one of the metrics.

        Examples:
            >>> import tracekit as tk
            >>> ncu = tk.load("fixtures/ncu/ncu_basic.ncu-rep")
            >>> joined = tk.load("fixtures/train_amp.nsys-rep").join_ncu(ncu, metrics=["dram__bytes.sum"])
            >>> joined.frame("kernels").select("kernel_id", "ncu_match", "dram__bytes.sum").head(2).collect().rows()
            [(1, 'range', 5376.0), (2, 'range', 12032.0)]
        """
        needed: list[tuple[Trace, TableName, str]] = [
            (self, "kernels", "kernels"),
            (ncu, "ncu_launches", "Nsight Compute results"),
        ]
        for trace, table, what in needed:
            if not trace.count(table):
                raise _create_missing_rows_error(what, trace.path, self.schema(table).recorded_by)
        return self._with_steps(JoinNcu(ncu._plan, None if metrics is None else tuple(metrics)))

    def with_layers(self, layers: Layers = "capture") -> Trace:
        """Place the ranges in which CUDA graphs were captured inside the replays of the graphs.

        All activities of a replay belong to the API call that launches the graph. In the returned trace, the table
        ``nvtx_ranges`` has additional rows: for each replay, copies of the ranges that contain nodes of its graph. The
        copies lie inside of the API call, in the order of the captured ranges, and the activities are launched in
        them. Roll-ups, reports, figures and exports therefore group the activities of graphs by layer.

        Args:
            layers: ``capture`` takes the ranges from this capture: those in which the nodes of the graphs were created.
                If the graphs were captured before the recording began, a trace or the path of a second capture of the
                same program, in which the same kernels ran in their ranges. A trace has to stay open while the returned
                trace is used.

        Returns:
            The layered trace. Copied ranges have a ``captured_range_id``, and moved activities have a ``launch_ns``. A
            warning states which replays have no layers, and why.

        Raises:
            UnknownFormatError: ``layers`` is neither ``capture`` nor a path nor a trace.

        Examples:
            >>> import tracekit as tk
            >>> layered = tk.load("fixtures/layers/layers_inside.nsys-rep").with_layers()
            >>> groups = layered.rollup().frame("group_nodes").collect()
            >>> groups.filter(path="step */capture/layer 0/").select("instance_count", "gpu_time_ns").rows()
            [(16, 307685)]
        """
        if layers == CAPTURE:
            return self._with_steps(UseLayers())
        if layers == "" or not isinstance(layers, str | os.PathLike | Trace):
            hint = "pass capture, the path of a second capture, or its trace"
            raise UnknownFormatError(f"layers cannot be {layers!r}", hint=hint)
        recorded = layers if isinstance(layers, Trace) else load(layers)
        plan = get_trace_view(recorded).plan
        if recorded is not layers:
            self._plan.source.close_together(plan.source)
        return self._with_steps(UseLayers(plan))

    def ncu_matches(self) -> pl.DataFrame:
        """Count kernels by the kind of match with Nsight Compute results.

        Returns:
            One row per kind of match (``match``), with the number of ``kernels``, their ``share`` of all kernels, and
            the number of different results (``launches``). The row in which ``match`` is null counts kernels without a
            result and results without a kernel. The frame has no rows if the trace was not joined by ``join_ncu``.

        Examples:
            >>> import tracekit as tk
            >>> ncu = tk.load("fixtures/ncu/ncu_basic.ncu-rep")
            >>> tk.load("fixtures/train_amp.nsys-rep").join_ncu(ncu).ncu_matches().select("match", "kernels").rows()
            [('range', 11), ('order', 1), ('shape', 48), (None, 274)]
        """
        from tracekit.core.ncu import join

        if "ncu_match" not in self.schema("kernels").names:
            return join.count_matches_by_kind(None, None)
        launches = self.frame("ncu_launches").select("launch_id").collect()
        return join.count_matches_by_kind(
            self.frame("kernels").select("ncu_launch_id", "ncu_match").collect(), launches
        )

    def join_graph(self, graph: Trace) -> Trace:
        """Join the nodes of a graph with the ops of this capture.

        An op is matched with the first of these nodes that exists:

        - the node with the same name,
        - the node whose name differs only in characters that node names cannot contain,
        - the node whose name ends with the op name or is itself the end of the op name,
        - the scope or node that contains the op.

        Args:
            graph: A trace with a graph, loaded from a GraphDef, a SavedModel or an event file. It has to stay open
                while the joined trace is used.

        Returns:
            A rolled-up trace. Its ``graph_nodes`` and ``graph_edges`` are those of ``graph``. Nodes have additional
            columns for the matched op, counts, CPU and GPU times, and the use of Tensor Cores. The report
            ``graph_summary`` aggregates the nodes by scope.

        Raises:
            MissingTableError: This trace has no ops, or ``graph`` has no nodes.

        Examples:
            >>> import tempfile, tracekit as tk
            >>> trace = tk.load("fixtures/train_amp.sqlite")
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     graph = tk.load(trace.export(f"{folder}/run", format="tfevents"))
            ...     nodes = trace.join_graph(graph).frame("graph_nodes").collect()
            >>> nodes.select("name", "op_id", "op_match", "gpu_time_ns").row(2)
            ('Batch/Copy_to_device/aten_to', 'TO_1', 'spelling', 264478)
        """
        joined = self._with_steps(JoinGraph(graph._plan))
        needed: list[tuple[Trace, TableName, str]] = [
            (self, "ops", "ops"),
            (graph, "graph_nodes", "nodes of a graph"),
        ]
        for trace, table, what in needed:
            if not joined.count(table):
                raise _create_missing_rows_error(what, trace.path, self.schema(table).recorded_by)
        return joined

    def graph_matches(self) -> pl.DataFrame:
        """Count ops by the kind of match with nodes of a graph.

        Returns:
            One row per kind of match (``match``), with the number of ``ops``, their GPU time (``gpu_time_ns``), and the
            ``share`` of this time in the GPU time of all ops. The row in which ``match`` is null counts ops that are
            not in the graph. The frame has no rows if the trace was not joined by ``join_graph``.
        """
        from tracekit.core.graph import join

        ops, nodes = (
            scan_table(self._view.tables, table).select(columns).collect()
            for table, columns in (("ops", join.OP_COLUMNS), ("graph_nodes", join.NODE_COLUMNS))
        )
        return (
            join.count_matches_by_kind(ops, nodes) if nodes.height else join.count_matches_by_kind(ops.clear(), nodes)
        )

    def select(
        self,
        *,
        time: tuple[int | None, int | None] | None = None,
        devices: Sequence[int] | None = None,
        domains: Sequence[str] | None = None,
        min_duration_ns: int | None = None,
        tables: Sequence[TableName] | None = None,
        nvtx: str | None = None,
    ) -> Trace:
        """Return a trace with only the rows that match all conditions.

        A roll-up is computed from the selected rows, whether ``rollup`` is called before or after ``select``.
        Correlation uses all rows, so that selected kernels keep ranges that are not selected. However, tables that are
        not in ``tables`` are empty for correlation as well.

        Args:
            time: Select rows that overlap ``[a, b)`` in ns since the trace origin. A bound that is None does not
                restrict the selection. Nsight Compute results have no times and are always selected, with a warning
                if the trace has no kernels.
            devices: Select GPU activities of these devices.
            domains: Select NVTX ranges and marks of these domains. "" is the default domain.
            min_duration_ns: Select rows with at least this duration in ns.
            tables: Names of the tables to select. If None, all tables are selected.
            nvtx: Select events that overlap an NVTX range of their process, written as ``RANGE[@DOMAIN][/INDEX]``.
                For a push/pop range outside the main thread, only CPU events of its thread are selected. Without a
                domain, the range is in the default domain. The index counts ranges of this name by start, from 0. A
                backslash before ``@`` or ``/`` makes it part of a name.

        Returns:
            The trace. If ``select`` is called on it again, rows have to match both selections.

        Raises:
            SchemaError: A table does not exist.
            TracekitError: The capture does not contain a selected GPU or NVTX range, or has no events in the selected
                time. The hint lists the GPUs, the ranges, or the time of the events.

        Examples:
            >>> import tracekit as tk
            >>> trace = tk.load("fixtures/graph_node.sqlite")
            >>> trace.count("kernels"), trace.select(time=(40_000_000, 50_000_000)).count("kernels")
            (52, 28)
            >>> trace.select(nvtx="eager").count("api_calls")
            15
        """
        from tracekit.plan import presence

        for name in tables or ():
            self.schema(name)
        values = {
            "time": time,
            "devices": devices,
            "domains": domains,
            "min_duration_ns": min_duration_ns,
        }
        values = {name: value for name, value in values.items() if value is not None}
        presence.check_selection(self._view, values)
        conditions = {create_condition(name, value) for name, value in values.items()}
        if nvtx is not None:
            conditions |= self._find_conditions_of_range(nvtx)
        steps: list[PlanStep] = [SelectRows(frozenset(conditions))]
        if tables is not None:
            steps.append(SelectTables(frozenset(tables)))
        if time is not None:
            self._warn_about_missing_timestamps()
        return self._with_steps(*steps)

    def _warn_about_missing_timestamps(self) -> None:
        """Warn that a time selection does not apply to Nsight Compute results, if the trace has no kernels."""
        if self.count("ncu_launches") and not self.count("kernels"):
            message = "the time selection does not apply to Nsight Compute results, which have no timestamps"
            warn(message, path=self.path)

    def _find_conditions_of_range(self, nvtx: str) -> set[RowCondition]:
        """Find an NVTX range, and return the conditions of the events that overlap it in its process and thread.

        The range is found even if an earlier selection excludes it.
        """
        from tracekit.core.nvtx_instance import find_range_instance

        instance = find_range_instance(scan_table(self._plan.source, "nvtx_ranges"), nvtx, self.path)
        values = {
            "time": (instance.start_ns, instance.end_ns),
            "process_id": instance.process_id,
            "thread_id": instance.thread_id,
        }
        return {create_condition(name, value) for name, value in values.items() if value is not None}

    def export(
        self,
        path: str | os.PathLike[str],
        *,
        format: ExporterName | str | None = None,  # noqa: A002
        tables: Sequence[TableName] | None = None,
        overwrite: bool = False,
        options: Mapping[str, Value] | None = None,
        progress: Progress | None = None,
    ) -> Path:
        """Write the trace in another format. The output is written completely or not at all.

        Args:
            path: File to write, or folder for formats with one file per table.
            format: Name of the format. If None, the suffix of the path determines the format.
            tables: Names of the tables to write. A format with one file per table writes a single table as one file.
                If None, all tables are written except the large tables that are declared as optional,
                ``ncu_metric_instances`` and ``ncu_sources``.
            overwrite: Whether to replace an existing output.
            options: Values of options of the exporter, by option name. They may be texts, as on the command line.
            progress: Callback that receives the number of rows written so far and the number of all rows.

        Returns:
            The path of the output.

        Raises:
            UnknownFormatError: The format or one of its options does not exist.
            ExportError: The output exists or cannot be written, or the name of a folder for several tables has the
                suffix of a file.

        Examples:
            >>> import tempfile, tracekit as tk
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     tk.load("fixtures/graph_node.sqlite").export(f"{folder}/trace.json.gz").name
            'trace.json.gz'
        """
        from tracekit.plan import exporting

        chosen = registry.find_exporter_for(path) if format is None else registry.exporter(format)
        chosen = chosen.with_options(options or {})
        # Added columns of a table are computed from tables that are not written.
        trace = self.select(tables=tables if chosen.write_table is None else None)
        trace = trace.correlate() if chosen.correlated else trace
        if format is None and exporting.has_one_file_per_table(chosen, tables):
            chosen.check_folder(path)
        view = trace._view  # noqa: SLF001 - another trace
        return exporting.write_trace(view, path, chosen, tables=tables, overwrite=overwrite, progress=progress)

    @property
    def inputs(self) -> tuple[Input, ...]:
        """Files and folders from which this trace is read. An output must not replace any of them."""
        from tracekit.plan import exporting

        return exporting.list_input_files_of_trace(self._view)

    def close(self) -> None:
        """Close the file, and free the cached columns of this trace and of all traces of the same open file."""
        self._plan.source.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __contains__(self, name: object) -> bool:
        """Return whether a table with this name is declared. The table may be empty."""
        return name in schemas.table_names()

    if not TYPE_CHECKING:  # so that type checkers report unknown attributes

        def __getattr__(self, name: str) -> object:
            return self._get_deprecated_attribute(name)

    def _get_deprecated_attribute(self, name: str) -> object:
        """Return an attribute under its former name, with a warning."""
        if f"Trace.{name}" not in DEPRECATIONS:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
        warn_about_deprecation(f"Trace.{name}", stacklevel=3)
        if name == "counts":
            return self.count_all
        if name == "model":
            return self._view.model
        return functools.partial(tables.read_chunks if name == "pieces" else tables.prefetch, self._view.tables)

    def __iter__(self) -> Iterator[TableName]:
        """Iterate over the names of the tables."""
        return iter(self.tables)

    def __len__(self) -> int:
        """Return the number of tables."""
        return len(self.tables)

    def __repr__(self) -> str:
        return f"<tracekit.Trace {self._build_description().to_line()}>"

    def _repr_html_(self) -> str:
        return self._build_description().to_html()

    def _ipython_key_completions_(self) -> list[TableName]:
        return self.tables

    def _build_description(self) -> Description:
        """Return a description of the trace, without metadata that cannot be read or takes long to compute."""
        basic = Description(self.format, self.path)
        if not self._plan.source.is_open:
            return basic
        try:
            devices = tuple(self.devices["name"].cast(str))
            counts = self.count_all() if self._can_count_quickly() else {}
            return Description(self.format, self.path, self.info.get("duration_ns", ""), devices, counts)
        except (TracekitError, OSError):
            return basic

    def _can_count_quickly(self) -> bool:
        """Return whether the file is small, and no table has to be computed before its rows can be counted."""
        is_small = self.path is None or not self.path.is_file() or self.path.stat().st_size <= QUICK_BYTES
        return is_small and self._plan == Plan(self._plan.source)

    def __reduce__(self) -> tuple[Callable[..., Trace], tuple[Plan, str]]:
        return _create_trace_from_plan, (self._plan, self.format)

    def __copy__(self) -> Trace:
        return _create_trace_from_plan(self._plan.reopen(), self.format)

    def __deepcopy__(self, memo: object) -> Trace:
        return self.__copy__()

    def _with_steps(self, *steps: PlanStep) -> Trace:
        """Return a trace with additional steps, such as a selection, in the plan by which its tables are computed."""
        return Trace(self._plan.add_steps(*steps), path=self.path, format=self.format)


def convert(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    to: ExporterName | str | None = None,
    source_format: ReaderName | str | None = None,
    overwrite: bool = False,
    format: str | None = None,  # noqa: A002
) -> Path:
    """Convert a file from one format to another.

    Args:
        source: File to read.
        target: File or folder to write.
        to: Name of the format to write. If None, the suffix of the target determines the format.
        source_format: Name of the format to read. If None, it is detected from the content.
        overwrite: Whether to replace an existing output.
        format: Deprecated name of ``source_format``.

    Returns:
        The path of the output.

    Raises:
        TracekitError: The file cannot be loaded or exported, see ``load`` and ``Trace.export``.

    Examples:
        >>> import tempfile, tracekit as tk
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     tk.convert("fixtures/graph_node.sqlite", f"{folder}/tables", to="parquet").name
        'tables'
    """
    if format is not None:
        warn_about_deprecation("convert(format=)")
    with load(source, source_format or format) as trace:
        return trace.export(target, format=to, overwrite=overwrite)


def write_table(
    trace: Trace,
    name: TableName,
    path: str | os.PathLike[str],
    *,
    format: str | None = None,  # noqa: A002
    overwrite: bool = False,
) -> Path:
    """Write one table of a trace to a file, in a format with one file per table."""
    from tracekit.plan import exporting

    chosen = registry.find_exporter_for(path) if format is None else registry.exporter(format)
    view = trace._view  # noqa: SLF001 - exporters take the view
    return exporting.write_table(view, name, path, chosen.with_options({}), overwrite=overwrite)


def read_launch_metadata(trace: Trace) -> LaunchMetadata:
    """Return the recorded rank variables, such as ``RANK``, and the recorded host of the profiled program."""
    return trace._plan.source.read_launch_metadata()  # noqa: SLF001 - the plan is for functions of this package


def get_trace_view(trace: Trace) -> TraceView:
    """Return the view through which exporters read a trace."""
    return trace._view  # noqa: SLF001 - the view is for exporters and functions of this package


def prefetch(trace: Trace, columns: Mapping[str, Sequence[str] | None]) -> None:
    """Read and cache columns of several tables of a trace, in one pass over the file if its format allows.

    Args:
        trace: The trace.
        columns: Names of the columns to read, by table name. The value None selects all columns of a table.
    """
    tables.prefetch(get_trace_view(trace).tables, columns)


def call_with_tables(
    trace: Trace, function: Callable[[Callable[[str], pl.LazyFrame]], Result], *, key: Hashable = None
) -> Result:
    """Call a function with access to the tables of a trace, and return its result.

    Args:
        trace: The trace.
        function: Function that is called with one argument: a function that returns a table as a LazyFrame, given the
            table name. Which columns ``function`` reads must not depend on the values in the tables. These columns are
            read in one pass over the file if its format allows.
        key: Value that identifies the function and its arguments. The columns that the function reads are determined
            only once per key for all traces with the same columns. If None, they are determined in each call.
    """
    return trace._view.compute(function, key)  # noqa: SLF001 - the view is for exporters and functions of this package


def _create_missing_rows_error(plural_noun: str, path: Path | None, recorded_by: str | None) -> MissingTableError:
    """Return the error to raise if a trace lacks the rows that are to be joined."""
    hint = None if recorded_by is None else f"record them with {recorded_by}"
    return MissingTableError(f"the trace has no {plural_noun} to join", path=path, hint=hint)


def _create_trace_from_plan(plan: Plan, format: str) -> Trace:  # noqa: A002
    """Return the trace of a plan. The file of the trace is opened when the trace is first used."""
    in_memory = isinstance(plan.source.origin, InMemory)
    return Trace(plan, path=None if in_memory else plan.source.path, format=format)
