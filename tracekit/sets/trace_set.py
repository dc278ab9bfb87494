"""The class ``TraceSet``, which combines the profiles of all ranks of a job, and the function ``load_many``."""

from __future__ import annotations

import functools
import inspect
import textwrap
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, Unpack, cast

from tracekit import registry, schemas
from tracekit.registry import detection
from tracekit.registry.analyses import parse_name
from tracekit.registry.source import Source
from tracekit.registry.tables import convert_names, count_rows, read_chunks
from tracekit.sets import frames
from tracekit.sets import member as members_module
from tracekit.sets import paths as path_lists
from tracekit.sets import ranks as rank_sources
from tracekit.sets.engines import LocalEngine, resolve_engine
from tracekit.sets.frames import RANK
from tracekit.sets.member import Member, RecordedMetadata
from tracekit.sets.member_set import MemberSet, map_by_rank, open_and_read_metadata, open_member
from tracekit.system.files import FileState
from tracekit.system.remote import KeptCopy
from tracekit.text.names import RecipeOptions
from tracekit.trace import Trace, get_trace_view, load

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path
    from types import TracebackType

    import polars as pl
    import pyarrow as pa

    from tracekit.core.communication import Communication
    from tracekit.core.diagnosis import RankPlan, WhatIf, Why
    from tracekit.core.reports import ReportTable
    from tracekit.registry.analyses import Value
    from tracekit.registry.interface import Progress
    from tracekit.sets.engines import Engine
    from tracekit.sets.plots import SetPlots
    from tracekit.sets.reports import RankedReport
    from tracekit.text.names import RecipeName, ReportName, RuleName, TableName
    from tracekit.trace import Layers

    PathLike = str | os.PathLike[str]

Result = TypeVar("Result")
Method = TypeVar("Method", bound="Callable[..., Any]")
_LISTED = 8


def _list_recipe_options(method: Method) -> Method:
    """Replace the parameter ``options`` in the signature and docstring of a method with the options of all recipes."""
    signature = inspect.signature(method)
    declared = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=type_.__forward_arg__)
        for name, type_ in RecipeOptions.__annotations__.items()
    ]
    parameters = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
    docs = (RecipeOptions.__doc__ or "").partition("Attributes:\n")[2].rstrip()
    method.__doc__ = (method.__doc__ or "").replace("            options: Options.", textwrap.indent(docs, "    "))
    method.__signature__ = signature.replace(parameters=[*parameters, *declared])  # type: ignore[attr-defined]
    return method


def load_many(
    paths: PathLike | Iterable[PathLike],
    format: str | None = None,  # noqa: A002 - the public name of the argument
    *,
    ranks: Mapping[str, int] | None = None,
    via: str | None = None,
    engine: Engine | str | Any = None,
    strict: bool = False,
) -> TraceSet:
    """Open the profiles of the ranks of a job as one set. Each profile is opened when it is needed, one at a time.

    The rank of a profile is taken from its metadata (MPI, NCCL, the PyTorch profiler, variables of launchers such as
    ``RANK``) and from its file name, such as ``rank0`` or ``run_r12``. These sources must agree.

    Files that cannot be read are skipped. A warning names each of them that has the suffix of a capture, such as
    ``.nsys-rep``, and another warning counts the other files. If a report and its export are both listed, the report is
    read.

    Args:
        paths: Files, folders of profiles, patterns such as ``run/*.nsys-rep``, or several of them. URLs such as
            ``s3://bucket/run/*.nsys-rep`` are opened by fsspec. With the engine ``dask``, the workers open them.
        format: Name of the format of all files. If None, the format of each file is detected.
        ranks: Ranks by file name. These ranks override all other sources.
        via: ``nsys`` exports reports with Nsight Systems before reading them, as for ``tracekit.load``.
        engine: The engine that processes the profiles. ``LocalEngine(jobs=N)`` uses several processes, and ``dask``
            starts a Dask cluster on this machine. The address of a scheduler such as ``tcp://host:8786``, or a Dask
            client, uses an existing cluster. If None, the profiles are processed in this process.
        strict: Whether a profile that cannot be read is an error.

    Returns:
        The set, whose members are sorted by rank.

    Raises:
        TracekitError: A rank is unknown, the sources of a rank contradict each other, two profiles have the same rank,
            or a file cannot be read.
        UnknownFormatError: The format is unknown, or no reader recognizes a file.
        CorruptTraceError: A file is damaged.
        FileNotFoundError: A file does not exist.

    Examples:
        >>> import tracekit as tk
        >>> ranks = tk.load_many("fixtures/ranks")
        >>> ranks.frame("kernels").group_by("rank").len().sort("rank").collect().rows()
        [(0, 15), (1, 15)]
    """
    chosen = resolve_engine(engine)
    if format is not None:
        registry.reader(format)
    captures = path_lists.locate_captures(paths, format)
    if strict:
        captures.raise_first_error()
    members = [_create_unread_member(n, path, url, format, via) for n, (path, url) in enumerate(captures.urls.items())]
    specified = ranks or {}
    recorded = _read_recorded_metadata(captures, members, specified, chosen, strict=strict)
    captures.report_skipped()
    skipped = [*captures.errors, *captures.replaced]
    unread = {member.path.absolute(): member for member in members}
    ranked = [_complete(m, unread[m.path]) for m in rank_sources.assign_ranks(recorded, specified, skipped)]
    return TraceSet(ranked, engine=chosen, errors=captures.errors.values())


def _create_unread_member(number: int, path: Path, url: str | None, format_name: str | None, via: str | None) -> Member:
    return Member(
        path,
        number,
        format_name or "",
        via=via,
        is_read=False,
        url=url,
        kept_copy=KeptCopy() if url else None,
        state=None if url else FileState.read_file(path, folders=True),
    )


def _complete(member: Member, unread: Member) -> Member:
    """Return a member with the attributes of its capture that are known before the capture is read."""
    state = unread.state or member.state
    return replace(member, via=unread.via, url=unread.url, kept_copy=unread.kept_copy, state=state)


def _read_recorded_metadata(
    captures: path_lists.CapturePaths,
    members: Sequence[Member],
    specified_ranks: Mapping[str, int],
    engine: Engine,
    *,
    strict: bool,
) -> list[RecordedMetadata]:
    """Return what each capture records about its rank. Nothing is read if the user specified the ranks of all captures.

    Args:
        captures: The captures. Those that cannot be read are added to its skipped files.
        members: The captures as members of a set.
        specified_ranks: Ranks that the user specified, by name.
        engine: The engine that reads the captures.
        strict: Whether a capture that cannot be read is an error.
    """
    remote_paths = [m.path for m in members if m.url is not None]
    if rank_sources.are_all_ranks_specified([m.path for m in members], specified_ranks, remote_paths):
        return [RecordedMetadata(m.path.absolute(), m.format, is_read=False) for m in members]
    recorded = []
    if remote_paths and isinstance(engine, LocalEngine):
        engine = LocalEngine()  # the copies that are kept for later reads belong to this process
    for member, result in engine.map(_read_rank_metadata, members):
        if not isinstance(result, Exception):
            recorded.append(result)
        elif isinstance(result, FileNotFoundError):
            raise result
        else:
            captures.skip(member.path, result)
            if strict:
                captures.raise_first_error()
    captures.skip_replaced({capture.path: capture.format for capture in recorded})
    return [capture for capture in recorded if capture.path not in captures.replaced]


def _read_rank_metadata(member: Member) -> RecordedMetadata:
    """Return the metadata that the capture of a member records about its rank.

    If the capture records the rank before its events, reading stops there, and only this part of the metadata is
    returned.
    """
    if member.url is None and member.via is None:
        source = Source(member.path)
        reader = registry.reader(member.format) if member.format else detection.detect_reader(source)
        if source.exists and (leading := members_module.read_rank_before_events(source, reader)) is not None:
            return leading
        member = replace(member, format=reader.format)
    return open_and_read_metadata(member)


class TraceSet(MemberSet):
    """The profiles of all ranks of a job, with methods like those of ``Trace``.

    Tables and reports have the rows of all ranks, in the order of ranks. Their first column is ``rank``.
    ``correlate``, ``rollup`` and ``select`` return another set. They apply to each profile separately, and times are
    relative to the origin of the profile.

    Each profile is closed before the next one is opened. A set therefore needs the memory of one profile and of the
    result. A set can be pickled.

    Attributes:
        captures: The profiles, sorted by rank. Metadata other than the rank may be unknown, because a profile is
            not opened if the user specified the ranks, or if the rank is recorded before its events.
        engine: The engine that applies functions to the profiles.
        errors: Errors of the captures that were skipped because they cannot be read. Only some engines skip captures.
    """

    @property
    def tables(self) -> list[TableName]:
        """Names of the tables."""
        return cast("list[TableName]", list(schemas.table_names()))

    @property
    def devices(self) -> pl.DataFrame:
        """The GPUs of the machines of all ranks, one row per rank and GPU."""
        return self.frame("devices").collect()

    def frames(self, function: Callable[[Trace], pl.DataFrame]) -> pl.DataFrame:
        """Concatenate the frames that a function returns for each rank, with an additional first column ``rank``.

        Args:
            function: Function that receives a trace and returns a frame, as for ``map``.

        Raises:
            TracekitError: The function failed for a rank. The first error is raised.

        Examples:
            >>> import tracekit as tk
            >>> ranks = tk.load_many("fixtures/ranks")
            >>> ranks.frames(lambda trace: trace.devices.select("device_id").sort("device_id")).rows()
            [(0, 0), (0, 1), (1, 0), (1, 1)]
        """
        import polars as pl

        ranked = [
            frames.add_rank_column(frame, member.rank) for member, frame in self._iterate_readable_results(function)
        ]
        return pl.concat(ranked, how="diagonal_relaxed")

    def schema(self, name: TableName) -> schemas.TableSchema:
        """Return the schema of a table, which begins with the column ``rank``.

        Raises:
            SchemaError: The table does not exist.
        """
        return self._tables.schema(name)

    def frame(self, name: TableName, *, names: Literal["categorical", "string"] = "categorical") -> pl.LazyFrame:
        """Return a table of all ranks as a polars LazyFrame, whose first column is ``rank``.

        Collecting the frame opens one profile at a time and reads only the columns that the query uses. If a filter
        uses only the column ``rank``, profiles of ranks that it excludes are not opened.

        Args:
            name: Name of the table.
            names: Type of the columns that contain repeated strings, as for ``Trace.frame``.

        Raises:
            SchemaError: The table does not exist.
            CorruptTraceError: A file is damaged. The error is raised when the frame is collected.
        """
        open_capture = functools.partial(open_member, operations=self._operations)
        return convert_names(frames.scan_members(self.captures, open_capture, name, self.schema(name)), names)

    def table(self, name: TableName, columns: Sequence[str] | None = None) -> pa.Table:
        """Return a table of all ranks as an Arrow table, whose first column is ``rank``.

        Args:
            name: Name of the table.
            columns: Names of the columns to read besides ``rank``. If None, all columns are read.

        Raises:
            SchemaError: The table or a column does not exist.
            CorruptTraceError: A file is damaged.
        """
        names = None if columns is None else [RANK, *(c for c in columns if c != RANK)]
        return read_chunks(self._tables, name, names)

    def __getitem__(self, name: TableName) -> pa.Table:
        return self.table(name)

    def count(self, name: TableName) -> int:
        """Return the total number of rows of a table in all ranks.

        Raises:
            SchemaError: The table does not exist.
        """
        return count_rows(self._tables, name)

    def count_all(self) -> dict[str, int]:
        """Return the total number of rows of every table in all ranks, by table name.

        Raises:
            CorruptTraceError: A file is damaged.
        """
        return self._tables.count_many(self.tables)

    def report(self, name: ReportName | RuleName, *, options: Mapping[str, bool | int] | None = None) -> RankedReport:
        """Compute a report of every rank, or apply a rule to every rank.

        Args:
            name: Name of the report or rule, as for ``Trace.report``.
            options: Values of options of the report or rule, as for ``Trace.report``.

        Returns:
            The report. ``frame()`` returns its rows, and ``csv(file)`` writes them, with the column ``rank`` first.

        Raises:
            UnknownFormatError: The report or one of its options does not exist.
        """
        from tracekit.sets import diagnosis
        from tracekit.sets.reports import RankedReport

        if parse_name(name, options)[0].compares_ranks and len(self.ranks) > 1:
            plans = diagnosis.plan_job(self)
            functions = {r: functools.partial(_compute_report_of_rank, name, options, plans.get(r)) for r in self.ranks}
            return RankedReport.from_results(name, list(self.skip_unreadable(map_by_rank(self, functions))))
        compute = functools.partial(_compute_report, name, options)
        return RankedReport.from_results(name, list(self._iterate_readable_results(compute)))

    def stats(self, report: ReportName, *, options: Mapping[str, bool | int] | None = None) -> pl.DataFrame:
        """Return the rows of a report of every rank, with ``rank`` as the first column.

        Each rank has the rows that ``tracekit.stats`` returns for its profile. Percentages are therefore relative to
        the totals of the rank, not of all ranks.

        Args:
            report: Name of the report.
            options: Values of options of the report, by option name.

        Raises:
            UnknownFormatError: The report or one of its options does not exist.

        Examples:
            >>> import tracekit as tk
            >>> ranks = tk.load_many("fixtures/ranks")
            >>> ranks.stats("cuda_gpu_kern_sum").columns[:3]
            ['rank', 'Time (%)', 'Total Time (ns)']
        """
        return self.report(report, options=options).frame()

    def analyze(self, rule: RuleName, *, options: Mapping[str, bool | int] | None = None) -> pl.DataFrame:
        """Return the rows that a rule finds in each rank, with ``rank`` as the first column.

        Args:
            rule: Name of the rule.
            options: Values of options of the rule, by option name.

        Raises:
            UnknownFormatError: The rule or one of its options does not exist, or the value of an option is not allowed.
        """
        return self.frames(functools.partial(_apply_rule, rule, options))

    def why(self, *, step_time_ns: int | None = None) -> Why:
        """Explain why the steps of the job take as long as they do.

        Collectives and messages are matched across ranks, which shows how long each rank waits for others, which rank
        is late, and in what. A step of the job takes as long as that of its slowest rank, so a cure saves what the
        slowest ranks gain if it is applied on all ranks.

        Args:
            step_time_ns: Duration of a step without the profiler, in ns.

        Returns:
            The answer, as ``Trace.why`` describes it: the ledger of the slowest rank, and the causes of the job. Its
            attribute ``ranks`` has the steps and the ledger of each rank. Ranks without communication in common are
            separate programs, and have causes of their own. A rank that cannot be read has the error as its answer.

        Raises:
            TracekitError: No capture can be read.

        Examples:
            >>> import tracekit as tk
            >>> answer = tk.load_many("fixtures/why/ddp_straggler_rank*.nsys-rep").why()
            >>> answer.causes[0].cause, answer.causes[0].place.rank, answer.causes[0].place.range
            ('late_rank', 1, 'data')
        """
        from tracekit.core.diagnosis import Options
        from tracekit.sets import diagnosis

        return diagnosis.explain_job(self, Options(step_time_ns))

    def what_if(self, edits: str | Iterable[str], *, step_time_ns: int | None = None) -> WhatIf:
        """Predict how long the steps of each rank take after edits of their events.

        An edit applies to all ranks, or to those that it names: ``rank 0,2-5: range data x0.1``. Ranks are replayed
        separately: the time for which they wait for one another stays as recorded.

        Args:
            edits: One or several edits, as ``Trace.what_if`` describes them.
            step_time_ns: Duration of a step without the profiler, in ns.

        Returns:
            The prediction for the rank with the longest predicted step. Its attribute ``ranks`` has the predictions for
            all ranks.

        Raises:
            UnknownFormatError: A text is not an edit, or an edit matches nothing in the steady steps of any rank.
        """
        from tracekit.core.diagnosis import Options
        from tracekit.sets import diagnosis

        return diagnosis.predict_job(self, edits, Options(step_time_ns))

    @_list_recipe_options
    def recipe(self, recipe: RecipeName, **options: Unpack[RecipeOptions]) -> dict[str, pl.DataFrame]:
        """Compute a recipe of ``nsys recipe`` over all ranks, and return its tables.

        Statistics over all ranks are exact, while nsys approximates quartiles and standard deviations. Every recipe has
        only some of the options. An option that is None has its default value.

        Args:
            recipe: Name of the recipe, such as ``cuda_gpu_kern_sum``.
            options: Options.

        Returns:
            The tables by name, with the names, columns and types of nsys. The first one is the main table.

        Raises:
            UnknownFormatError: The recipe or an option does not exist, or the value of an option is not allowed.
            MissingTableError: ``align`` is ``yes``, but the start of a profile is not recorded.

        Examples:
            >>> import tracekit as tk
            >>> tables = tk.load_many("fixtures/ranks").recipe("mpi_sum")
            >>> list(tables)
            ['all_stats', 'rank_stats', 'files']
            >>> tables["all_stats"].select("Text", "Count", "Median").row(0)
            ('MPI_Allgather', 10, 5908.5)
        """
        from tracekit.sets import recipes

        values = cast("Mapping[str, Value]", options)
        return recipes.run_recipe(self, recipe, {name: value for name, value in values.items() if value is not None})

    @property
    def plot(self) -> SetPlots:
        """Methods that draw figures of the set with plotly.

        Examples:
            >>> import tracekit as tk
            >>> figure = tk.load_many("fixtures/ranks").plot.gpu_time()
            >>> figure.layout.yaxis.ticktext
            ('rank 0, GPU 0', 'rank 1, GPU 1')
        """
        from tracekit.sets.plots import SetPlots

        return SetPlots(self.recipe)

    def communication(self, *, include_warm_up: bool = False) -> Communication:
        """Analyze the communication between the ranks: collectives, messages, clocks and iterations.

        Calls of NCCL and MPI are matched across ranks, and times are converted to the clock of the first rank. If a
        profile contains several ranks, each of them is analyzed. A warning lists ranks whose clocks cannot be aligned
        by collectives.

        Args:
            include_warm_up: Whether the first iterations are compared even if they are much slower than the others.

        Returns:
            The tables of the analysis, which are computed when they are first accessed.

        Raises:
            CorruptTraceError: A file is damaged.

        Examples:
            >>> import tracekit as tk
            >>> analysis = tk.load_many("fixtures/ddp2.nsys-rep").communication()
            >>> analysis.summary.select("kind", "rank_count", "bytes", "count").rows()
            [('all_reduce', 2, 16793600, 4), ('all_reduce', 2, 17043712, 4)]
            >>> analysis.arrivals.select("rank", "count", "last_count").rows()
            [(0, 8, 0), (1, 8, 8)]
        """
        from tracekit.sets import communication

        return communication.analyze_communication(self, include_warm_up=include_warm_up)

    def clocks(self) -> pl.DataFrame:
        """Return the conversion of the times of each rank to the clock of the first rank.

        Clocks are aligned by the UTC times of the trace origins and, if ranks have collectives in common, by the ends
        of these collectives. A time ``t`` in ns since the origin of a trace is ``t + offset_ns + drift_ppm * t / 1e6``
        on the clock of the first rank.

        Returns:
            One row per rank: ``rank``, ``method`` (reference, collectives, UTC or none), ``offset_ns`` (null if the
            method is none), ``utc_offset_ns`` (the offset according to the UTC times alone), ``drift_ppm``,
            ``collective_count`` (number of collectives in common), and ``residual_ns`` and ``max_residual_ns`` (the
            median and the largest absolute deviation of the ends of these collectives after alignment).

        Raises:
            CorruptTraceError: A file is damaged.

        Examples:
            >>> import tracekit as tk
            >>> clocks = tk.load_many("fixtures/ranks").clocks()
            >>> clocks.select("rank", "method", "offset_ns", "max_residual_ns").rows()
            [(0, 'reference', 0, None), (1, 'collectives', -23505169, 578)]
        """
        from tracekit.sets import communication

        return communication.compute_clock_conversions(self)

    def join_logs(self, logs: TraceSet) -> pl.DataFrame:
        """Return the communication calls of all ranks with those in logs of the same run, such as flight recorders.

        A logged call belongs to the call of the same rank and kind during which it was logged. If a log and a capture
        name communicators alike, as the PyTorch profiler and flight recorders of PyTorch do, they are equal as well.
        Both must record the UTC time of their origins.

        Args:
            logs: The logs, one or several per rank.

        Returns:
            One row per call of the captures: ``rank``, ``kind``, ``communicator``, ``message_bytes``, ``call_id``,
            ``call_start_ns``, ``call_end_ns``, ``kernel_id``, ``start_ns`` and ``end_ns`` (as in
            ``TraceSet.communication().calls``, with the times of the capture); and, null for a call that was not
            logged, ``log_communicator``, ``sequence``, ``communication_call_id``, ``state``, ``duration_ns``,
            ``algorithm``, ``protocol`` and ``user_stack_id`` of the log.

        Raises:
            CorruptTraceError: A file is damaged.

        Examples:
            >>> import tracekit as tk
            >>> captures = tk.load_many("fixtures/nccl/captures")
            >>> joined = captures.join_logs(tk.load_many("fixtures/nccl/logs"))
            >>> joined.select("rank", "kind", "communicator", "sequence").rows()[:2]
            [(0, 'all_reduce', '0 [0, 1] of 2', 7), (0, 'all_reduce', '1 [0, 1] of 2', 3)]
        """
        from tracekit.sets import communication

        return communication.join_logs(self, logs)

    def correlate(self) -> TraceSet:
        """Join GPU activities with their API calls and NVTX ranges in every rank, as ``Trace.correlate`` does."""
        return self.with_operation("correlate")

    def with_layers(self, layers: Layers = "capture") -> TraceSet:
        """Place the ranges in which CUDA graphs were captured inside their replays in every rank.

        Args:
            layers: ``capture`` takes the ranges of a rank from its own profile. A trace or the path of a second capture
                of the same program applies to all ranks, as for ``Trace.with_layers``.
        """
        return self.with_operation("with_layers", layers=layers)

    def rollup(
        self,
        *,
        key_op: str | None = None,
        iterations: tuple[int | None, int | None] | None = None,
        include_warm_up: bool | None = None,
        dialect: str | None = None,
        tensor_cores: Literal["extended", "dlprof"] = "extended",
    ) -> TraceSet:
        """Aggregate GPU activities by op, iteration and group of ops in every rank, as ``Trace.rollup`` does.

        Args:
            key_op: Id or name of the op that delimits iterations.
            iterations: First and last iteration to aggregate, both inclusive. None stands for the first or the last
                iteration of the profile.
            include_warm_up: Whether the first iterations are aggregated even if they are much slower than the others,
                as for ``Trace.rollup``.
            dialect: Name of the conventions by which the ranges are written. If None, it is detected in every rank.
            tensor_cores: ``extended`` or ``dlprof``, as for ``Trace.rollup``.

        Returns:
            The rolled-up set.
        """
        return self.with_operation(
            "rollup",
            key_op=key_op,
            iterations=iterations,
            include_warm_up=include_warm_up,
            dialect=dialect,
            tensor_cores=tensor_cores,
        )

    def select(
        self,
        *,
        ranks: Iterable[int] | None = None,
        time: tuple[int | None, int | None] | None = None,
        devices: Sequence[int] | None = None,
        domains: Sequence[str] | None = None,
        min_duration_ns: int | None = None,
        tables: Sequence[TableName] | None = None,
        nvtx: str | None = None,
    ) -> TraceSet:
        """Return a set with only the selected ranks, and only the rows of each rank that match all conditions.

        Args:
            ranks: Ranks to select. If None, all ranks are selected.
            time: Select rows that overlap ``[a, b)`` in ns since the origin of the profile. A bound that is None does
                not restrict the selection.
            devices: Select GPU activities of these devices.
            domains: Select NVTX ranges and marks of these domains.
            min_duration_ns: Select rows with at least this duration in ns.
            tables: Names of the tables to select. If None, all tables are selected.
            nvtx: Select events that overlap an NVTX range of their rank, as in ``Trace.select``.

        Returns:
            The selected set.

        Raises:
            TracekitError: A rank does not exist. Other errors of ``Trace.select`` are raised when a profile is opened.
        """
        arguments = {
            "time": time,
            "devices": devices,
            "domains": domains,
            "min_duration_ns": min_duration_ns,
            "tables": tables,
            "nvtx": nvtx,
        }
        selected = self if ranks is None else self.select_ranks(ranks)
        arguments = {name: value for name, value in arguments.items() if value is not None}
        return selected.with_operation("select", **arguments) if arguments else selected

    def export(
        self,
        path: PathLike,
        *,
        format: str | None = None,  # noqa: A002
        tables: Sequence[TableName] | None = None,
        overwrite: bool = False,
        options: Mapping[str, Value] | None = None,
        progress: Progress | None = None,
    ) -> Path:
        """Write the set in another format. The output is written completely or not at all.

        Files of tables have the rows of all ranks, with ``rank`` as the first column. A Chrome trace has the tracks of
        all ranks on one clock, which ``clocks`` describes, and arrows between the calls of a collective.

        Args:
            path: File to write, or folder for formats with one file per table.
            format: Name of the format. If None, the suffix of the path determines the format.
            tables: Names of the tables to write. A format with one file per table writes a single table as one file.
                If None, all tables are written except the large tables that are declared as optional.
            overwrite: Whether to replace an existing output.
            options: Values of options of the exporter, by option name. They may be texts, as on the command line.
            progress: Callback that receives the number of ranks written so far and the number of all ranks.

        Returns:
            The path of the output.

        Raises:
            UnknownFormatError: The format or one of its options does not exist.
            ExportError: The format cannot hold several ranks, the output exists or cannot be written, or the name of a
                folder for several tables has the suffix of a file.

        Examples:
            >>> import tempfile, tracekit as tk
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     tk.load_many("fixtures/ranks").export(f"{folder}/kernels.parquet", tables=["kernels"]).name
            'kernels.parquet'
        """
        from tracekit import registry
        from tracekit.plan import exporting
        from tracekit.sets.export import export

        chosen = registry.find_exporter_for(path) if format is None else registry.exporter(format)
        chosen = chosen.with_options(options or {})
        traces = self.select(tables=tables if chosen.write_table is None else None)
        traces = traces.correlate() if chosen.correlated else traces
        if format is None and exporting.has_one_file_per_table(chosen, tables):
            chosen.check_folder(path)
        return export(traces, path, chosen, tables=tables, overwrite=overwrite, progress=progress)

    def close(self) -> None:
        """Do nothing, because a set leaves no profile open. With this method, a set can be used like a trace."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __contains__(self, name: object) -> bool:
        """Return whether a table with this name is declared. The table may be empty."""
        return name in schemas.table_names()

    def __repr__(self) -> str:
        listed = ", ".join(f"{m.rank}: {m.name}" for m in self.captures[:3])
        return f"<tracekit.TraceSet of {len(self)} ranks ({listed}{', …' if len(self) > 3 else ''})>"  # noqa: PLR2004


def _compute_report(name: ReportName | RuleName, options: Mapping[str, bool | int] | None, trace: Trace) -> ReportTable:
    return trace.report(name, options=options)


def _compute_report_of_rank(
    name: ReportName | RuleName,
    options: Mapping[str, bool | int] | None,
    plans: Mapping[int | None, RankPlan] | None,
    trace: Trace,
) -> ReportTable:
    return get_trace_view(trace).report(name, options, rank_plans=plans)


def _apply_rule(rule: RuleName, options: Mapping[str, bool | int] | None, trace: Trace) -> pl.DataFrame:
    return trace.analyze(rule, options=options)


def open_captures(path: PathLike, *, strict: bool = False) -> Trace | TraceSet:
    """Open the capture at a path as a trace, or the captures of a folder or pattern as a set.

    Args:
        path: Path of a capture, of a folder of captures, or a pattern.
        strict: Whether a capture of a set that cannot be read is an error.

    Raises:
        TracekitError: A file cannot be read.
    """
    return load(path) if path_lists.is_single_capture(path) else load_many(path, strict=strict)
