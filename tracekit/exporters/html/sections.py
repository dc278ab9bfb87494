"""Select the content of the HTML page of a trace. Sections without data are omitted."""

from __future__ import annotations

import datetime as dt
import functools
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from tracekit import schemas
from tracekit.errors import MissingTableError, TracekitError
from tracekit.pages.columns import ColumnText, describe_columns
from tracekit.pages.document import ExportedPage, Section, build_chart, build_description_list
from tracekit.pages.tables import build_frame_table, build_table
from tracekit.pages.values import BYTES, NANOSECONDS, PERCENT, POINT, build_value, format_value
from tracekit.plots import draw_figure
from tracekit.plots.theme import PART_NAMES
from tracekit.registry.analyses import FIGURE, REPORT, RULE, get_analysis
from tracekit.registry.notices import ABOUT_RULES, explain_missing_advice, list_notices
from tracekit.registry.tables import count_rows, read_table, scan_table
from tracekit.text.elements import tag
from tracekit.text.makers import is_without_cuda, list_makers_of_capture, name_gpu

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import polars as pl

    from tracekit.registry.interface import Progress, View
    from tracekit.text.elements import Content, Element
    from tracekit.text.explanations import Explanation

ROWS = 50
"""Maximum number of rows of a table."""
METADATA = {
    "tool": "Recorded with",
    "tool_version": "Version",
    "cpu_model": "CPU",
    "driver_version": "GPU driver",
    "cuda_version": "CUDA",
    "cudnn_version": "cuDNN",
    "framework": "Framework",
    "os": "Operating system",
}
"""The properties of the capture that pages show. None of them identifies people or machines."""


def build_page(view: View, progress: Progress) -> ExportedPage:
    """Build the HTML page of a trace."""
    builder = _SectionsBuilder(view)
    sections: list[Section] = []
    for number, declared in enumerate(_SECTIONS, 1):
        built = list(declared.build(builder) if declared.build else builder.build_declared_sections(declared))
        notes = [WHOLE_CAPTURE] if declared.shows_whole_capture else builder.step_notes if declared.shows_steps else []
        if builder.compute_figure_rows("iteration_table") is not None:
            built = [replace(section, notes=[*section.notes, *notes]) for section in built]
        sections.extend(built)
        progress(number, len(_SECTIONS))
    return ExportedPage(
        hide_host(view.name) or "GPU profile",
        sections,
        _describe_gpus(view),
        list(dict.fromkeys((e.message, e.hint or "") for e in builder.missing)),
        list_notices(view),
        _NOTHING_TO_DRAW,
        _NOTE,
    )


_NOTHING_TO_DRAW = "This capture contains nothing to draw: no GPU activities, no ops, no API calls and no NVTX ranges."
_NOTE = (
    "Written by tracekit. Points in time count from the start of the capture. Numbers are rounded; hover over one, or "
    "choose exact values, to see it without rounding."
)


def hide_host(name: str) -> str:
    """Return the name of a file without the host name that the PyTorch profiler and TensorFlow put into it."""
    for pattern in _HOSTS:
        name = pattern.sub("…", name)
    return name


_HOSTS = (re.compile(r"^.+(?=_\d+\.\d+\.pt\.trace\.json)"), re.compile(r"(?<=^events\.out\.tfevents\.)\d+\..+$"))


def _describe_gpus(view: View) -> str:
    names = [name for name in read_table(view.tables, "devices").column("name").to_pylist() if name]
    gpus = ", ".join(f"{names.count(name)} × {name}" for name in dict.fromkeys(names))
    return f"GPU profile: {gpus}" if gpus else "GPU profile"


class _TableDeclaration(NamedTuple):
    """A table of a section.

    Attributes:
        caption: Caption of the table.
        columns: Names of the columns to show. None for all columns.
        header: Name of the column that contains the row headers. None for the first one.
        report: Name of the report with the rows. Empty if the rows are those of the figure of the section.
        needs: Name of a table. If it is empty, the report is not computed.
        omits_zeros: Whether columns of times that are all 0 are omitted.
    """

    caption: str
    columns: Sequence[str] | None
    header: str | None = None
    report: str = ""
    needs: str = ""
    omits_zeros: bool = False


class _SectionDeclaration(NamedTuple):
    """The declaration of a section.

    Attributes:
        title: Title of the section.
        anchor: Id of the section in links to it.
        figure: Name of the figure of ``Trace.plot`` that the section shows, or "".
        table: The table of the section, or None.
        needs: Name of a table. If it is empty, there is no section.
        build: Function that yields the section, instead of the declared figure and table.
        shows_whole_capture: Whether the section shows the whole capture, and not only the aggregated iterations.
        shows_steps: Whether the section shows the aggregated iterations.
    """

    title: str
    anchor: str
    figure: str = ""
    table: _TableDeclaration | None = None
    needs: str = ""
    build: Callable[[_SectionsBuilder], Iterator[Section]] | None = None
    shows_whole_capture: bool = False
    shows_steps: bool = False


class _SectionsBuilder:
    """Builder of the figures and tables of a page.

    If the capture lacks the data of a figure or table, a ``MissingTableError`` is not raised but appended to
    ``missing``.
    """

    def __init__(self, view: View) -> None:
        self.view = view
        self.missing: list[MissingTableError] = []
        self._rows: dict[tuple[str, frozenset[tuple[str, Any]]], pl.DataFrame | None] = {}

    def draw_figure(self, name: str, **options: Any) -> list[Element]:
        """Return a list with a chart, or an empty list if the capture lacks the data of the figure.

        Args:
            name: Name of a figure of ``Trace.plot``.
            options: Options of the figure.
        """
        rows = self.compute_figure_rows(name, **options)
        return [] if rows is None else [build_chart(name, draw_figure(name, rows))]

    @functools.cached_property
    def step_notes(self) -> list[str]:
        """Sentences on which range delimits steps, how many there are, and how much of the GPU work lies in them."""
        return self.view.report("steps").frame()["Summary"].to_list()

    @functools.cached_property
    def explanation(self) -> Explanation | TracekitError:
        """The answer of ``why`` as texts, or the error if the steps cannot be explained."""
        try:
            return self.view.explanation()
        except TracekitError as e:
            return e

    def list_explained_causes(self) -> list[str]:
        """Return the names of the causes that the section "Why" lists."""
        explanation = self.explanation
        if isinstance(explanation, TracekitError) or not explanation.is_answered:
            return []
        return [cause.cause for cause in explanation.causes]

    @property
    def omits_iterations(self) -> bool:
        """Whether at least one iteration is not aggregated."""
        iterations = self.compute_figure_rows("iteration_table")
        return iterations is not None and not iterations["is_aggregated"].all()

    def compute_figure_rows(self, name: str, **options: Any) -> pl.DataFrame | None:
        """Return the rows that a figure shows, or None if the capture lacks this data. The result is cached."""
        key = (name, frozenset(options.items()))
        if key not in self._rows:
            self._rows[key] = self._compute_or_record_missing_table(lambda: self.view.figure_rows(name, **options))
        return self._rows[key]

    def build_tables(self, declared: _TableDeclaration, figure: str = "") -> list[Element]:
        """Return a list with a declared table, or an empty list if it has no rows.

        Args:
            declared: The table.
            figure: Name of the figure whose rows are shown if the table names no report.
        """
        if declared.needs and not count_rows(self.view.tables, declared.needs):
            return []
        if declared.report:
            report = self._compute_or_record_missing_table(lambda: self.view.report(declared.report))
            frame = report and report.frame(None if declared.omits_zeros else ROWS)
            total = report and report.rows
        else:
            frame = self.compute_figure_rows(figure)
            total = None if frame is None else frame.height
        if not total:
            return []
        analysis = get_analysis(declared.report, REPORT, RULE) if declared.report else get_analysis(figure, FIGURE)
        columns, header = declared.columns or frame.columns, declared.header
        if declared.omits_zeros:
            columns = [name for name in columns if not name.endswith("(ns)") or frame[name].sum()]
        table = build_frame_table(
            declared.caption, frame, columns, max_rows=ROWS, total=total, header=header, declared=analysis.columns
        )
        return [table]

    def build_declared_sections(self, declared: _SectionDeclaration) -> Iterator[Section]:
        """Yield a section with its declared figure and table, or nothing if the capture lacks the data of both."""
        if declared.needs and not count_rows(self.view.tables, declared.needs):
            return
        figures = self.draw_figure(declared.figure) if declared.figure else []
        tables = [] if declared.table is None else self.build_tables(declared.table, declared.figure)
        if figures or tables:
            yield Section(declared.title, declared.anchor, [*figures, *tables])

    def _compute_or_record_missing_table(self, compute: Callable[[], Any]) -> Any:
        try:
            return compute()
        except MissingTableError as e:
            self.missing.append(e)
            return None


def _build_explanation_sections(builder: _SectionsBuilder) -> Iterator[Section]:
    yield from build_answer_sections(builder.explanation)


def build_answer_sections(explanation: Explanation | TracekitError) -> Iterator[Section]:
    """Yield a section that explains why a step takes as long as it does. Without steps on a GPU, yield nothing.

    Args:
        explanation: The answer of ``why``, or the error if the steps cannot be explained.
    """
    if isinstance(explanation, TracekitError):
        hints = [explanation.hint] if explanation.hint else []
        yield Section("Why", "why", notes=[f"The steps cannot be explained: {explanation.message}.", *hints])
    elif explanation.is_answered:
        columns = [ColumnText("cause", "Cause"), *_OCCURRENCES]
        rows = [(c.title, c.count, c.total_ns, c.start_ns, c.end_ns) for c in explanation.causes]
        table = build_table("Occurrences of the causes", columns, rows) if rows else None
        yield Section("Why", "why", [table], answer=explanation)


_OCCURRENCES = (
    ColumnText("count", "Occurrences", "", "Number of occurrences in all steady steps."),
    ColumnText("total_ns", "Time of all", NANOSECONDS, "Time of all occurrences in all steady steps."),
    ColumnText("start_ns", "Start of the longest", POINT, "Start of the longest occurrence."),
    ColumnText("end_ns", "End of the longest", POINT, "End of the longest occurrence."),
)


def _build_article(title: str, paragraphs: Sequence[str], pairs: Sequence[tuple[str, Content]]) -> Element:
    return tag.article(tag.h3(title), map(tag.p, paragraphs), build_description_list(pairs))


def _build_parts_table(caption: str, rows: Sequence[tuple[str, int, float]]) -> Element:
    columns = describe_columns(["part", "time_ns", "percent"], get_analysis("time_breakdown", FIGURE).columns)
    return build_table(caption, columns, rows)


def _build_overview_sections(builder: _SectionsBuilder) -> Iterator[Section]:
    """Yield a section with metadata of the capture, the GPU utilization and the time breakdown."""
    pairs = [*_list_capture_metadata(builder.view), *_list_time_metadata(builder)]
    names = ("gpu_utilization", "time_breakdown", "kernel_time")
    figures = [chart for name in names for chart in builder.draw_figure(name)]
    content = [build_description_list(pairs), *figures, *_build_overview_tables(builder)]
    yield Section("Overview", "overview", content)


def _list_capture_metadata(view: View) -> Iterator[tuple[str, Content]]:
    """Yield metadata of the capture and the machine, such as the driver version, as pairs of a label and a value.

    Metadata missing from the capture is omitted.
    """
    info = view.info
    for name, label in METADATA.items():
        if value := info.get(name):
            yield label, value
    gpus = scan_table(view.tables, "devices").sort("device_id").collect().rows(named=True)
    makers = list_makers_of_capture(info, gpus)
    for gpu in gpus:
        details = [name_gpu(gpu["name"], gpu["chip"], makers)]
        if gpu["sm_count"]:
            units = "compute units" if is_without_cuda(makers) else "multiprocessors"
            details.append(f"{gpu['sm_count']:,} {units}")
        if gpu["memory_bytes"]:
            details.append(format_value(gpu["memory_bytes"], BYTES))
        yield f"GPU {gpu['device_id']}", ", ".join(details)
    if info.get("origin_utc_ns", "").isdecimal():
        seconds = int(info["origin_utc_ns"]) // 1_000_000_000
        if seconds <= _LAST_SECOND:
            time = dt.datetime.fromtimestamp(seconds, dt.UTC)
            yield "Recorded at", f"{time:%Y-%m-%d %H:%M:%S} UTC"
    if info.get("duration_ns", "").isdecimal():
        yield "Duration of the capture", build_value(int(info["duration_ns"]), NANOSECONDS)


_LAST_SECOND = 253_402_300_799


def _list_time_metadata(builder: _SectionsBuilder) -> Iterator[tuple[str, Content]]:
    """Yield statistics of GPU utilization, iterations and kernel time as pairs of a label and a value."""
    devices, iterations, kinds = (
        builder.compute_figure_rows(n) for n in ("gpu_utilization", "iteration_table", "kernel_time")
    )
    if iterations is not None:
        aggregated = iterations.filter("is_aggregated")
        durations = (aggregated["window_end_ns"] - aggregated["window_start_ns"]).to_list()
        if key := iterations["key_op"][0]:
            yield "Steps begin or end with", key
        if iterations.height > 1:
            names = [name or f"{number:,}" for name, number in aggregated.select("name", "iteration").iter_rows()]
            yield "Aggregated steps", f"{aggregated.height:,} of {iterations.height:,} ({names[0]} to {names[-1]})"
        yield "Mean duration of a step", build_value(sum(durations) // len(durations), NANOSECONDS)
        yield "Kernels in these steps", build_value(int(aggregated["kernel_count"].sum()))
    if devices is not None:
        used = devices.filter(devices["busy_ns"] > 0)["percent"].to_list()
        yield (
            "GPU utilization in these steps (mean of used GPUs)",
            build_value(sum(used) / len(used) if used else 0.0, PERCENT),
        )
        yield "GPUs with kernels in these steps", f"{len(used):,} of {devices.height:,}"
    if kinds is not None:
        time = dict(kinds.select("kind", "time_ns").iter_rows())
        kernels = time["tensor_core"] + time["other_kernel"]
        yield "Kernel time in these steps", build_value(kernels, NANOSECONDS)
        if time["graph"]:
            yield (
                "Time of CUDA graphs in these steps that were recorded as a whole",
                build_value(time["graph"], NANOSECONDS),
            )
        if kernels:
            share = 100 * time["tensor_core"] / kernels
            shown = (build_value(time["tensor_core"], NANOSECONDS), ", ", build_value(share, PERCENT))
            yield "Kernel time on Tensor Cores in these steps", shown


def _build_overview_tables(builder: _SectionsBuilder) -> list[Element]:
    """Return a list with the table of the time breakdown, or an empty list if the capture lacks the data."""
    rows = builder.compute_figure_rows("time_breakdown")
    if rows is None:
        return []
    cells = [(PART_NAMES[part], ns, percent) for part, ns, percent in rows.iter_rows()]
    return [_build_parts_table("Time of the aggregated iterations, mean of the used GPUs", cells)]


def _build_advice_sections(builder: _SectionsBuilder) -> Iterator[Section]:
    """Yield a section with the findings of the report ``advise``, or with the reason why there are none.

    The causes that the section "Why" lists are not repeated. If there are no others, there is no section.
    """
    import polars as pl

    listed = builder.list_explained_causes()
    findings = builder.view.report("advise").frame().filter(~pl.col("Rule").is_in(listed))
    if listed and findings.is_empty():
        return
    articles = [
        _build_article(
            row["Problem"],
            (row["Evidence"], row["Advice"]),
            (
                ("Time", build_value(row["Time (ns)"], NANOSECONDS)),
                ("Share of the iterations", build_value(row["Time (%)"], PERCENT)),
                ("Occurrences", build_value(row["Count"])),
                ("Start of the longest occurrence", build_value(row["Start (ns)"], POINT)),
                ("End of the longest occurrence", build_value(row["End (ns)"], POINT)),
            ),
        )
        for row in findings.rows(named=True)
    ]
    notes = [ABOUT_RULES if articles else explain_missing_advice(builder.view)]
    yield Section("Advice", "advice", articles, notes)


def _build_recorded_findings_sections(builder: _SectionsBuilder) -> Iterator[Section]:
    """Yield a section with the findings that DLProf or rules of Nsight Compute recorded, or nothing without them."""
    import polars as pl

    view = builder.view
    if not count_rows(view.tables, "findings") and not count_rows(view.tables, "ncu_rules"):
        return
    rows = view.figure_rows("recorded_messages").filter(pl.col("rule").is_not_null())
    columns = ["rule", "kind", "message", "recommendation", "count", "speedup_percent"]
    used = [name for name in columns if rows[name].null_count() < rows.height]
    if used:
        tools = " and ".join(dict.fromkeys(rows["tool"]))
        declared = get_analysis("recorded_messages", FIGURE).columns
        table = build_frame_table(f"Findings of {tools}", rows, used, max_rows=ROWS, declared=declared)
        yield Section("Recorded by the profiler", "recorded", [table])


def _build_iterations_sections(builder: _SectionsBuilder) -> Iterator[Section]:
    import polars as pl

    rows = builder.compute_figure_rows("iteration_table")
    if rows is None:
        return
    notes = []
    declared = get_analysis("iteration_table", FIGURE).columns
    columns: list[str | ColumnText] = ["iteration", "name", "window_start_ns", _DURATION, *_COUNTED]
    timed = rows.with_columns(duration_ns=rows["window_end_ns"] - rows["window_start_ns"])
    if builder.omits_iterations:
        timed = timed.with_columns(pl.when("is_aggregated").then(column).alias(column) for column in _COUNTED)
        notes = ["Kernels are counted only in the aggregated iterations. The other iterations have empty cells."]
    table = build_frame_table("Iterations", timed, columns, max_rows=ROWS, declared=declared)
    yield Section("Iterations", "iterations", [*builder.draw_figure("iterations"), table], notes)


_DURATION = ColumnText(
    "duration_ns", "Duration", NANOSECONDS, "Time in which the CPU and the GPU work on the iteration.", "end − start"
)
_COUNTED = ("kernel_count", "kernel_time_ns", "tensor_core_kernel_time_ns")


def _build_groups_sections(builder: _SectionsBuilder) -> Iterator[Section]:
    ops = builder.compute_figure_rows("top_ops")
    if ops is None:
        return
    metric = "gpu_time_ns" if ops["gpu_time_ns"].sum() else "cpu_time_ns"
    charts = [*builder.draw_figure("groups", metric=metric), *builder.draw_figure("top_ops")]
    times = ("gpu_time_ns", "cpu_time_ns", "gpu_idle_ns")
    columns = ("op_id", "op_name", "direction", "instance_count", "kernel_count", *times)
    declared = get_analysis("top_ops", FIGURE).columns
    table = build_frame_table("Ops with the longest time", ops, columns, max_rows=ROWS, declared=declared)
    yield Section("Groups and ops", "groups", [*charts, table])


def _build_communication_sections(builder: _SectionsBuilder) -> Iterator[Section]:
    """Yield a section with NCCL kernels and MPI calls. Yield nothing if the capture has neither."""
    view = builder.view
    columns = ("Name", *_STATISTICS)
    tables = _build_collective_tables(view, columns) if count_rows(view.tables, "kernels") else []
    tables += builder.build_tables(_TableDeclaration("MPI calls", columns, report="mpi_event_sum", needs="mpi_calls"))
    overlap = _TableDeclaration("Overlap with computation by step", _OVERLAP, "Step", report="communication_overlap")
    tables += builder.build_tables(overlap) if tables else []
    if tables:
        yield Section("Communication", "communication", tables)


def _build_collective_tables(view: View, columns: Sequence[str]) -> list[Element]:
    """Return tables of the NCCL kernels by name and of the longest NCCL kernels, or an empty list if there are none."""
    import polars as pl

    is_collective = pl.col("Name").cast(pl.String).str.contains(_NCCL)
    names = view.report("cuda_gpu_kern_sum").frame().filter(is_collective)
    if names.is_empty():
        return []
    kernels = scan_table(view.tables, "kernels").filter(pl.col("name").cast(pl.String).str.contains(_NCCL))
    duration = (pl.col("end_ns") - pl.col("start_ns")).alias("duration_ns")
    longest = kernels.select("short_name", duration, "start_ns", "device_id", "stream_id").collect()
    longest = longest.sort("duration_ns", "start_ns", descending=[True, False])
    declared = [*schemas.table("kernels").columns, *get_analysis("cuda_gpu_kern_sum", REPORT).columns]
    shown: list[str | ColumnText] = ["short_name", _DURATION_OF_KERNELS, "start_ns", "device_id", "stream_id"]
    return [
        build_frame_table("NCCL kernels by name", names, columns, max_rows=ROWS, declared=declared),
        build_frame_table("Longest NCCL kernels", longest, shown, max_rows=ROWS, declared=declared),
    ]


_DURATION_OF_KERNELS = ColumnText("duration_ns", "Duration", NANOSECONDS, "Duration of the kernel.", "end − start")
_NCCL = r"(?i)nccl"


WHOLE_CAPTURE = "This section shows the whole capture, not only the aggregated iterations."
_STATISTICS = ("Time (%)", "Total Time (ns)", "Instances", "Avg (ns)", "Min (ns)", "Max (ns)")
_STEP_PARTS = (
    *(
        "PID",
        "Step",
        "Name",
        "Duration (ns)",
        "Change (%)",
        "Mostly",
        "Compute (ns)",
        "Graphs (ns)",
        "Communication (ns)",
    ),
    *("Waiting For Ranks (ns)", "Copies (ns)", "Idle: CPU Work (ns)", "Idle: Launch Code (ns)"),
    *("Idle: Launch Calls (ns)", "Idle: Synchronization (ns)", "Idle: Blocking Copy (ns)", "Idle: Allocation (ns)"),
    *("Idle: Host Allocation (ns)", "Idle: Code Loading (ns)", "Idle: Launch Latency (ns)", "Idle: Unknown (ns)"),
)
_OVERLAP = (
    *("PID", "Step", "Name", "Duration (ns)", "Communication (ns)", "Overlapped (ns)", "Exposed (ns)"),
    *("Waiting For Ranks (ns)", "Overlap (%)"),
)
_QUEUES = (
    *("Device", "PID", "Strm", "Operations", "Span (ns)", "Max", "Max Start (ns)", "Mean", "Waiting (ns)", "Empty (%)"),
)
_IDLE_CAUSES = (
    *("Device ID", "PID", "Cause", "Idle (%)", "Total Time (ns)", "Gaps", "Max (ns)", "Start (ns)", "Mostly In"),
    "Time In It (ns)",
)
_SECTIONS = (
    _SectionDeclaration("Why", "why", build=_build_explanation_sections),
    _SectionDeclaration("Overview", "overview", build=_build_overview_sections, shows_steps=True),
    _SectionDeclaration("Advice", "advice", build=_build_advice_sections, shows_steps=True),
    _SectionDeclaration("Recorded by the profiler", "recorded", build=_build_recorded_findings_sections),
    _SectionDeclaration("Iterations", "iterations", build=_build_iterations_sections, shows_steps=True),
    _SectionDeclaration(
        "Time of the steps",
        "steps",
        "step_parts",
        _TableDeclaration("Steps by part", _STEP_PARTS, "Step", report="step_parts", omits_zeros=True),
        shows_steps=True,
    ),
    _SectionDeclaration("Utilization over time", "over-time", "utilization_over_time", shows_whole_capture=True),
    _SectionDeclaration("Groups and ops", "groups", build=_build_groups_sections, shows_steps=True),
    _SectionDeclaration(
        "Kernels",
        "kernels",
        "top_kernels",
        _TableDeclaration("Kernels", ("Name", *_STATISTICS), report="cuda_gpu_kern_sum", needs="kernels"),
        shows_whole_capture=True,
    ),
    _SectionDeclaration(
        "Roofline",
        "roofline",
        "roofline",
        _TableDeclaration(
            "What limits each kernel",
            ("Name", "Time (%)", "Total Time (ns)", "Launches", "Math (%)", "Memory (%)", "Limiter"),
            report="ncu_limiter",
        ),
        needs="ncu_launches",
    ),
    _SectionDeclaration(
        "Idle time of the GPUs",
        "idle",
        "idle_causes",
        _TableDeclaration("Idle time by cause", _IDLE_CAUSES, "Cause"),
        shows_steps=True,
    ),
    _SectionDeclaration(
        "Communication", "communication", build=_build_communication_sections, shows_whole_capture=True
    ),
    _SectionDeclaration(
        "Queues of the streams",
        "queues",
        "queue_length",
        _TableDeclaration("Operations that were launched and have not started", _QUEUES, "Strm", "queue_length"),
        needs="api_calls",
        shows_whole_capture=True,
    ),
    _SectionDeclaration(
        "API calls",
        "api",
        "api",
        _TableDeclaration(
            "API calls",
            ("Name", "Time (%)", "Total Time (ns)", "Num Calls", "Avg (ns)", "Min (ns)", "Max (ns)"),
            report="cuda_api_sum",
            needs="api_calls",
        ),
        shows_whole_capture=True,
    ),
    _SectionDeclaration(
        "Memory copies",
        "copies",
        "copies",
        _TableDeclaration("Memory copies and sets", ("name", "count", "bytes", "time_ns")),
        shows_whole_capture=True,
    ),
    _SectionDeclaration(
        "NVTX ranges",
        "nvtx",
        "nvtx",
        _TableDeclaration("NVTX ranges", ("Range", "Style", *_STATISTICS), report="nvtx_sum", needs="nvtx_ranges"),
        shows_whole_capture=True,
    ),
    _SectionDeclaration(
        "Memory in use",
        "memory",
        "memory_usage",
        _TableDeclaration("Peak of each kind of memory", None, report="gpu_memory_peak", needs="memory_events"),
        shows_whole_capture=True,
    ),
    _SectionDeclaration(
        "Owners of the memory at the peak",
        "owners",
        "",
        _TableDeclaration("Owners of the memory", None, "Owner", report="gpu_memory_owners", needs="memory_events"),
        shows_whole_capture=True,
    ),
    _SectionDeclaration(
        "Owners of the allocated memory at the peak",
        "allocator",
        "",
        _TableDeclaration("Owners of the memory", None, "Owner", report="allocator_owners", needs="allocator_events"),
        shows_whole_capture=True,
    ),
    _SectionDeclaration("GPU metrics", "metrics", "metrics", shows_whole_capture=True),
)
"""The sections, in the order of the page."""
