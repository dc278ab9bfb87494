"""The answer to ``tracekit FILE``: what makes the program slow, and what the capture contains."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, NamedTuple

import click

from tracekit import schemas
from tracekit.cli.info import collect_metadata, format_metadata
from tracekit.cli.options import input_options, inputs_argument, jobs_option, load_inputs, quiet_option, rank_option
from tracekit.cli.output import list_step_notes, open_output_page, show_progress_bar
from tracekit.cli.why import format_explanation
from tracekit.errors import convert_to_printable_path
from tracekit.registry.absence import format_class, format_row_count
from tracekit.registry.notices import explain_missing_advice, list_notices
from tracekit.sets.notices import explain_missing_advice_of_ranks, list_notices_of_ranks
from tracekit.text.explanations import KERNELS_TITLE
from tracekit.text.makers import list_makers_of_capture, name_gpu

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import polars as pl

    from tracekit.cli.options import CapturePath, TraceOrSet
    from tracekit.sets import TraceSet
    from tracekit.text.explanations import Explanation
    from tracekit.text.names import TableName
    from tracekit.trace import Trace

MAX_FINDINGS = 5
MAX_PARTS = 6
MAX_RANKS = 10
_INDENT = "     "
COUNTED: tuple[TableName, ...] = (
    *schemas.list_tables("activity"),
    *(
        "allocator_events",
        "communication_calls",
        "activity_totals",
        "api_calls",
        "nvtx_ranges",
        "osrt_calls",
        "ncu_launches",
        "ncu_rules",
        "ops",
        "graph_nodes",
        "scalars",
    ),
)
"""Tables whose rows are counted by name."""


class PrintedFinding(NamedTuple):
    """A finding as it is printed. The evidence and the advice may be empty."""

    problem: str
    evidence: str
    advice: str


class Findings(NamedTuple):
    """The most expensive findings, the total number of findings, and the command that prints all of them."""

    listed: Sequence[PrintedFinding]
    total: int
    command: str


class _Context(click.Context):
    """A context without the name of a command in its usage message, because the command has none."""

    @property
    def command_path(self) -> str:
        """The name of the program."""
        return super().command_path.rstrip()


class _Command(click.Command):
    """The command that runs if a file is passed without a command."""

    context_class = _Context


@click.command("tracekit", cls=_Command)
@inputs_argument
@input_options
@rank_option
@jobs_option
@quiet_option
def summary_command(*, paths: tuple[CapturePath, ...], from_: str | None, quiet: bool) -> None:
    """Show why a step is slow, and what a capture contains.

    This is what tracekit does if a file is passed without a command. Several inputs are treated as the ranks of one
    job. A file that has the name of a command, such as info, has to be passed as ./info.
    """
    names = " ".join(shlex.quote(convert_to_printable_path(path)) for path in paths)
    with load_inputs(paths, from_) as trace, open_output_page() as page:
        with show_progress_bar("computing", quiet=quiet):
            explanation = _explain(trace)
            if explanation.ledger_title == KERNELS_TITLE:
                lines = list(_describe_results(trace, names, explanation))
            elif explanation.is_answered:
                lines = list(_describe_with_explanation(trace, names, explanation))
            else:
                lines = list(_describe_with_findings(trace, names))
        for line in lines:
            page.print_wrapped_line(line)


def _explain(trace: TraceOrSet) -> Explanation:
    """Return why the steps of a capture or of the ranks of a job take as long as they do."""
    from tracekit.core.diagnosis.texts import write_explanation
    from tracekit.trace import Trace, get_trace_view

    if isinstance(trace, Trace):
        return get_trace_view(trace).explanation(MAX_PARTS)
    return write_explanation(trace.why(), max_parts=MAX_PARTS)


def _describe_with_explanation(trace: TraceOrSet, names: str, explanation: Explanation) -> Iterator[str]:
    """Yield why a step is slow, what the capture contains in a few lines, and which commands show more."""
    from tracekit.trace import Trace, get_trace_view

    is_capture = isinstance(trace, Trace)
    yield str(trace.path) if isinstance(trace, Trace) else names
    notices = list_notices(get_trace_view(trace)) if isinstance(trace, Trace) else list_notices_of_ranks(trace)
    yield from (f"  {notice}" for notice in notices)
    yield ""
    yield from format_explanation(explanation, is_short=True)
    yield ""
    yield from _describe_capture_briefly(trace) if isinstance(trace, Trace) else _describe_ranks(trace)
    yield ""
    yield f"evidence, warm-up: tracekit why {names}"
    findings = trace.stats("advise").height
    if findings:
        count = "1 finding" if findings == 1 else f"all {findings:,} findings"
        yield f"{count}: tracekit stats {names} -r advise"
    if trace.count("kernels"):
        yield f"GPU time by kernel: tracekit stats {names} -r cuda_gpu_kern_sum"
    if is_capture:
        yield f"GPUs, rows by table: tracekit info {names}"
    yield f"in the browser: tracekit view {names}"


def _describe_results(trace: TraceOrSet, names: str, explanation: Explanation) -> Iterator[str]:
    """Yield why the kernels that Nsight Compute measured are slow, what the results contain, and their rules."""
    path, *description = _describe_with_findings(trace, names)
    yield from (path, "", *format_explanation(explanation, is_short=True), "", *description)


def _describe_with_findings(trace: TraceOrSet, names: str) -> Iterator[str]:
    """Yield what a capture without steps on a GPU contains, and the findings that Nsight Compute recorded in it."""
    from tracekit.trace import Trace

    if isinstance(trace, Trace):
        yield from _describe_capture(trace)
    else:
        yield names
        yield from (f"  {notice}" for notice in list_notices_of_ranks(trace))
        yield from _describe_ranks(trace)
    yield ""
    findings = collect_findings(trace)
    if findings.listed:
        for i, finding in enumerate(findings.listed, start=1):
            yield from _format_finding(i, finding)
        count = "1 finding" if findings.total == 1 else f"all {findings.total:,} findings"
        yield from ("", f"{count}: tracekit {findings.command.format(names)}")
    else:
        yield from (*explain_missing_findings(trace), "")
    yield f"in the browser: tracekit view {names}"


def _describe_capture(trace: Trace) -> Iterator[str]:
    """Yield the lines of ``tracekit info``, with the numbers of rows in one line."""
    metadata = collect_metadata(trace)
    yield from format_metadata({**metadata, "rows": {}, "undecoded": {}})
    yield from _describe_rows(trace, metadata["rows"])


def _describe_capture_briefly(trace: Trace) -> Iterator[str]:
    """Yield the format, the GPUs, the numbers of rows, and the steps of a capture."""
    devices = trace.devices.select("name", "chip").to_dicts()
    makers = list_makers_of_capture(trace.info, devices)
    names = [name_gpu(device["name"], device["chip"], makers) for device in devices]
    gpus = [f"{names.count(name)} × {name}" for name in dict.fromkeys(names)]
    yield "  " + ", ".join([trace.format or "tables", *gpus])
    yield from _describe_rows(trace, {name: n for name, n in trace.count_all().items() if n})


def _describe_rows(trace: Trace, rows: Mapping[str, int]) -> Iterator[str]:
    """Yield the numbers of rows by table, the numbers of events that are not decoded, and the steps."""
    counts = [format_row_count(rows[name], name) for name in COUNTED if name in rows]
    others = len(rows) - len(counts)
    tables = "table" if others == 1 else "tables"
    counts += [f"{others:,} other {tables}"] if counts and others else []
    yield f"  rows: {', '.join(counts)}" if counts else f"  rows in {others:,} {tables}" if others else "  no rows"
    if trace.undecoded:
        yield f"  recorded, but not decoded: {_describe_undecoded(trace)}"
    if any(trace.count(name) for name in schemas.list_tables("activity")):
        yield from (f"  steps: {note}" for note in list_step_notes(trace))


def _describe_undecoded(trace: Trace) -> str:
    """Return the numbers of the events that are recorded but not decoded, by class of event, in one line."""
    counts = [format_class(name, undecoded.count) for name, undecoded in trace.undecoded.items()]
    return ", ".join(counts[:MAX_FINDINGS]) + ", …" * (len(counts) > MAX_FINDINGS)


def _describe_ranks(traces: TraceSet) -> Iterator[str]:
    """Yield lines about the captures of several ranks."""
    ranks, rows = traces.ranks, traces.count_all()
    listed = ", ".join(map(str, ranks[:MAX_RANKS])) + ", …" * (len(ranks) > MAX_RANKS)
    yield f"  {len(ranks):,} ranks: {listed}" if len(ranks) > 1 else f"  rank {listed}"
    yield f"  rows: {', '.join(format_row_count(rows[name], name) for name in COUNTED if rows[name]) or 'none'}"
    if any(rows[name] for name in schemas.list_tables("activity")):
        yield from (f"  steps: {note}" for note in list_step_notes(traces))


def collect_findings(trace: TraceOrSet) -> Findings:
    """Return the most expensive findings of ``advise``, or those that Nsight Compute recorded."""
    import polars as pl

    rows = trace.stats("advise")
    has_own_rules = trace.count("ncu_rules") > 0 and not trace.count("kernels")
    if rows.height and not has_own_rules:
        rows = rows.sort("Time (ns)", descending=True, maintain_order=True)
        prefix = pl.format("rank {}: ", "rank") if "rank" in rows.columns else pl.lit("")
        problem = pl.format(
            "{}{} (up to {} ms, {} % of the time)", prefix, "Problem", _ms_expr("Time (ns)"), "Time (%)"
        )
        listed = rows.head(MAX_FINDINGS).select(problem, "Evidence", "Advice")
        return Findings([PrintedFinding(*row) for row in listed.iter_rows()], rows.height, "stats {} -r advise")
    rules = trace.frame("ncu_rules").filter(pl.col("type").cast(pl.String) != "INF").collect()
    if rules.is_empty():
        return Findings([], 0, "")
    rule = pl.coalesce("title", "rule", "rule_id", "section").cast(pl.String).fill_null("rule")
    groups = (
        rules.sort("speedup_percent", descending=True, nulls_last=True, maintain_order=True)
        .group_by(rule.alias("rule"), maintain_order=True)
        .agg(pl.len(), pl.col("speedup_percent").max(), pl.col("message").first().fill_null(""))
        .sort("speedup_percent", "len", descending=True, nulls_last=True, maintain_order=True)
    )
    speedup = pl.format(", estimated speedup up to {} %", pl.col("speedup_percent").round(1)).fill_null("")
    noun = pl.when(pl.col("len") == 1).then(pl.lit("message")).otherwise(pl.lit("messages"))
    problem = pl.format("{} ({} {} of Nsight Compute{})", "rule", "len", noun, speedup)
    listed = groups.head(MAX_FINDINGS).select(problem, "message", pl.lit("").alias("advice"))
    return Findings([PrintedFinding(*row) for row in listed.iter_rows()], rules.height, "rows {} ncu_rules")


def _ms_expr(column: str) -> pl.Expr:
    """Return an expression for times in ms with three decimals, given a column of times in ns."""
    import polars as pl

    us = pl.col(column) // 1000
    return pl.format("{}.{}", us // 1000, (us % 1000).cast(pl.String).str.zfill(3))


def explain_missing_findings(trace: TraceOrSet) -> list[str]:
    """Return sentences that say why there are no findings, with the number of ranks to which each one applies."""
    from tracekit.sets.trace_set import TraceSet
    from tracekit.trace import get_trace_view

    if isinstance(trace, TraceSet):
        return explain_missing_advice_of_ranks(trace)
    return [explain_missing_advice(get_trace_view(trace))]


def _format_finding(number: int, finding: PrintedFinding) -> list[str]:
    """Return the lines of a finding: the problem after its number, the evidence, and the advice."""
    details = [f"{_INDENT}{text}" for text in (finding.evidence, finding.advice) if text]
    return [f"{number:>3}. {finding.problem}", *details]
