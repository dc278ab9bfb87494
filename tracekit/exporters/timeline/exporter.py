"""Create the exporters of timeline formats, such as Chrome and Perfetto traces."""

from __future__ import annotations

import functools
import importlib
from typing import TYPE_CHECKING, Any

import polars as pl

from tracekit.registry.analyses import Option
from tracekit.registry.interface import Exporter

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from tracekit.registry.interface import ManyTraces, Progress, View

DEFAULT, ALL = "default", "all"
BY_DEFAULT = (
    *("api", "gpu", "nvtx", "osrt", "projections", "counters", "page-faults", "tensorflow", "mpi", "openmp", "openacc"),
    *("ucx", "libraries", "graphics", "graphs", "overheads", "communication"),
)
"""Names of the tracks that are drawn by default."""
ON_REQUEST = (
    *("samples", "python", "threads", "syscalls", "compilation", "cuda-overheads", "graph-nodes", "memory-pools"),
    *("context-switches", "diagnostics"),
)
"""Names of the tracks that are drawn only on request.

They may have very many events, or they are in reports but not in exports, such as ``compilation``.
"""
TRACKS = Option(
    "tracks",
    f"names of the tracks to draw, separated by commas: {', '.join(BY_DEFAULT)} (drawn by default), "
    f"{', '.join(ON_REQUEST)} (drawn only on request), default (all that are drawn by default), or all",
    "list",
    (DEFAULT,),
    choices=(DEFAULT, ALL, *BY_DEFAULT, *ON_REQUEST),
)


def select_tracks(names: Sequence[str]) -> frozenset[str]:
    """Return the names of the tracks that a value of the option ``tracks`` selects."""
    groups = {DEFAULT: BY_DEFAULT, ALL: (*BY_DEFAULT, *ON_REQUEST)}
    return frozenset(track for name in names for track in groups.get(name, (name,)))


def concat_expr(parts: Iterable[str | pl.Expr]) -> pl.Expr:
    """Return an expression that concatenates literal strings and the values of expressions. Nulls result in null."""
    merged: list[str | pl.Expr] = []
    for part in parts:
        if isinstance(part, str) and merged and isinstance(merged[-1], str):
            merged[-1] += part
        else:
            merged.append(part)
    return pl.concat_str([pl.lit(p) if isinstance(p, str) else p for p in merged])


def create_timeline_exporter(
    package: str, name: str, description: str, suffixes: tuple[str, ...], options: tuple[Option, ...] = ()
) -> Exporter:
    """Return the exporter of a timeline format. Files whose names end in ``.gz`` are gzipped.

    Args:
        package: Name of the package of the format. The function ``write`` of its module ``export`` writes one trace to
            a file, and ``write_many`` several traces. Their parameters are the view or the traces, the path, a function
            that is told the progress, the selected tracks, and by name the values of other options. The module is
            imported on first use.
        name: Name of the format.
        description: Description of the format for lists of formats.
        suffixes: File name suffixes of the format, beginning with the default.
        options: The options of the format besides ``tracks``.
    """
    return Exporter(
        name,
        description,
        suffixes,
        write=functools.partial(_write, package),
        write_many=functools.partial(_write_many, package),
        correlated=True,
        options=(TRACKS, *options),
    )


def _write(package: str, view: View, path: Path, progress: Progress, *, options: Mapping[str, Any]) -> None:
    """Write the events on the selected tracks of a trace to a file."""
    tracks, others = _split_options(options)
    importlib.import_module(f"{package}.export").write(view, path, progress, tracks, **others)


def _write_many(
    package: str, traces: ManyTraces, path: Path, progress: Progress, *, options: Mapping[str, Any]
) -> None:
    """Write the events on the selected tracks of several traces to one file. Each trace has its own processes."""
    tracks, others = _split_options(options)
    importlib.import_module(f"{package}.export").write_many(traces.align(), path, progress, tracks, **others)


def _split_options(options: Mapping[str, Any]) -> tuple[frozenset[str], dict[str, Any]]:
    """Return the selected tracks, and the values of all other options by the names of parameters."""
    others = {name.replace("-", "_"): value for name, value in options.items() if name != TRACKS.name}
    return select_tracks(options[TRACKS.name]), others
