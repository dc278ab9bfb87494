"""Compute data about the ranks of a job.

If the captures of the server are not the ranks of one job, only the capture of the page is analyzed. Recipes and
the analysis of the communication are computed once, from the captures that the server has opened.
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import polars as pl

from tracekit.core.communication import Communication
from tracekit.errors import TracekitError, TracekitWarning
from tracekit.pages.columns import describe_columns
from tracekit.registry.analyses import RECIPE, get_analysis
from tracekit.sets import member as members
from tracekit.sets import ranks as rank_sources
from tracekit.sets import recipes
from tracekit.sets.communication import choose_rank_table_reader, collect_rank_tables
from tracekit.sets.trace_set import TraceSet
from tracekit.sets.workers import call_or_return_error
from tracekit.view.captures import ShownRows
from tracekit.view.titles import convert_title_to_name

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence

    from tracekit.core.diagnosis import Why
    from tracekit.core.recipes import RecipeTables
    from tracekit.registry.analyses import Value
    from tracekit.schemas import Column
    from tracekit.sets.member import Member
    from tracekit.text.names import ReportName
    from tracekit.trace import Trace
    from tracekit.view.captures import ViewedCapture, ViewedCaptures
    from tracekit.view.state import CaptureAggregation, PageState

TABLES = ("summary", "arrivals", "stragglers", "iterations", "operations", "clocks")
"""Tables of the analysis of the communication that are shown on pages."""
OF_ITERATIONS = ("stragglers", "iterations")
"""Tables of the analysis of the communication that are shown on the page "Ranks"."""
_OF_SEVERAL_RANKS = (*OF_ITERATIONS, "clocks")
"""Tables that are only meaningful for several ranks."""
_COMMON = {"start_ns": "common_start_ns", "end_ns": "common_end_ns", "last_start_ns": "common_last_start_ns"}
"""Names of columns with times on the clock of the first rank. Other names prevent links to the wrong timeline."""
_SINCE_FIRST = {"start_ns": "since_first_start_ns", "end_ns": "since_first_end_ns"}
"""Names of columns with times since the start of the first capture, which are aligned by UTC."""
_SINCE_OWN = {"start_ns": "since_own_start_ns", "end_ns": "since_own_end_ns"}
"""Names of columns with times since the start of the capture of each rank, if a capture lacks its UTC start."""
_TITLES = {
    "since_first_start_ns": "Start since the first capture",
    "since_first_end_ns": "End since the first capture",
    "since_own_start_ns": "Start since the capture of the rank",
    "since_own_end_ns": "End since the capture of the rank",
    "algorithm_gb_per_s": "Algorithm bandwidth (GB/s)",
    "bus_gb_per_s": "Bus bandwidth (GB/s)",
    "common_start_ns": "Start on the common clock",
    "common_end_ns": "End on the common clock",
    "common_last_start_ns": "Last start on the common clock",
    "drift_ppm": "Drift (ppm)",
    "utilization_percent": "Utilization",
    "compute_ns": "Computation",
    "hidden_ns": "Computation and communication",
    "exposed_ns": "Exposed communication",
    "memory_ns": "Memory operations",
    "delta_ns": "Time since the previous end",
    "metric_gpu": "GPU",
    "iteration_count": "Iteration count",
}
_DOCS = {
    "rank": "Rank of the process in the job.",
    "capture": "Name of the file.",
    "process_id": "Process of the GPU activities.",
    "device_id": "Number of the GPU.",
    "metric_gpu": "GPU of the metrics.",
    "occurrence": "Number of the occurrence in its rank, from 0.",
    "start_ns": "Start, since the trace origin.",
    "end_ns": "End (exclusive), since the trace origin.",
    "since_first_start_ns": "Start, since the start of the first capture.",
    "since_first_end_ns": "End (exclusive), since the start of the first capture.",
    "since_own_start_ns": "Start, since the start of the capture of the rank.",
    "since_own_end_ns": "End (exclusive), since the start of the capture of the rank.",
    "duration_ns": "End minus start.",
    "delta_ns": "Time from the end of the previous occurrence to the start of this one.",
}
"""Descriptions of columns that are not declared."""
_PLACES = {"Rank": "rank", "PID": "process_id", "Device ID": "device_id", "GPU": "metric_gpu"}
_INDEX = "__index_level_0__"
_PACES = {"start_ns": "pace_start", "end_ns": "pace_end", "duration_ns": "pace_duration", "delta_ns": "pace_delta"}


class OpenSet(TraceSet):
    """A set of traces that are already open and stay open.

    Args:
        ranks: Members of the set, one per rank.
        traces: Open trace of each member, in the same order.

    Attributes:
        traces: Open trace of each member, by rank.
    """

    def __init__(self, ranks: Sequence[Member], traces: Sequence[Trace]) -> None:
        super().__init__(ranks)
        self.traces = dict(zip(self.ranks, traces, strict=True))

    def outcomes(self, function: Callable[[Trace], Any]) -> Iterator[tuple[Member, Any]]:
        """Yield each member with the result of a function for its trace, or with the error that the function raises."""
        for member in self.captures:
            yield member, call_or_return_error(lambda each: function(self.traces[each.rank]), member)

    def restrict(self, ranks: Sequence[int], devices: Sequence[int]) -> OpenSet:
        """Return a set with only the given ranks and GPUs. Ranks without any of these GPUs are left out.

        Args:
            ranks: The ranks. If empty, all ranks are selected.
            devices: The ids of the GPUs. If empty, all GPUs are selected.

        Raises:
            TracekitError: A rank does not exist, or no rank has any of the GPUs.
        """
        if missing := [rank for rank in ranks if rank not in self.ranks]:
            raise self._create_missing_rank_error(missing[0])
        members = [member for member in self.captures if not ranks or member.rank in ranks]
        if not devices:
            return OpenSet(members, [self.traces[member.rank] for member in members])
        restricted = [(m, _select_present_devices(self.traces[m.rank], devices)) for m in members]
        traces = {member: trace for member, trace in restricted if trace is not None}
        if not traces:
            numbers = ", ".join(map(str, devices))
            raise TracekitError(f"no rank has a GPU with the id {numbers}", hint="choose other GPUs in the scope")
        return OpenSet(list(traces), list(traces.values()))


def _select_present_devices(trace: Trace, devices: Sequence[int]) -> Trace | None:
    present = [device for device in devices if device in trace.devices["device_id"]]
    return trace.select(devices=present) if present else None


def get_rank_set(captures: ViewedCaptures) -> OpenSet | None:
    """Return all captures as a set of ranks, or None if they are not the ranks of one job. The result is cached."""
    return captures.get_cached_result("job", lambda: _create_rank_set(captures))  # type: ignore[no-any-return]


def _create_rank_set(captures: ViewedCaptures) -> OpenSet | None:
    """Return the captures as a set of ranks. If some captures cannot be read, ranks may be missing."""
    recorded, traces = [], {}
    if len(captures) < 2:  # noqa: PLR2004 - reading the metadata of a large capture takes long
        return None
    for capture in captures.all:
        try:
            metadata = _read_recorded_metadata(capture)
        except (TracekitError, OSError) as e:
            captures.add_unreadable(capture.name, e)
            continue
        recorded.append(metadata)
        traces[metadata.path] = capture.trace
    if len(recorded) < 2:  # noqa: PLR2004
        return None
    try:
        with captures.opening, warnings.catch_warnings(record=True) as problems:
            warnings.simplefilter("always", TracekitWarning)
            assigned = rank_sources.assign_ranks(recorded)
    except TracekitError:
        return None
    is_guess = any(member.source == rank_sources.POSITION for member in assigned)
    may_lack_ranks = captures.unreadable or captures.waiting or captures.growing
    if any(issubclass(each.category, TracekitWarning) for each in problems) and (is_guess or not may_lack_ranks):
        return None
    return OpenSet(assigned, [traces[member.path] for member in assigned])


def _read_recorded_metadata(capture: ViewedCapture) -> members.RecordedMetadata:
    return capture.metadata


def list_captures_by_rank(captures: ViewedCaptures) -> dict[int, ViewedCapture]:
    """Return the capture of each rank, or an empty dictionary if the captures are not the ranks of one job."""
    ranks = get_rank_set(captures)
    if ranks is None:
        return {}
    return {rank: next(each for each in captures.all if each.trace is ranks.traces[rank]) for rank in ranks.ranks}


def select_only_rank(captures: ViewedCaptures, state: PageState) -> PageState:
    """Return a state whose capture is that of the rank to which its scope is restricted, if it is restricted to one."""
    if len(state.at.ranks) != 1:
        return state
    capture = list_captures_by_rank(captures).get(state.at.ranks[0])
    return state if capture is None else replace(state, at=replace(state.at, capture=capture.index))


def get_selected_ranks(captures: ViewedCaptures, at: CaptureAggregation) -> OpenSet:
    """Return the ranks and GPUs of the job that a scope selects.

    If the captures are not the ranks of one job, return a set of the capture of the scope alone.

    Raises:
        TracekitError: A rank does not exist, or no rank has any of the GPUs.
    """
    return captures.get_cached_result(  # type: ignore[no-any-return]
        ("ranks", *_compute_ranks_cache_key(captures, at)), lambda: _select_ranks(captures, at)
    )


def _select_ranks(captures: ViewedCaptures, at: CaptureAggregation) -> OpenSet:
    job = get_rank_set(captures)
    if job is None and at.ranks:
        raise TracekitError(
            "the URL selects ranks, but the open captures are not two or more ranks of one job",
            hint="remove the parameter 'ranks' from the URL",
        )
    return (job or _create_set_of_one_rank(captures[at])).restrict(at.ranks, at.devices)


def _compute_ranks_cache_key(captures: ViewedCaptures, at: CaptureAggregation) -> tuple[Hashable, ...]:
    """Return a cache key for results about the ranks of a scope, or about its capture if it is not a rank of a job."""
    return (None if get_rank_set(captures) else at.capture, at.ranks, at.devices)


def _create_set_of_one_rank(capture: ViewedCapture) -> OpenSet:
    return OpenSet([rank_sources.make_member(_read_recorded_metadata(capture), 0, "given")], [capture.trace])


def run_recipe(
    captures: ViewedCaptures, at: CaptureAggregation, name: str, options: Mapping[str, Value] | None = None
) -> RecipeTables:
    """Return the tables of a recipe for the ranks of a scope or, without a job, for its capture. Cache the tables.

    If the start time of any capture is not recorded, the times of each rank are relative to the start of its own
    capture.

    Args:
        captures: The captures of the server.
        at: The scope, which selects ranks and GPUs.
        name: Name of the recipe.
        options: Options of the recipe.
    """
    ranks = get_selected_ranks(captures, at)
    values = dict(options or {})
    if get_analysis(name, RECIPE).has_option("align") and not _are_origins_recorded(ranks):
        values["align"] = "no"
    key = ("recipe", *_compute_ranks_cache_key(captures, at), name, *sorted(values.items()))
    return captures.get_cached_result(key, lambda: _run_recipe(ranks, name, values))  # type: ignore[no-any-return]


def _run_recipe(ranks: OpenSet, name: str, options: Mapping[str, Value]) -> RecipeTables:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TracekitWarning)  # the table of clocks says how each rank is aligned
        return recipes.run_recipe(ranks, name, options)


def find_causes_of_job(captures: ViewedCaptures, at: CaptureAggregation) -> Why:
    """Return the answer to why the steps of the selected ranks take as long as they do. It is cached."""
    key = ("causes", *_compute_ranks_cache_key(captures, at))
    return captures.get_cached_result(key, lambda: get_selected_ranks(captures, at).why())  # type: ignore[no-any-return]


def analyze_communication(captures: ViewedCaptures, at: CaptureAggregation) -> Communication:
    """Return the analysis of the communication between the ranks of the job. The analysis is cached.

    Args:
        captures: The captures of the server.
        at: The scope, which selects ranks and GPUs, and whether the first iterations are compared even if they are much
            slower than the others.

    Raises:
        TracekitError: A capture cannot be read.
    """
    ranks = get_selected_ranks(captures, at)
    key = ("communication", *_compute_ranks_cache_key(captures, at), at.include_warm_up)
    read_tables = choose_rank_table_reader(include_warm_up=at.include_warm_up)
    return captures.get_cached_result(key, lambda: Communication(collect_rank_tables(ranks, read_tables)))  # type: ignore[no-any-return]


def list_nonempty_tables(analysis: Communication) -> list[str]:
    """Return the names in ``TABLES`` of tables that have rows and are meaningful for the number of ranks."""
    several = (analysis.iterations["rank_count"].max() or 0) > 1  # type: ignore[operator]
    return [name for name in TABLES if getattr(analysis, name).height and (several or name not in _OF_SEVERAL_RANKS)]


def read_communication_rows(analysis: Communication, name: str) -> ShownRows:
    """Return the rows of one table of an analysis of the communication."""
    recipes_ = ("iteration_spread",) if name in OF_ITERATIONS else ("comm_sum", "comm_skew")
    frame, names = getattr(analysis, name), _COMMON if analysis.clocks.height > 1 else {}
    return add_titles(frame, names, _list_declared_columns(*recipes_))


def compute_gpu_time(captures: ViewedCaptures, at: CaptureAggregation) -> ShownRows:
    """Return the time that each GPU spends in computation, communication and other activities, and its idle time.

    The result has one row per rank and GPU, with the name of the capture. Times are in ns.
    """
    frame = run_recipe(captures, at, "gpu_time_sum")["gpu_time"]
    names = {m.rank: m.name for m in get_selected_ranks(captures, at).members}
    named = frame.with_columns(pl.col("rank").replace_strict(names, return_dtype=pl.String).alias("capture"))
    ordered = named.select("rank", "capture", pl.exclude("rank", "capture"))
    return add_titles(ordered, declared=_list_declared_columns("gpu_time_sum"))


def compute_report(captures: ViewedCaptures, at: CaptureAggregation, report: ReportName) -> pl.DataFrame:
    """Return the rows of a report of the selected ranks, with the column ``rank``. The result is cached."""
    key = ("report of ranks", report, *_compute_ranks_cache_key(captures, at))
    selected = get_selected_ranks(captures, at)
    return captures.get_cached_result(key, lambda: selected.stats(report))  # type: ignore[no-any-return]


def compute_utilization(captures: ViewedCaptures, at: CaptureAggregation, recipe: str, bins: int) -> ShownRows:
    """Return the utilization in percent of each rank and GPU in each time bin, as computed by a heat map recipe.

    Args:
        captures: The captures of the server.
        at: The scope, which selects ranks and GPUs.
        recipe: Name of the recipe.
        bins: Number of bins.
    """
    frame = run_recipe(captures, at, recipe, {"bins": bins})["analysis"]
    values = {
        c: convert_title_to_name(f"{c}_percent") for c in frame.columns if c not in ("Duration", _INDEX, *_PLACES)
    }
    start = pl.col("Duration")
    length = start.filter(start > 0).min().fill_null(0)
    table = frame.select(
        *(pl.col(old).alias(new) for old, new in _PLACES.items() if old in frame.columns),
        start.alias("start_ns"),
        (start + length).alias("end_ns"),
        *(pl.col(old).alias(new) for old, new in values.items()),
    )
    rows = _add_rank_titles(captures, table)
    docs = dict.fromkeys(values.values(), "Share of the bin of time, or the mean of the metric in it.")
    return rows._replace(
        titles={**rows.titles, **{new: old for old, new in values.items()}}, descriptions={**rows.descriptions, **docs}
    )


def compute_pace(captures: ViewedCaptures, at: CaptureAggregation, recipe: str, name: str) -> ShownRows:
    """Return one row per rank and occurrence of a kernel or NVTX range, with its start, end and duration in ns.

    Args:
        captures: The captures of the server.
        at: The scope, which selects ranks and GPUs.
        recipe: Name of the recipe.
        name: Name of the kernel or range whose occurrences are returned.
    """
    tables = run_recipe(captures, at, recipe, {"name": name})
    occurrences = [
        pl.DataFrame({column: tables[table][rank].cast(pl.Int64) for column, table in _PACES.items()})
        .with_row_index("occurrence")
        .select(pl.lit(int(rank), pl.Int64).alias("rank"), pl.col("occurrence").cast(pl.Int64), *_PACES)
        .drop_nulls("start_ns")
        for rank in tables["pace_start"].columns
    ]
    return _add_rank_titles(captures, pl.concat(occurrences))


def _add_rank_titles(captures: ViewedCaptures, frame: pl.DataFrame) -> ShownRows:
    """Return rows together with a title for each column.

    If the captures are the ranks of a job, the titles of columns of times say what the times are relative to: the start
    of the first capture or, if the start of any capture is not recorded, the start of the capture of each rank.
    Otherwise, there is only one rank, and the column ``rank`` is dropped.
    """
    ranks = get_rank_set(captures)
    if ranks is None:
        return add_titles(frame.drop("rank"))
    return add_titles(frame, _SINCE_FIRST if _are_origins_recorded(ranks) else _SINCE_OWN)


def _are_origins_recorded(ranks: OpenSet) -> bool:
    """Return whether the start time of every capture is recorded, so that the times of all ranks can be aligned."""
    return all(member.origin_utc_ns is not None for member in ranks.members)


def add_titles(
    frame: pl.DataFrame, names_on_other_clock: Mapping[str, str] | None = None, declared: Iterable[Column] = ()
) -> ShownRows:
    """Return rows together with a title and a description for each column.

    Args:
        frame: The rows.
        names_on_other_clock: Maps the names of columns whose times are not on the clock of the shown capture to the
            new names of these columns. If None, no column is renamed.
        declared: Declarations of the columns.
    """
    renamed = {old: new for old, new in (names_on_other_clock or {}).items() if old in frame.columns}
    texts = {renamed.get(text.name, text.name): text for text in describe_columns(frame.columns, declared)}
    return ShownRows(
        frame.rename(renamed),
        {name: _TITLES.get(name) or text.title for name, text in texts.items()},
        {name: text.doc or _DOCS.get(name, "") for name, text in texts.items()},
        {name: text.formula for name, text in texts.items() if text.formula},
        {name: text.unit for name, text in texts.items() if text.unit},
    )


def _list_declared_columns(*names: str) -> list[Column]:
    """Return the declared columns of all tables of recipes."""
    return [column for name in names for table in get_analysis(name, RECIPE).results for column in table.columns]
