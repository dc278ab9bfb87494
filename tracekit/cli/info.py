"""``tracekit info``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tracekit.cli.options import from_option, load

if TYPE_CHECKING:
    from tracekit.trace import Trace


@click.command("info")
@click.argument("paths", metavar="IN...", nargs=-1, required=True, type=click.Path(path_type=Path))
@from_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON: one object an input.")
def command(paths: tuple[Path, ...], from_: str | None, as_json: bool) -> None:  # noqa: FBT001
    """Show format, version, devices, time span and row counts of each IN."""
    for path in paths:
        with load(path, from_) as trace:
            facts = summary(trace)
        if as_json:
            click.echo(json.dumps(facts, ensure_ascii=False))
        else:
            _print(facts)


def summary(trace: Trace) -> dict[str, Any]:
    """Collect what is worth knowing of a trace before opening it."""
    devices = trace.devices.select("device_id", "name", "compute_major", "compute_minor", "sm_count", "memory_bytes")
    counts = {name: n for name in trace.tables if (n := trace.count(name))}
    return {
        "path": str(trace.path),
        "format": trace.format,
        **trace.info,
        "span_ns": _span(trace),
        "devices": devices.sort("device_id").to_dicts(),
        "rows": counts,
    }


def _span(trace: Trace) -> list[int] | None:
    """First start and last end of what ran on the GPU, was called or was marked."""
    import polars as pl

    ends = []
    for name in ("kernels", "memcpys", "memsets", "graph_launches", "api_calls", "nvtx_ranges", "osrt_calls"):
        if trace.count(name):
            ends.append(trace.frame(name).select(low=pl.col("start_ns").min(), high=pl.col("end_ns").max()).collect())
    if not ends:
        return None
    both = pl.concat(ends)
    return [both["low"].min(), both["high"].max()]  # type: ignore[list-item]


def _print(facts: dict[str, Any]) -> None:
    click.echo(facts["path"])
    version = f"{facts.get('tool', '')} {facts.get('tool_version', '')}".strip()
    lines = {"format": facts["format"], "written by": version, "schema": facts.get("schema_version")}
    if facts.get("origin_utc_ns"):
        lines["origin"] = _utc(int(facts["origin_utc_ns"]))
    if facts["span_ns"]:
        low, high = facts["span_ns"]
        lines["events"] = f"{_ms(high - low)} ms, from {_ms(low)} ms to {_ms(high)} ms after the origin"
    for d in facts["devices"]:
        lines[f"GPU {d['device_id']}"] = _device(d)
    lines |= {name: f"{n:,} rows" for name, n in facts["rows"].items()}
    width = max(map(len, lines))
    for name, text in lines.items():
        if text:
            click.echo(f"  {name:<{width}}  {text}")


def _utc(ns: int) -> str:
    from datetime import UTC, datetime, timedelta

    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=ns // 1_000_000_000)
    return f"{moment:%Y-%m-%d %H:%M:%S}.{ns % 1_000_000_000:09d} UTC"


def _ms(ns: int) -> str:
    sign, ns = ("-", -ns) if ns < 0 else ("", ns)
    return f"{sign}{ns // 1_000_000:,}.{ns % 1_000_000 // 1000:03d}"


def _device(d: dict[str, Any]) -> str:
    capability = "" if d["compute_major"] is None else f", compute capability {d['compute_major']}.{d['compute_minor']}"
    sms = "" if d["sm_count"] is None else f", {d['sm_count']} SMs"
    memory = "" if d["memory_bytes"] is None else f", {d['memory_bytes'] // (1 << 20):,} MiB"
    return f"{d['name'] or 'unnamed'}{capability}{sms}{memory}"
