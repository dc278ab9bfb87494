"""The view of a trace that exporters and reports use: its tables, reports, figures and data models."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from tracekit import schemas
from tracekit.errors import MissingTableError, UnknownFormatError
from tracekit.plan.plan import Correlate
from tracekit.plan.tables import get_shared_rollup, get_tables
from tracekit.registry import absence, analyses
from tracekit.registry.analyses import FIGURE, RECIPE, REPORT, RULE, parse_name
from tracekit.registry.tables import count_rows, prefetch, read_chunks, scan_table
from tracekit.text import replace_surrogates

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
    from pathlib import Path

    import polars as pl

    from tracekit.core.diagnosis import Examination, Options, RankPlan, RankProfile, WhatIf, Why
    from tracekit.core.diagnosis.edits import StepEdit
    from tracekit.core.diagnosis.events import JoinedResults
    from tracekit.core.reports import ReportTable
    from tracekit.core.rollup import Rollup
    from tracekit.plan.plan import Plan
    from tracekit.plan.stages import SharedRollup
    from tracekit.registry.absence import Absence
    from tracekit.registry.analyses import Value
    from tracekit.registry.tables import Tables
    from tracekit.text.explanations import Explanation

Result = TypeVar("Result")


class TraceView:
    """The tables of a plan, and the results that are computed from them. It implements ``interface.View``.

    Attributes:
        plan: The plan of the trace.
        tables: The tables of the plan.
        path: Path of the file or folder, for error messages. None for tables in memory.
    """

    def __init__(self, plan: Plan, path: Path | None = None) -> None:
        self.plan = plan
        self.path = path
        self.tables = get_tables(plan)

    @property
    def name(self) -> str:
        """Name of the file or folder of the capture without the folders that contain it, or "" for tables in memory."""
        return "" if self.path is None else replace_surrogates(self.path.name)

    @property
    def selected_tables(self) -> frozenset[str] | None:
        """Names of the selected tables. All other tables have no rows. None if all tables are selected."""
        return self.plan.tables

    @functools.cached_property
    def info(self) -> dict[str, str]:
        """Properties of the capture, such as ``driver_version``, as strings by property name."""
        rows = read_chunks(self.tables, "capture_info", ["name", "value"]).to_pylist()
        return {r["name"]: r["value"] for r in rows if r["value"] is not None}

    @functools.cached_property
    def _frames(self) -> Callable[[str], pl.LazyFrame]:
        return functools.partial(scan_table, self.tables)

    def without(self, *conditions: str) -> Tables:
        """Return the tables of the plan whose filters lack some conditions, or all of them, as for ``Plan.without``."""
        return get_tables(self.plan.without(*conditions))

    @functools.cached_property
    def _shared_rollup(self) -> SharedRollup:
        return get_shared_rollup(self.plan)

    def _get_rollup(self) -> Rollup:
        """Return the roll-up of the trace, which stays in memory for further reports and figures."""
        return self._shared_rollup.rollup()

    def free_working_data(self) -> None:
        """Free the intermediate data from which columns of this trace and of traces with the same source were computed.

        The computed columns stay in memory. If further columns need the data, it is computed again.
        """
        self.__dict__.pop("_shared_rollup", None)
        source = self.plan.source
        for computed in (*list(source.stages.values()), *list(source.rollups.values())):
            computed.free_working_data()

    def report(
        self,
        name: str,
        options: Mapping[str, Value] | None = None,
        kinds: Sequence[str] = (RULE, REPORT),
        *,
        rank_plans: Mapping[int | None, RankPlan] | None = None,
    ) -> ReportTable:
        """Compute an ``nsys stats`` report, a DLProf report or one of tracekit's own reports, or apply a rule.

        Args:
            name: Name of the report or rule, optionally followed by options after colons.
            options: Values of further options, by option name.
            kinds: What ``name`` may name.
            rank_plans: What is known about the other ranks of a set, by the id of each process.

        Raises:
            UnknownFormatError: The report or one of its options does not exist, or a value is not allowed.
        """
        from tracekit.core import reports

        analysis, values = analyses.parse_name(name, options, kinds)
        if analysis.input == "correlated" and not self.plan.correlated:
            correlated = TraceView(self.plan.add_steps(Correlate()), self.path)
            return correlated.report(name, options, kinds, rank_plans=rank_plans)
        request = reports.Request(
            _create_report_frames_function(self.tables),
            analysis.resolve_options(values),
            window=self.plan.window,
            without=lambda *conditions: _create_report_frames_function(self.without(*conditions)),
            create_rollup=self._read_rollup if analysis.input == "diagnosis" else self._get_rollup,
            has_chosen_steps=self.plan.rollup is not None,
            rank_plans=rank_plans,
            has_second_capture=self.plan.layers is not None and self.plan.layers.recorded is not None,
        )
        return reports.compute(analysis, request, self._prefetch_used_columns)

    def why(self, options: Options) -> Why:
        """Explain why the steps of the trace take as long as they do."""
        from tracekit.core.diagnosis import diagnose

        return diagnose(self._read_rollup().steady, options, self._create_joined_results())

    def _create_joined_results(self) -> JoinedResults | None:
        """Return the results of Nsight Compute that are joined to the kernels, for the diagnosis, or None."""
        from tracekit.core.diagnosis.events import JoinedResults

        if self.plan.ncu is None:
            return None
        plan = replace(self.plan, tables=None, rollup=None, graph=None, ncu=replace(self.plan.ncu, metrics=()))
        return JoinedResults(plan.ncu, functools.partial(scan_table, get_tables(plan)))

    def _read_rollup(self) -> Rollup:
        """Return the roll-up, after reading the columns that it and a diagnosis need in one pass."""
        from tracekit.core.diagnosis.events import READ_COLUMNS
        from tracekit.core.rollup import tables

        names = dict.fromkeys((*tables.READ_COLUMNS, *READ_COLUMNS))
        prefetch(
            self.tables,
            {n: [*dict.fromkeys((*tables.READ_COLUMNS.get(n, ()), *READ_COLUMNS.get(n, ())))] for n in names},
        )
        return self._get_rollup()

    def profile_processes(self) -> list[RankProfile]:
        """Return what the first pass of the diagnosis of a job measures in each process of the trace."""
        from tracekit.core.diagnosis import profile_processes

        return profile_processes(self._read_rollup().steady)

    def examine_processes(self, options: Options, plans: Mapping[int | None, RankPlan]) -> list[Examination]:
        """Return what the second pass of the diagnosis of a job finds out about each process of the trace."""
        from tracekit.core.diagnosis import examine_processes

        return examine_processes(self._read_rollup().steady, options, plans, self._create_joined_results())

    def list_idle_times(self) -> pl.DataFrame:
        """Return the times in the steady steps in which no GPU of a process works. See ``diagnosis.idle``."""
        from tracekit.core.diagnosis.idle import list_idle_times

        return list_idle_times(self._read_rollup().steady)

    def explanation(self, max_parts: int | None = None) -> Explanation:
        """Return the answer of ``why`` as texts.

        Args:
            max_parts: Maximum number of parts of a ledger that have a row of their own, or None for the default.
        """
        from tracekit.core.diagnosis import Options
        from tracekit.core.diagnosis.texts import MAX_PARTS, write_explanation

        return write_explanation(self.why(Options()), max_parts=max_parts or MAX_PARTS)

    def what_if(self, edits: Sequence[StepEdit], options: Options, *, rank: int | None = None) -> WhatIf:
        """Predict the time of the steps after edits. An edit that matches nothing is no error."""
        from tracekit.core.diagnosis import predict

        return predict(self._read_rollup().steady, edits, options, rank=rank)

    def explain_missing_rows(self, name: str, *, is_part: bool = False) -> Absence:
        """Return why a table, a report, a rule or a recipe, or a part of it, has no rows."""
        if name in schemas.table_names():
            return self.explain_missing_tables([name], required=[name], is_part=is_part)
        analysis, values = analyses.parse_name(name, kinds=(RULE, REPORT, RECIPE))
        required = analysis.list_required_tables(values)
        kernels = ("kernels",) if required else ()
        missing = self.explain_missing_tables(analysis.tables, required=(*required, *kernels), is_part=is_part)
        if not analysis.recording or missing.state not in (absence.State.NOTHING_FOUND, absence.State.NOT_RECORDED):
            return missing
        return missing._replace(hint="; ".join(filter(None, (missing.hint, analysis.recording))))

    def explain_missing_tables(
        self, tables: Iterable[str], *, required: Iterable[str] = (), is_part: bool = False
    ) -> Absence:
        """Return why a result that is computed from the given tables has no rows.

        Args:
            tables: Names of the tables from which the result is computed.
            required: Names of the tables without which the result has no rows.
            is_part: Whether the result is restricted to a part of the capture, in addition to the selections.
        """
        selected = is_part or bool(self.plan.rows) or self.plan.tables is not None
        return absence.explain_missing_rows(self.plan.source, tables, required=required, selected=selected)

    def figure_rows(self, name: str, **options: Any) -> pl.DataFrame:
        """Return the rows of an analysis of the kind ``figure``.

        Args:
            name: Name of the analysis.
            options: Values of the options of the analysis. None stands for the default.

        Raises:
            MissingTableError: The capture has no data for the analysis. The error states why, and its hint what to
                record.
            UnknownFormatError: The analysis or an option does not exist, or the value of an option is not allowed.
        """
        from tracekit.core.figures import FigureInputs

        chosen = {option: value for option, value in options.items() if value is not None}
        analysis, values = parse_name(name, chosen, [FIGURE])
        inputs = FigureInputs(
            self,
            self._get_figure_rollup,
            lambda table: scan_table(get_tables(self.plan.add_steps(Correlate())), table),
            self.plan.window,
        )
        try:
            rows: pl.DataFrame = analysis.load_compute_function()(inputs, **analysis.resolve_options(values))
        except MissingTableError as e:
            if e.hint is not None:
                raise MissingTableError(e.message, path=self.path, hint=e.hint) from None
            missing = self.explain_missing_tables(analysis.tables)
            is_of_another_format = missing.state is absence.State.NOT_APPLICABLE
            recording = absence.create_recording_hint(
                analysis.tables, self.plan.source.format, self.plan.source.tool, self.plan.source.activity
            )
            hint = recording if is_of_another_format else missing.hint
            raise MissingTableError(f"{e.message}: {missing.reason}", path=self.path, hint=hint) from None
        return rows

    def _get_figure_rollup(self) -> Rollup:
        """Return the roll-up of the trace. If the trace is not rolled up, use the default parameters of a roll-up.

        The warm-up is not aggregated unless the user includes it. If the capture contains the roll-up of DLProf, the
        roll-up is that of DLProf.
        """
        rollup = self._get_rollup()
        is_recorded = self.plan.rollup is None and count_rows(self.tables, "ops") > 0
        return rollup.for_dlprof if is_recorded else rollup.steady

    def model(self, name: str, *, in_background: bool = False) -> Mapping[str, pl.DataFrame]:
        """Return the tables of the DLProf database or of the graph of ops, by table name.

        Args:
            name: ``dlprof`` for the database of DLProf 1.8.0, in which the rowid of a row is its row number, counted
                from 1. ``graph`` for the graph of ops, with the statistics of each op.
            in_background: Whether the method may return while another thread still computes tables that take long.
                Accessing such a table waits until it is complete.

        Raises:
            UnknownFormatError: The model does not exist.
        """
        if name not in ("dlprof", "graph"):
            raise UnknownFormatError(f"there is no model {name!r}", hint="choose the model dlprof or graph")
        from tracekit.core import dlprof, graph

        if name == "graph":
            return graph.build_graph_tables(self._get_rollup())
        prefetch(self.tables, dlprof.READ_COLUMNS)
        build = dlprof.build_tables_in_background if in_background else dlprof.build_tables
        return build(self._get_rollup().for_dlprof)

    def compute(
        self, function: Callable[[Callable[[str], pl.LazyFrame]], Result], key: Hashable | None = None
    ) -> Result:
        """Call a function on the tables of the trace, and return its result.

        The columns that the function needs are read together before the call.

        Args:
            function: The function. It is called with one argument: a callable that returns a table as a LazyFrame,
                given the table name.
            key: A value that identifies the function. The columns that the function needs are determined only once
                per key. If None, they are determined for this call.
        """
        self._prefetch_used_columns(function, key)
        return function(self._frames)

    def _prefetch_used_columns(
        self, compute: Callable[[Callable[[str], pl.LazyFrame]], object], key: Hashable | None = None
    ) -> None:
        """Read and cache the columns that a function will use, in one pass over the file if its format allows."""
        from tracekit.core.reads import find_read_columns

        prefetch(
            self.tables,
            find_read_columns(
                compute, lambda table: schemas.create_example_frame(self.tables.schema(table)), cache_key=key
            ),
        )


def _create_report_frames_function(tables: Tables) -> Callable[[str], pl.LazyFrame]:
    """Return a function that returns the tables of a trace as LazyFrames, with the types that reports expect."""
    from tracekit.core.reports.report import STRING_COLUMNS

    return lambda name: scan_table(tables, name, STRING_COLUMNS.get(name, ()))
