"""Trace: the named tables of one loaded profile, and the verbs on it."""

from __future__ import annotations

import functools
import os
import threading
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

from tracekit import presence, registry, schemas, targets
from tracekit.describe import Description
from tracekit.errors import ExportError, MissingTableError, TracekitError, UnknownFormatError, warn
from tracekit.layers import (
    Aggregation,
    File,
    InMemory,
    Layer,
    LiveLayer,
    OpenedFile,
    Recipe,
    Selected,
    Selection,
    to_frame,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import TracebackType

    import polars as pl
    import pyarrow as pa

    from tracekit.core.dlprof.reports import DlprofReport
    from tracekit.core.reports import ReportTable
    from tracekit.layers.recipe import Step
    from tracekit.registry import Exporter, Progress, View

WRITERS = 4
QUICK_BYTES = 1 << 27
"""Rows of a larger file are not counted only to describe it: that may take seconds."""


def load(
    path: str | os.PathLike[str],
    format: str | None = None,  # noqa: A002 - the word of the API
    *,
    via: str | None = None,
) -> Trace:
    """Open a profile; its tables are read when they are asked for.

    Args:
        path: File or folder.
        format: Name of a reader, ``nsys-sqlite``; None recognises the content.
        via: ``nsys`` lets the nsys on the PATH export a report to a temporary SQLite file, which is read and, when the
            trace is closed, deleted. Unless asked to, tracekit never runs nsys.

    Returns:
        The trace.

    Raises:
        UnknownFormatError: No reader has that name, or none recognises the file.
        TracekitError: The file cannot be read, or there is no nsys, or it fails.
        CorruptTraceError: The file is damaged.
        FileNotFoundError: There is no such file.

    Example:
        >>> import tracekit as tk
        >>> trace = tk.load("fixtures/train_amp.nsys-rep")
        >>> trace.count("kernels")
        334
    """
    source = registry.Source(path)
    found = registry.sniff(source) if format is None else registry.reader(format)
    if not source.exists:
        raise FileNotFoundError(2, os.strerror(2), str(source.path))
    opened = OpenedFile.of(source, found, via)
    reader = opened.reader(source)
    return Trace(opened.open(source, reader), path=source.path, format=reader.format, recipe=Recipe(opened))


class Trace:
    """One loaded profile: every declared table by name, perhaps without rows, and what is known of the capture.

    A trace can be pickled and copied: the copy opens the file again, by its absolute path, when it is first used, and
    repeats what was done to the trace. It raises ``TracekitError`` then if the size or the time of the last change of
    the file is another one. Tables in memory are pickled with the trace.
    """

    def __init__(
        self,
        layer: Layer | None,
        *,
        path: Path | None = None,
        format: str = "memory",  # noqa: A002
        recipe: Recipe | None = None,
    ) -> None:
        self._built = layer
        self._recipe = recipe or Recipe(LiveLayer(layer or Layer()))
        self._turn = threading.RLock()
        self.path = path
        self.format = format

    @classmethod
    def from_tables(cls, tables: Mapping[str, pa.Table]) -> Trace:
        """Make a trace of Arrow tables in memory; tables that are not given are empty.

        Raises:
            SchemaError: A name is not declared. A table that is not as declared raises it when read.
        """
        for name in tables:
            schemas.table(name)
        origin = InMemory(dict(tables))
        return cls(origin.layer(), recipe=Recipe(origin))

    @property
    def tables(self) -> list[str]:
        """Names of the tables."""
        return list(schemas.tables())

    @functools.cached_property
    def info(self) -> dict[str, str]:
        """Facts about the capture: tool, tool_version, schema_version, origin_utc_ns, duration_ns, as far as known."""
        rows = self._layer.read("capture_info", ["name", "value"]).to_pylist()
        return {r["name"]: r["value"] for r in rows if r["value"] is not None}

    @functools.cached_property
    def undecoded(self) -> dict[str, int]:
        """What the file holds and no table does: number of events by name, the most frequent first.

        Of an export of nsys these are rows by source table. A selection does not change it. Empty if all is decoded, or
        if the reader of the format does not count.

        Raises:
            CorruptTraceError: The file is damaged there.

        Example:
            >>> import tracekit as tk
            >>> tk.load("fixtures/osrt_libs.nsys-rep").undecoded["CPU sample"]
            96
        """
        found = self._layer.undecoded
        return {name: found[name] for name in sorted(found, key=lambda n: (-found[n], n))}

    @property
    def devices(self) -> pl.DataFrame:
        """The GPUs of the machine, one row each."""
        return self.frame("devices").collect()

    def __getitem__(self, name: str) -> pa.Table:
        return self.table(name)

    def table(self, name: str, columns: Sequence[str] | None = None) -> pa.Table:
        """Read a table: all its rows in the order of the file, with the declared Arrow schema.

        Args:
            name: Name of a table.
            columns: Only these columns; all if None.

        Raises:
            SchemaError: No such table or column.
            CorruptTraceError: The file is damaged there.
        """
        return self.pieces(name, columns).unify_dictionaries()

    def pieces(self, name: str, columns: Sequence[str] | None = None) -> pa.Table:
        """Read a table as ``table`` does, but each piece of a column of texts may have a dictionary of its own.

        Several threads may ask; one at a time reads.

        Args:
            name: Name of a table.
            columns: Only these columns; all if None.

        Raises:
            SchemaError: No such table or column.
            CorruptTraceError: The file is damaged there.
        """
        with self._turn:
            return self._layer.read(name, self._columns(name, columns))

    def prefetch(self, wanted: Mapping[str, Sequence[str] | None]) -> None:
        """Read what will be asked for, several tables together: of a report in one pass over the file.

        Args:
            wanted: Columns by table; None is all of them. What is read is kept.

        Raises:
            SchemaError: No such table or column.
            CorruptTraceError: The file is damaged there.

        Example:
            >>> import tracekit as tk
            >>> with tk.load("fixtures/train_amp.sqlite") as trace:
            ...     trace.prefetch({"kernels": None, "api_calls": ["start_ns", "end_ns"]})
            ...     trace.table("kernels").num_rows
            334
        """
        self._layer.prefetch({name: self._columns(name, columns) for name, columns in wanted.items()})

    def frame(self, name: str) -> pl.LazyFrame:
        """Return a table as a polars LazyFrame; collecting it reads only the columns that the query uses."""
        self.schema(name)
        return to_frame(self._layer, name)

    def schema(self, name: str) -> schemas.TableSchema:
        """Return the declared schema of a table of this trace.

        Raises:
            SchemaError: No such table.
        """
        return self._layer.schema(name)

    def count(self, name: str) -> int:
        """Return the number of rows of a table.

        Raises:
            SchemaError: No such table.
        """
        self.schema(name)
        return self._layer.count(name)

    def counts(self) -> dict[str, int]:
        """Return the number of rows of every table: of a report in one pass over the file.

        Raises:
            CorruptTraceError: The file is damaged.

        Example:
            >>> import tracekit as tk
            >>> {name: n for name, n in tk.load("fixtures/train_amp.sqlite").counts().items() if n > 500}
            {'api_calls': 781, 'nvtx_ranges': 1534}
        """
        return self._layer.counts(self.tables)

    def span(self) -> tuple[int, int] | None:
        """Return the first start and the last end of what ran on a GPU, was called or was marked, in ns.

        Returns:
            Times since the trace origin; None if nothing has a time. The times of all these tables are read.

        Raises:
            CorruptTraceError: The file is damaged.

        Example:
            >>> import tracekit as tk
            >>> tk.load("fixtures/train_amp.sqlite").span()
            (19012963, 497328044)
        """
        return presence.span(self)

    def correlate(self) -> Trace:
        """Attach GPU activities to API calls and those to NVTX ranges.

        Returns:
            A new trace. Its kernels, memcpys, memsets and graph_launches carry the API call that caused them, that
            call's thread, innermost push/pop range, path and depth, and the start/end range open at the time; its
            nvtx_ranges carry parent, depth, path and projection on the GPU. n rows in, n rows out.

        Example:
            >>> import tracekit as tk
            >>> trace = tk.load("fixtures/graph_node.sqlite").correlate()
            >>> trace.frame("kernels").group_by("range_name").len().sort("range_name").collect().rows()[:3]
            [('capture', 2), ('eager', 25), ('replay 0', 5)]
        """
        return self._on(self._layer.correlated(), ("correlated", ()))

    def rollup(
        self,
        *,
        key_op: str | None = None,
        iterations: tuple[int | None, int | None] | None = None,
        dialect: str | None = None,
        tensor_cores: Literal["extended", "dlprof"] = "extended",
    ) -> Trace:
        """Roll kernels up to ops, iterations and group nodes.

        Of a trace that is rolled up already, the ops are kept if they are told alike: nothing is read again.

        Args:
            key_op: Id or name of the op that delimits iterations; None takes the dialect's own, or what repeats.
            iterations: First and last iteration to count, both included; either may be None.
            dialect: How the ranges are written, ``pyprof``; None takes the first dialect that recognises them.
            tensor_cores: ``extended`` takes all kernels that are known to use Tensor Cores. ``dlprof`` computes as
                DLProf 1.8.0 did: its names of kernels, iterations, means over GPUs and findings.

        Returns:
            A new trace, in which ``ops``, ``op_instances``, ``iterations`` and ``group_nodes`` have rows, and in which
            kernels, copies, sets and graph launches say to which op they belong: n rows in, n rows out; those that no
            call is recorded of have nulls. All of it is made when first asked for.

        Raises:
            UnknownFormatError: No such dialect (when a table is asked for).
            TracekitError: There are no such iterations, or no such key op (likewise).

        Example:
            >>> import tracekit as tk
            >>> trace = tk.load("fixtures/train_amp.sqlite").rollup()
            >>> trace.frame("iterations").select("iteration", "kernel_count").collect().rows()
            [(0, 104), (1, 82), (2, 74), (3, 74)]
            >>> nodes = trace.rollup(iterations=(2, 3)).frame("group_nodes").collect()
            >>> nodes.select("path", "instance_count").row(0)
            ('', 136)
        """
        aggregation = Aggregation(key_op, iterations, dialect, tensor_cores)
        return self._on(self._layer.rolled_up(aggregation), ("rolled_up", (aggregation,)))

    def report(self, name: str) -> ReportTable | DlprofReport:
        """Compute a report of ``nsys stats`` or of DLProf, by its name.

        Raises:
            UnknownFormatError: No such report.

        Example:
            >>> import tracekit as tk
            >>> tk.load("fixtures/train_amp.sqlite").report("op-type").frame().columns[:3]
            ['Op Type', '# Ops', '# Calls']
        """
        from tracekit.core import reports

        if name == reports.ADVISE:
            from tracekit.core.reports import advise

            return advise.rolled_up(self._layer.rollup())
        if not reports.is_known(name):
            from tracekit.core.dlprof.reports import REPORTS, run

            if name not in REPORTS:
                raise reports.unknown(name, REPORTS)
            return run(self._layer.rollup(), name)
        return reports.run(self.frame, name, self.prefetch)

    def model(self, name: str) -> Mapping[str, pl.DataFrame]:
        """Return the capture as another tool keeps it: its tables by name.

        Args:
            name: ``dlprof``, the database of DLProf 1.8.0; rows have no ids, which are their numbers from 1. ``graph``,
                the ops as a graph, with what nodes took.

        Raises:
            UnknownFormatError: No other tool is known.
        """
        if name not in ("dlprof", "graph"):
            raise UnknownFormatError(f"no model is called {name!r}", hint="models: dlprof, graph")
        from tracekit.core import dlprof, graph

        rollup = self._layer.rollup()
        return dlprof.tables(rollup) if name == "dlprof" else graph.tables(rollup)

    def wide(self) -> pl.DataFrame:
        """Put the metrics of Nsight Compute side by side.

        Returns:
            One row a row of ``ncu_launches``: its columns, and one a metric of ``ncu_metrics`` with its values in base
            units (texts, of a metric that has no number). A column whose metric is not known is called
            ``section: label``.

        Raises:
            TracekitError: Launches have so few of the metrics that nearly all of very many cells would be empty.

        Example:
            >>> import tracekit as tk
            >>> wide = tk.load("fixtures/ncu/ncu_details.csv").wide()
            >>> wide.select("launch_id", "duration_ns", "dram__bytes.sum").rows()[:2]
            [(0, 2370, 5380.0), (1, 2300, 12030.0)]
        """
        from tracekit.core import ncu

        return ncu.wide(self.frame("ncu_launches"), self.frame("ncu_metrics"))

    def join_ncu(self, ncu: Trace, *, metrics: Sequence[str] | None = None) -> Trace:
        """Put the metrics of Nsight Compute beside the kernels of a capture of the same program.

        Results are found by the kernel's name, however it is spelt, its grid and block, the NVTX ranges around the
        launch, and the order of launches. Some of them may be missing: what is left gets those of another launch of
        the same kernel with the same grid and block, and ``ncu_match`` says so.

        Args:
            ncu: Results of Nsight Compute: single ones, or the groups of a summary. Keep it open.
            metrics: Only these metrics; all if None.

        Returns:
            A new trace, correlated. Its kernels carry ``ncu_launch_id``, ``ncu_match`` and a column a metric (n rows
            in, n rows out); its tables of Nsight Compute are those of ``ncu``.

        Raises:
            MissingTableError: There are no kernels, or no results.
            SchemaError: ``ncu`` has no such metric.

        Example:
            >>> import tracekit as tk
            >>> ncu = tk.load("fixtures/ncu/ncu_basic.ncu-rep")
            >>> joined = tk.load("fixtures/train_amp.nsys-rep").join_ncu(ncu, metrics=["dram__bytes.sum"])
            >>> joined.frame("kernels").select("kernel_id", "ncu_match", "dram__bytes.sum").head(2).collect().rows()
            [(1, 'range', 5376.0), (2, 'range', 12032.0)]
        """
        for trace, table, what in ((self, "kernels", "kernels"), (ncu, "ncu_launches", "results of Nsight Compute")):
            if not trace.count(table):
                raise MissingTableError(f"has no {what} to join", path=trace.path, hint=self.schema(table).recorded_by)
        return self._on(self._layer.joined(ncu._layer, metrics), ("joined", (ncu._recipe, metrics)))

    @property
    def ncu_matches(self) -> pl.DataFrame:
        """How many kernels a result of Nsight Compute was found for, and how; no rows before ``join_ncu``.

        One row a value of ``ncu_match``: ``match``, ``kernels``, their ``share`` of all kernels, and ``launches``, the
        different results that they got. The row without ``match`` is of kernels without result, and of results
        without kernel.

        Example:
            >>> import tracekit as tk
            >>> ncu = tk.load("fixtures/ncu/ncu_basic.ncu-rep")
            >>> tk.load("fixtures/train_amp.nsys-rep").join_ncu(ncu).ncu_matches.select("match", "kernels").rows()
            [('range', 11), ('order', 1), ('shape', 48), (None, 274)]
        """
        from tracekit.core.ncu import join

        if "ncu_match" not in self.schema("kernels").names:
            return join.counted(None, None)
        launches = self.frame("ncu_launches").select("launch_id").collect()
        return join.counted(self.frame("kernels").select("ncu_launch_id", "ncu_match").collect(), launches)

    def join_graph(self, graph: Trace) -> Trace:
        """Say of the nodes of a graph which ops of this capture they are, and what they took.

        An op is found by its name, then by its name in the letters that names of nodes may have, then where one of the
        names ends in the other, then by the scope or node that it lies in.

        Args:
            graph: A trace with a graph: a GraphDef, or an event file. Keep it open.

        Returns:
            A new trace, rolled up. Its ``graph_nodes`` and ``graph_edges`` are those of ``graph``; nodes carry
            ``op_id``, ``op_match``, counts, CPU and GPU time, and what they have to do with Tensor Cores (n rows in,
            n rows out). The report ``graph_summary`` sums up scopes.

        Raises:
            MissingTableError: There are no ops, or no nodes.

        Example:
            >>> import tempfile, tracekit as tk
            >>> trace = tk.load("fixtures/train_amp.sqlite")
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     graph = tk.load(trace.export(f"{folder}/run", format="tfevents"))
            ...     nodes = trace.join_graph(graph).frame("graph_nodes").collect()
            >>> nodes.select("name", "op_id", "op_match", "gpu_time_ns").row(2)
            ('Batch/Copy_to_device/aten_to', 'TO_1', 'spelling', 264478)
        """
        layer = self._layer.graph_joined(graph._layer)
        for trace, table, what in ((self, "ops", "ops"), (graph, "graph_nodes", "nodes of a graph")):
            if not layer.count(table):
                raise MissingTableError(f"has no {what} to join", path=trace.path, hint=self.schema(table).recorded_by)
        return self._on(layer, ("graph_joined", (graph._recipe,)))

    @property
    def graph_matches(self) -> pl.DataFrame:
        """How many ops are in the graph, and how they were found; no rows before ``join_graph``.

        One row a value of ``op_match``: ``match``, ``ops``, their ``gpu_time_ns`` and its ``share`` of that of all
        ops. The row without ``match`` is of ops that are not in the graph.
        """
        from tracekit.core.graph import join

        ops, nodes = (
            self.frame(table).select(columns).collect()
            for table, columns in (("ops", join.OP_COLUMNS), ("graph_nodes", join.NODE_COLUMNS))
        )
        return join.counted(ops, nodes) if nodes.height else join.counted(ops.clear(), nodes)

    def select(
        self,
        *,
        time: tuple[int | None, int | None] | None = None,
        devices: Sequence[int] | None = None,
        domains: Sequence[str] | None = None,
        min_duration_ns: int | None = None,
        tables: Sequence[str] | None = None,
    ) -> Trace:
        """Keep some rows: a new trace.

        It may be correlated before or after: kernels keep the ranges that lie outside the selection. Only tables that
        are left out are left out of the correlation too.

        Args:
            time: Rows that overlap ``[a, b)`` ns since the trace origin; either end may be None. Results of Nsight
                Compute have no times: they are kept, with a warning if there is nothing else.
            devices: GPU rows of these devices.
            domains: NVTX ranges and marks of these domains; "" is the default domain.
            min_duration_ns: Rows that last at least so long.
            tables: Only these tables; the others are empty.

        Returns:
            A new trace.

        Raises:
            SchemaError: No such table.
            TracekitError: There is no such GPU, or nothing was recorded in that time; the message says what there is.

        Example:
            >>> import tracekit as tk
            >>> trace = tk.load("fixtures/graph_node.sqlite")
            >>> trace.count("kernels"), trace.select(time=(40_000_000, 50_000_000)).count("kernels")
            (52, 28)
        """
        for name in tables or ():
            self.schema(name)
        presence.check(self, time=time, devices=devices, domains=domains)
        layer = self._layer if tables is None else self._layer.only(tables)
        steps: list[Step] = [] if tables is None else [("only", (tuple(tables),))]
        wanted = Selection(
            time,
            None if devices is None else tuple(devices),
            None if domains is None else tuple(domains),
            min_duration_ns,
        )
        if time is not None and layer.count("ncu_launches") and not layer.count("kernels"):
            warn("results of Nsight Compute have durations, but no place in time: all are kept", path=self.path)
        if wanted == Selection():
            return self._on(layer, *steps)
        return self._on(Selected(layer, wanted), *steps, ("selected", (wanted,)))

    def export(
        self,
        path: str | os.PathLike[str],
        *,
        format: str | None = None,  # noqa: A002
        tables: Sequence[str] | None = None,
        overwrite: bool = False,
        options: Mapping[str, str] | None = None,
        progress: Progress | None = None,
    ) -> Path:
        """Write the trace in another format; the output appears whole or not at all.

        Args:
            path: File to write, or folder for formats with a file a table.
            format: Name of an exporter; None takes it from the suffix.
            tables: Only these tables; of a format with one file per table, a single one makes a single file. If None,
                all but those that are large and declared as optional, ``ncu_metric_instances`` and ``ncu_sources``.
            overwrite: Replace what is there.
            options: Options of the exporter, by name.
            progress: Told how far the work has come.

        Returns:
            The path written.

        Raises:
            UnknownFormatError: No such exporter, or it takes no such option.
            ExportError: The target exists, or cannot be written; or several tables would go into a folder that is named
                like a file.

        Example:
            >>> import tempfile, tracekit as tk
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     tk.load("fixtures/graph_node.sqlite").export(f"{folder}/trace.json.gz").name
            'trace.json.gz'
        """
        chosen = registry.exporter_for(path) if format is None else registry.exporter(format)
        chosen = chosen.with_options(options or {})
        trace = self.select(tables=tables)
        trace = trace.correlate() if chosen.correlated else trace
        one_by_one = chosen.write is None and (tables is None or len(tables) != 1)
        if one_by_one and format is None:
            chosen.check_folder(path)
        is_ours = registry.is_ours if chosen.folder or one_by_one else None
        with targets.output(path, is_ours=is_ours, overwrite=overwrite, inputs=trace.inputs) as new:
            _write(trace, chosen, new, tables, progress or _untold)
        return Path(path)

    @property
    def inputs(self) -> tuple[targets.Input, ...]:
        """Files and folders that this trace is read from, which no output replaces."""
        return self._layer.inputs

    def close(self) -> None:
        """Close the file."""
        if self._built is not None:
            self._built.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __contains__(self, name: object) -> bool:
        """Return whether a table of that name is declared; it may have no rows."""
        return name in schemas.tables()

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names of the tables."""
        return iter(self.tables)

    def __len__(self) -> int:
        """Return the number of tables."""
        return len(self.tables)

    def __repr__(self) -> str:
        return f"<tracekit.Trace {self._description().line()}>"

    def _repr_html_(self) -> str:
        return self._description().html()

    def _ipython_key_completions_(self) -> list[str]:
        return self.tables

    def _description(self) -> Description:
        """Describe the trace; what cannot be read, or would take long, is left out."""
        basic = Description(self.format, self.path)
        if self._built is None:
            return basic
        try:
            devices = tuple(self.devices["name"].cast(str))
            counts = self.counts() if self._counts_quickly() else {}
            return Description(self.format, self.path, self.info.get("duration_ns", ""), devices, counts)
        except (TracekitError, OSError):
            return basic

    def _counts_quickly(self) -> bool:
        small = self.path is None or not self.path.is_file() or self.path.stat().st_size <= QUICK_BYTES
        return small and isinstance(self._layer, File)

    def __reduce__(self) -> tuple[Callable[..., Trace], tuple[Recipe, str]]:
        return _rebuilt, (self._recipe, self.format)

    @property
    def _layer(self) -> Layer:
        """The layers of the trace; a trace that was pickled builds them when they are first needed."""
        layer = self._built
        if layer is None:
            with self._turn:
                layer = self._built = self._built or self._recipe.layer()
        return layer

    def _columns(self, name: str, columns: Sequence[str] | None) -> list[str]:
        schema = self.schema(name)
        return schema.names if columns is None else [schema[c].name for c in columns]

    def _on(self, layer: Layer, *steps: Step) -> Trace:
        """Return a trace of other layers, which these steps made of the layers of this trace."""
        return Trace(layer, path=self.path, format=self.format, recipe=self._recipe.then(*steps))


def stats(trace: Trace, report: str) -> pl.DataFrame:
    """Compute a report of ``nsys stats`` or of DLProf: its columns, order and numbers.

    Args:
        trace: A trace; for reports of DLProf it may be rolled up, with a key op or some iterations.
        report: Name as nsys gives it, ``cuda_gpu_kern_sum``, also with its options (``cuda_gpu_kern_sum:base``) or an
            old name (``gpukernsum``); or as DLProf gives it: ``detailed``.

    Returns:
        One row a line of the report; no rows if the capture recorded nothing for it.

    Raises:
        UnknownFormatError: No such report.

    Example:
        >>> import tracekit as tk
        >>> report = tk.stats(tk.load("fixtures/graph_node.sqlite"), "cuda_gpu_kern_sum")
        >>> report.columns[:3], report.height
        (['Time (%)', 'Total Time (ns)', 'Instances'], 5)
    """
    return trace.report(report).frame()


def convert(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    to: str | None = None,
    format: str | None = None,  # noqa: A002
    overwrite: bool = False,
) -> Path:
    """Convert a profile from one format to another, file to file.

    Args:
        source: File to read.
        target: File or folder to write.
        to: Name of an exporter; None takes it from the suffix of the target.
        format: Name of a reader; None recognises the content.
        overwrite: Replace what is there.

    Returns:
        The path written.

    Raises:
        TracekitError: As ``load`` and ``Trace.export``.

    Example:
        >>> import tempfile, tracekit as tk
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     tk.convert("fixtures/graph_node.sqlite", f"{folder}/tables", to="parquet").name
        'tables'
    """
    with load(source, format) as trace:
        return trace.export(target, format=to, overwrite=overwrite)


def redact(
    path: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    key: bytes | os.PathLike[str] | None = None,
) -> dict[str, int]:
    """Copy a profile without what identifies people and machines, so that it can be shared.

    Environments, command lines, user names and the output of programs are emptied. Values that link rows or files,
    such as UUIDs and host names, become pseudonyms. Where names, addresses, secrets and private folders stand in other
    texts, they are overwritten. Everything else is as it was.

    Args:
        path: File to read.
        target: File to write.
        overwrite: Replace what is there.
        key: Makes the pseudonyms, at least 16 bytes or a file that holds them, to be kept secret: files redacted with
            the same key have the same pseudonym for the same value. By default a random key is made and forgotten.

    Returns:
        How many values were replaced, by kind.

    Raises:
        UnknownFormatError: No reader recognises the file.
        TracekitError: Files of its format cannot be redacted, the file changed while it was read, or the key is short.
        CorruptTraceError: The file is damaged, or looking through it would cost more than a file of its size may.
        ExportError: The target exists, or cannot be written.
        FileNotFoundError: There is no such file.

    Example:
        >>> import tempfile, tracekit as tk
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     tk.redact("fixtures/graph_node.sqlite", f"{folder}/shared.sqlite")["host name"]
        3
    """
    source = registry.Source(path)
    inputs = [targets.Input.of(source.path)]
    if isinstance(key, os.PathLike):
        inputs.append(targets.Input.of(key))
    key = _secret(key)
    found = _redacting(source)
    redact, with_key = found.redact, found.redact_with_key
    if redact is None or (key is not None and with_key is None):
        raise TracekitError(
            f"{found.format} files cannot be redacted with a key", path=source.path, hint="leave it out"
        )
    with targets.output(target, overwrite=overwrite, inputs=inputs) as new:
        return dict(redact(source, new) if key is None or with_key is None else with_key(source, new, key))


def _secret(key: bytes | os.PathLike[str] | None) -> bytes | None:
    """Return the bytes of a key, of which a file holds a limited number."""
    from tracekit.readers.common.redaction import MAX_KEY, MIN_KEY

    if isinstance(key, os.PathLike):
        try:
            with Path(path := key).open("rb") as file:
                key = file.read(MAX_KEY + 1)
        except OSError as e:
            raise TracekitError(f"the key cannot be read: {e.strerror or e}", path=os.fspath(path)) from e
    if key is not None and len(key) < MIN_KEY:
        raise TracekitError(f"a key of {len(key)} bytes can be guessed", hint=f"use {MIN_KEY} random bytes or more")
    if key is not None and len(key) > MAX_KEY:
        raise TracekitError(f"a key of more than {MAX_KEY} bytes", hint=f"use {MIN_KEY} random bytes")
    return key


def unredacted(path: str | os.PathLike[str]) -> dict[str, int]:
    """Count what identifies people and machines in a profile: what ``redact`` would replace.

    Args:
        path: File to read.

    Returns:
        How many values there are, by kind; all are 0 for a file that was redacted.

    Raises:
        UnknownFormatError: No reader recognises the file.
        TracekitError: Files of its format cannot be redacted, or the file changed while it was read.
        CorruptTraceError: The file is damaged, or looking through it would cost more than a file of its size may.
        FileNotFoundError: There is no such file.

    Example:
        >>> import tracekit as tk
        >>> tk.unredacted("fixtures/graph_node.sqlite")["environment"] > 0
        True
    """
    source = registry.Source(path)
    found = _redacting(source)
    if found.unredacted is None:
        said = f"what identifies somebody in {found.format} files cannot be counted"
        raise TracekitError(said, path=source.path, hint="redact it: that counts what is replaced")
    return dict(found.unredacted(source))


def _redacting(source: registry.Source) -> registry.Reader:
    """Return the reader that recognises a source and can redact it."""
    found = registry.sniff(source)
    if found.redact is None:
        able = ", ".join(r.format for r in registry.readers().values() if r.redact is not None)
        raise TracekitError(f"{found.format} files cannot be redacted", path=source.path, hint=f"formats: {able}")
    return found


def write_table(
    trace: Trace,
    name: str,
    path: str | os.PathLike[str],
    *,
    format: str | None = None,  # noqa: A002
    overwrite: bool = False,
) -> Path:
    """Write one table of a trace to one file, in a format that holds tables."""
    chosen = registry.exporter_for(path) if format is None else registry.exporter(format)
    if chosen.write_table is None:
        raise UnknownFormatError(f"{chosen.format} holds whole traces, not one table", path=path)
    with targets.output(path, overwrite=overwrite, inputs=trace.inputs) as new:
        chosen.write_table(trace, name, new, _untold)
    return Path(path)


def _rebuilt(recipe: Recipe, format: str) -> Trace:  # noqa: A002
    """Return the trace of a recipe; its file is opened when it is first used."""
    path = recipe.origin.path if isinstance(recipe.origin, OpenedFile) else None
    return Trace(None, path=path, format=format, recipe=recipe)


def _write(trace: Trace, to: Exporter, path: Path, tables: Sequence[str] | None, progress: Progress) -> None:
    if to.write is not None:
        to.write(trace, path, progress)
    elif to.write_table is None:
        raise ExportError(f"exporter {to.format!r} writes nothing", path=path)
    elif tables is not None and len(tables) == 1:
        to.write_table(trace, tables[0], path, progress)
    else:
        names = tables or [t for t in trace.tables if not trace.schema(t).optional]
        _write_tables(trace, to.write_table, {n: path / f"{n}{to.suffixes[0]}" for n in names}, progress)


def _write_tables(
    trace: Trace, write: Callable[[View, str, Path, Progress], None], paths: Mapping[str, Path], progress: Progress
) -> None:
    """Write tables to files of one folder, in several threads; progress is told of all of them together."""
    from tracekit.threads import in_order

    next(iter(paths.values())).parent.mkdir()
    trace.prefetch(dict.fromkeys(paths))
    lock = threading.Lock()
    counts = {name: trace.count(name) for name in paths}
    longest_first = sorted(counts, key=lambda name: -counts[name])
    rows = sum(counts.values())
    written: Counter[str] = Counter()

    def job(name: str) -> None:
        def tell(done: int, total: int) -> None:  # noqa: ARG001
            with lock:
                written[name] = done
                progress(written.total(), rows)

        write(trace, name, paths[name], tell)

    for _ in in_order(job, longest_first, WRITERS):
        pass


def _untold(done: int, total: int) -> None:
    """Progress that nobody asked for."""
