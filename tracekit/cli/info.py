"""The command ``tracekit info``, which shows the format, devices, time span and row counts of profiles."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tracekit.cli.options import ANSWER, input_options, inputs_argument, is_folder_or_pattern, is_strict, load_input
from tracekit.cli.output import open_output_page, print_error
from tracekit.errors import TracekitError
from tracekit.registry.absence import Absence, State
from tracekit.registry.notices import RecordedWarning, explain_missing_gpu_work, format_notices, list_recorded_warnings
from tracekit.sets.paths import expand_paths, warn_about_unreadable
from tracekit.text.makers import is_without_cuda, list_makers_of_capture, name_gpu

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from tracekit.cli.options import CapturePath
    from tracekit.trace import Trace


@click.command("info")
@inputs_argument
@input_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON, one object per input.")
@click.option(
    "--format",
    "style",
    type=click.Choice(["text", "json", ANSWER]),
    help="How to print what IN contains. json is the same as --json. answer is JSON with rows, their columns and a "
    "status, one object per input.",
)
def info_command(*, paths: tuple[CapturePath, ...], from_: str | None, as_json: bool, style: str | None) -> None:
    """Show the format, version, devices, time span and row counts of each IN, and count undecoded events.

    Warnings and errors that the profiler recorded come first, followed by the reason if IN contains no GPU work.

    If IN is a folder of captures or a pattern, every capture in it is shown.

    If one of several inputs cannot be read, an error is printed on standard error, the other inputs are shown, and the
    exit status is 1.
    """
    failed = False
    expanded = list(_expand_folders_and_patterns(paths, from_))
    for path, is_named in expanded:
        try:
            with load_input(path, from_) as trace:
                metadata = _answer(trace) if style == ANSWER else collect_metadata(trace)
        except (TracekitError, OSError) as e:
            if len(expanded) == 1 or (is_strict() and not is_named):
                raise
            if is_named:
                failed = True
                print_error(e)
            else:
                warn_about_unreadable(path, e)
            continue
        with open_output_page() as page:
            if as_json or style in ("json", ANSWER):
                page.print_json(metadata)
            else:
                for line in format_metadata(metadata):
                    page.print_line(line)
    if failed:
        raise click.exceptions.Exit(1)


def _answer(trace: Trace) -> dict[str, Any]:
    """Return what a capture contains in the envelope that all answers share."""
    from tracekit.answers.ask import answer

    return answer(trace, "info").to_dict()


def _expand_folders_and_patterns(paths: Iterable[CapturePath], from_: str | None) -> Iterator[tuple[CapturePath, bool]]:
    """Yield each capture, and whether the user named it rather than its folder or a pattern."""
    for path in paths:
        if is_folder_or_pattern(path):
            yield from ((file, False) for file in expand_paths(path, from_, strict=is_strict()))
        else:
            yield path, True


def collect_metadata(trace: Trace) -> dict[str, Any]:
    """Return the JSON object that ``tracekit info`` prints about a trace, with its format, devices and row counts."""
    from tracekit.trace import get_trace_view

    view = get_trace_view(trace)
    missing = explain_missing_gpu_work(view)
    devices = trace.devices.select(
        "device_id", "name", "chip", "compute_major", "compute_minor", "sm_count", "memory_bytes"
    )
    span = trace.span()
    counts = {name: n for name, n in trace.count_all().items() if n}
    return {
        "path": str(trace.path),
        "recorded_warnings": [asdict(warning) for warning in list_recorded_warnings(view)],
        "missing_gpu_work": missing and {**missing._asdict(), "state": missing.state.value},
        "format": trace.format,
        **trace.info,
        "ranks": _collect_rank_metadata(trace),
        "span_ns": None if span is None else list(span),
        **_collect_ncu_metadata(trace),
        "devices": devices.sort("device_id").to_dicts(),
        "rows": counts,
        "undecoded": {name: {"count": u.count, "bytes": u.bytes} for name, u in trace.undecoded.items()},
    }


def _collect_rank_metadata(trace: Trace) -> list[dict[str, Any]]:
    """Return the ranks of a capture and the size of its job, as recorded by each source, such as MPI."""
    from tracekit.sets.member import read_recorded_metadata

    evidence = read_recorded_metadata(trace, trace.path or Path()).evidence
    return [{"source": e.source, "ranks": list(e.ranks), "size": e.size} for e in evidence if e.ranks]


def _collect_ncu_metadata(trace: Trace) -> dict[str, Any]:
    """Return a summary of the Nsight Compute results, or an empty dictionary if there are no results.

    The summary contains the number of results by kind, the numbers of launches, of metrics and of results in NVTX
    ranges, and the sum of the measured durations.
    """
    import polars as pl

    if not trace.count("ncu_launches"):
        return {}
    launches = trace.frame("ncu_launches").select("kind", "invocations", "range_depth", "duration_ns").collect()
    metrics = trace.frame("ncu_metrics").select(pl.coalesce("metric", "label").n_unique()).collect().item()
    kinds = launches["kind"].cast(pl.String).value_counts(sort=True)
    return {
        "results": dict(kinds.iter_rows()),
        "launches": launches["invocations"].sum(),
        "metrics": metrics,
        "results_in_ranges": launches.filter(pl.col("range_depth") > 0).height,
        "measured_ns": launches.select((pl.col("duration_ns") * pl.col("invocations")).sum()).item(),
    }


def format_metadata(metadata: dict[str, Any]) -> Iterator[str]:
    """Yield the lines that ``tracekit info`` prints about a trace, given the result of ``collect_metadata``."""
    yield metadata["path"]
    warnings = [RecordedWarning(**warning) for warning in metadata.get("recorded_warnings", ())]
    missing = metadata.get("missing_gpu_work")
    for sentence in format_notices(warnings, missing and Absence(**{**missing, "state": State(missing["state"])})):
        yield f"  {sentence}"
    version = f"{metadata.get('tool', '')} {metadata.get('tool_version', '')}".strip()
    named = {"format": metadata["format"], "written by": version, "schema": metadata.get("schema_version")}
    if metadata.get("ranks"):
        named["rank"] = "; ".join(map(_format_rank, metadata["ranks"]))
    if metadata.get("origin_utc_ns"):
        named["origin"] = _format_utc(int(metadata["origin_utc_ns"]))
    if metadata["span_ns"]:
        first, last = metadata["span_ns"]
        named["events"] = (
            f"{_format_ms(last - first)} ms, from {_format_ms(first)} ms to {_format_ms(last)} ms after the origin"
        )
    if metadata.get("results"):
        named["results"] = _describe_ncu_results(metadata)
    named |= {"pages": metadata.get("pages"), "runs": metadata.get("runs")}
    makers = list_makers_of_capture(metadata, metadata["devices"])
    named |= {f"GPU {d['device_id']}": _describe_device(d, makers) for d in metadata["devices"]}
    named |= {name: "1 row" if n == 1 else f"{n:,} rows" for name, n in metadata["rows"].items()}
    nonempty = {name: text for name, text in named.items() if text}
    width = max(map(len, nonempty))
    yield from (f"  {name:<{width}}  {text}" for name, text in nonempty.items())
    if metadata["undecoded"]:
        yield from _format_undecoded_events(metadata["undecoded"])


def _format_rank(rank_metadata: dict[str, Any]) -> str:
    """Format the rank of a capture as recorded by one source, such as ``1 of 2 (MPI)``."""
    size = "" if rank_metadata["size"] is None else f" of {rank_metadata['size']}"
    return f"{', '.join(map(str, rank_metadata['ranks']))}{size} ({rank_metadata['source']})"


def _describe_ncu_results(metadata: dict[str, Any]) -> str:
    """Return a summary of the Nsight Compute results in one line."""
    kinds = [f"{n:,} {kind}{'' if n == 1 else 's'}" for kind, n in metadata["results"].items()]
    launches = f" of {metadata['launches']:,} launches" if "group" in metadata["results"] else ""
    inside = metadata["results_in_ranges"]
    parts = [
        ", ".join(kinds) + launches,
        f"{metadata['metrics']:,} metrics",
        f"{inside:,} in NVTX ranges" if inside else "",
    ]
    time = f"{_format_ms(metadata['measured_ns'])} ms" if metadata["measured_ns"] else ""
    return ", ".join(part for part in [*parts, time] if part)


def _format_undecoded_events(sizes_by_event_class: dict[str, dict[str, int | None]]) -> Iterator[str]:
    """Yield a heading, and a line with the number and total size of the events of each undecoded event class."""
    yield "  recorded, but not decoded:"
    counts = {name: f"{size['count']:,}" for name, size in sizes_by_event_class.items()}
    totals = {
        name: "" if size["bytes"] is None else f"{size['bytes']:,} bytes" for name, size in sizes_by_event_class.items()
    }
    widths = [max(map(len, column)) for column in (counts, counts.values(), totals.values())]
    for name, count in counts.items():
        yield f"    {name:<{widths[0]}}  {count:>{widths[1]}}  {totals[name]:>{widths[2]}}".rstrip()


def _format_utc(ns: int) -> str:
    """Format nanoseconds since 1970 as a UTC time."""
    from datetime import UTC, datetime, timedelta

    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=ns // 1_000_000_000)
    return f"{moment:%Y-%m-%d %H:%M:%S}.{ns % 1_000_000_000:09d} UTC"


def _format_ms(ns: int) -> str:
    """Format nanoseconds as milliseconds with three decimals, rounded down."""
    sign, ns = ("-", -ns) if ns < 0 else ("", ns)
    return f"{sign}{ns // 1_000_000:,}.{ns % 1_000_000 // 1000:03d}"


def _describe_device(device: dict[str, Any], makers: Sequence[str]) -> str:
    """Return the name, compute capability or chip, number of multiprocessors and memory of a GPU in one line.

    Args:
        device: A row of ``devices``.
        makers: The makers of the GPUs of the capture, or nothing if they are unknown.
    """
    is_cuda = not is_without_cuda(makers)
    name = device["name"] or (name_gpu(None, device["chip"], makers) if makers else "unnamed")
    parts = [name]
    if is_cuda and device["compute_major"] is not None:
        parts.append(f"compute capability {device['compute_major']}.{device['compute_minor']}")
    if not is_cuda and device["chip"] and device["chip"] != name:
        parts.append(device["chip"])
    if device["sm_count"] is not None:
        parts.append(f"{device['sm_count']} {'SMs' if is_cuda else 'compute units'}")
    if device["memory_bytes"]:  # nsys of 2020 writes 0
        parts.append(f"{device['memory_bytes'] // (1 << 20):,} MiB")
    return ", ".join(parts)
