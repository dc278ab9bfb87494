"""Read one capture of a watched folder, and reduce it to the summary of its ranks. This runs on the workers."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from tracekit.core.communication import read_rank_tables
from tracekit.core.watch import CaptureSummary, map_processes_to_ranks, summarize_capture
from tracekit.errors import TracekitError, UnknownFormatError
from tracekit.plan.cache.identity import compute_content_digest
from tracekit.sets.member import read_recorded_metadata
from tracekit.sets.member_set import open_member
from tracekit.sets.paths import has_capture_suffix
from tracekit.sets.ranks import determine_rank, parse_ranks_in_file_name
from tracekit.trace import call_with_tables, get_trace_view

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tracekit.sets.member import Member, RecordedMetadata
    from tracekit.trace import Trace

_TIMELINES_ELSEWHERE = (
    *("ncu-rep", "ncu-csv", "parquet", "arrow", "tfevents", "graphdef", "dlprof-db", "memory-snapshot"),
)
"""Formats without the timeline of a rank. Files of these formats are not reduced."""


class ReducedCapture(NamedTuple):
    """The result of reducing a capture.

    Attributes:
        content: Digest of the content.
        format: Name of the format. "" if no reader recognizes the file.
        summary: The summary of its ranks. None if the file is not a timeline.
    """

    content: str
    format: str
    summary: CaptureSummary | None


class ReductionOptions(NamedTuple):
    """How captures are read.

    Attributes:
        folder: The watched folder. "" for a URL.
        format: Name of the format of all captures. None if it is detected.
        ranks: Ranks that the user specifies, by the name of a file or of a folder that contains it.
        world_size: Number of ranks that the user specifies. None if it is unknown.
    """

    folder: str
    format: str | None
    ranks: Mapping[str, int]
    world_size: int | None


def reduce_capture(options: ReductionOptions, member: Member) -> ReducedCapture:
    """Return the summary of a capture.

    Raises:
        TracekitError: The capture cannot be read, or its rank is unknown.
    """
    try:
        return _reduce(options, member)
    except (TracekitError, OSError):
        raise
    except Exception as e:
        # whatever a damaged file causes in a library, the watch has to go on with the other files
        message = f"the capture cannot be reduced ({type(e).__name__})"
        raise TracekitError(message, path=member.path, hint="open it with tracekit info") from e


def _reduce(options: ReductionOptions, member: Member) -> ReducedCapture:
    content = "" if member.url is not None else _compute_digest(member.path)
    try:
        with open_member(replace(member, format=options.format or "")) as trace:
            if trace.format in _TIMELINES_ELSEWHERE:
                return ReducedCapture(content, trace.format, None)
            content = content or _compute_remote_digest(trace, member)
            summary = _summarize(options, trace, member)
            name = trace.format
    except UnknownFormatError:
        if has_capture_suffix(member.path.name) or member.url is not None:
            raise
        return ReducedCapture(content, "", None)
    if member.url is None and _compute_digest(member.path) != content:
        raise TracekitError("the file changed while it was read", path=member.path, hint="wait until it is complete")
    return ReducedCapture(content, name, summary)


def _compute_digest(path: Path) -> str:
    """Return the digest of a file, or of all files of a folder of tables."""
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.is_file())
        listed = "\n".join(f"{file.name}\0{compute_content_digest(file)}" for file in files)
        return hashlib.sha256(listed.encode()).hexdigest()[:32]
    digest = compute_content_digest(path)
    if digest is None:
        raise TracekitError("the file changes while it is read", path=path, hint="wait until it is complete")
    return digest


def _compute_remote_digest(trace: Trace, member: Member) -> str:
    """Return the digest of a downloaded file or, if the file is not kept, that of its ends with its size."""
    copy = None if member.kept_copy is None else member.kept_copy.get_path()
    digest = None if copy is None else compute_content_digest(copy)
    state = getattr(get_trace_view(trace).plan.source.origin, "state", None)
    return digest or f"{state.size}:{state.digest}" if state is not None else str(digest)


def _summarize(options: ReductionOptions, trace: Trace, member: Member) -> CaptureSummary:
    """Return the summary of the ranks of a trace."""
    metadata = read_recorded_metadata(trace, member.path)
    tables = call_with_tables(trace, read_rank_tables, key=read_rank_tables)
    rank = _find_rank(options, metadata)
    ranks = map_processes_to_ranks(tables, rank)
    if ranks is None:
        several = tables["iterations"]["process_id"].n_unique() > 1
        what = "the ranks of the processes of this capture are" if several else "the rank of this capture is"
        hint = f"name the file or its folder like rank0, or use --rank {member.path.name}=N"
        raise TracekitError(f"{what} unknown", path=member.path, hint=hint)
    sizes = [e.size for e in metadata.evidence if e.size]
    return summarize_capture(tables, ranks, max(sizes, default=None))


def _find_rank(options: ReductionOptions, metadata: RecordedMetadata) -> int | None:
    """Return the rank of a capture: what the user specified, what it records, or the name of the file or a folder."""
    path = metadata.path
    folders = path.relative_to(options.folder).parts[:-1] if options.folder else ()
    for name in (path.name, path.stem, *reversed(folders)):
        if name in options.ranks:
            return options.ranks[name]
    known = determine_rank(metadata, options.world_size or 0)
    if known is not None:
        return known
    for folder in reversed(folders):
        ranks = parse_ranks_in_file_name(f"{folder}.d")
        if len(ranks) == 1:
            return ranks.pop()
    return None
