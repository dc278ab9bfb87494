"""Determine the rank of each capture of a set from recorded metadata, file names, and ranks that the user specifies."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

from tracekit.errors import TracekitError, convert_to_printable_path, warn
from tracekit.sets.member import MAX_RANK, NCCL, Member, RankEvidence
from tracekit.system.platform.file_names import use_slashes

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping, Sequence

    from tracekit.sets.member import RecordedMetadata

RESULT_FORMATS = ("ncu-rep", "ncu-csv")
LOG_FORMAT = "nccl"
"""The formats of Nsight Compute, whose results of single kernels belong to the captures of timelines beside them."""
FILE_NAME, POSITION, REQUESTED = "the file name", "the order of the names", "given"
_LISTED = 8
_IN_NAME = re.compile(
    r"(?:(?<![a-z])(?P<local>local[._-]?)?(?:mpi|world|global)?rank[._-]?|(?:^|[._-])r)(?P<rank>[0-9]{1,7})(?![0-9a-z])",
    re.IGNORECASE,
)
_DOTTED = re.compile(r"\.([0-9]{1,7})(?=\.|$)")


def parse_ranks_in_file_name(file_name: str) -> set[int]:
    """Return the ranks in a file name such as ``rank0``, ``rank_0`` or ``run_r12``."""
    stem = _remove_suffix(file_name)
    return {int(m["rank"]) for m in _IN_NAME.finditer(stem) if not m["local"]}


def remove_rank_from_file_name(file_name: str) -> str:
    """Return a file name without its rank, such as ``run_`` for ``run_rank3.nsys-rep``."""
    return _IN_NAME.sub("", _remove_suffix(file_name))


def find_distinguishing_numbers(file_names: Sequence[str]) -> dict[str, int]:
    """Map each file name to the number in which it differs from the other names.

    The result is empty unless the names differ in exactly one number. For a single name, the result contains its only
    number between dots, such as 3 in ``report.3.nsys-rep``.
    """
    stems = [_remove_suffix(name) for name in file_names]
    if len(file_names) == 1:
        dotted = _DOTTED.findall(stems[0])
        return {file_names[0]: int(dotted[0])} if len(dotted) == 1 else {}
    split = [re.split(r"([0-9]+)", stem) for stem in stems]
    if len({(len(s), *s[::2]) for s in split}) != 1:
        return {}
    varying = [i for i in range(1, len(split[0]), 2) if len({int(s[i]) for s in split}) > 1]
    if len(varying) != 1 or any(len(s[varying[0]]) > 7 for s in split):  # noqa: PLR2004 - such as a time
        return {}
    return {name: int(s[varying[0]]) for name, s in zip(file_names, split, strict=True)}


def assign_ranks(
    captures: Sequence[RecordedMetadata],
    specified_ranks: Mapping[str, int] | None = None,
    skipped_paths: Iterable[Path] = (),
) -> tuple[Member, ...]:
    """Determine the rank of each capture, and return the members of the set, sorted by rank.

    A rank that the user specifies overrides all other sources. Otherwise, the recorded ranks and the rank in the file
    name must agree. The rank of a capture without these sources is the number in which the file names differ. Without
    such a number, the captures are numbered in their order. Results of Nsight Compute among other captures get the
    numbers after the ranks of these captures, unless the user specifies ranks.

    Args:
        captures: The metadata that each capture records.
        specified_ranks: Ranks that the user specifies, by file name, stem of a file name, path or end of a path.
        skipped_paths: Captures that were skipped. Ranks that are specified for them are ignored.

    Raises:
        TracekitError: The sources of a rank contradict each other, two captures have the same rank, the rank of some
            captures is unknown, a name matches no capture, or logs of collectives are among captures.
    """
    _check_logs_are_separate(captures)
    timelines = [c for c in captures if c.format not in RESULT_FORMATS]
    if timelines and len(timelines) < len(captures) and not specified_ranks:
        ranked = assign_ranks(timelines, skipped_paths=skipped_paths)
        results = [c for c in captures if c.format in RESULT_FORMATS]
        return (*ranked, *(make_member(c, n, POSITION) for n, c in enumerate(results, ranked[-1].rank + 1)))
    chosen = _find_specified_ranks(captures, specified_ranks or {}, [path.absolute() for path in skipped_paths])
    size = _compute_min_world_size(captures, chosen)
    weak = find_distinguishing_numbers([c.path.name for c in captures])
    members, unknown = [], []
    for capture in captures:
        rank = (
            (chosen[capture.path], REQUESTED)
            if capture.path in chosen
            else _find_agreed_rank_and_source(capture, size, captures)
        )
        if rank is None and capture.path.name in weak:
            rank = weak[capture.path.name], FILE_NAME
        if rank is None:
            unknown.append(capture)
        else:
            members.append(make_member(capture, *rank))
    if unknown and members:
        message = (
            f"the rank of {_format_file_names(unknown)} is unknown, although the ranks of other captures are known"
        )
        raise TracekitError(message, hint=_create_rank_option_hint(unknown[0].path, captures))
    if unknown:
        members = [make_member(capture, number, POSITION) for number, capture in enumerate(unknown)]
        if len(unknown) > 1:
            warn(
                f"no capture records its rank: {len(unknown)} captures are numbered from 0 in the order of their names"
            )
    _check_ranks_are_unique(members)
    _warn_about_missing_ranks(members)
    return tuple(sorted(members, key=lambda m: m.rank))


def name_uniquely(path: Path, paths: Sequence[Path]) -> str:
    """Return the shortest end of a path, such as its file name, that identifies it among several paths."""
    ends = ("/".join(path.parts[-count:]) for count in range(1, len(path.parts)))
    return next((end for end in ends if _match_paths(end, paths) == [path]), str(path))


def _match_paths(name: str, paths: Sequence[Path]) -> list[Path]:
    """Return the paths that a name refers to, which is a path, a file name, its stem or the end of a path."""
    path = Path(name).absolute()
    if path in paths:
        return [path]
    matches = [p for p in paths if name in (p.name, p.stem)]
    return matches or [p for p in paths if p.as_posix().endswith(f"/{use_slashes(name)}")]


def _find_specified_ranks(
    captures: Sequence[RecordedMetadata], ranks_by_name: Mapping[str, int], skipped_paths: Sequence[Path]
) -> dict[Path, int]:
    """Return the ranks that the user specified, by path of the capture.

    Raises:
        TracekitError: A name matches no capture or several captures, or a number is not a rank.
    """
    ranks: dict[Path, int] = {}
    for name, rank in ranks_by_name.items():
        matches = _match_paths(name, [c.path for c in captures])
        if not matches and _match_paths(name, skipped_paths):
            continue
        if len(matches) != 1:
            how_many = "no capture" if not matches else f"{len(matches)} captures"
            raise TracekitError(
                f"rank {rank} was specified for {name!r}, which matches {how_many}",
                hint=f"choose one of the captures {_format_file_names(captures, matches)}",
            )
        if not 0 <= rank < MAX_RANK:
            raise TracekitError(
                f"{rank} is not a valid rank", path=matches[0], hint=f"use an integer from 0 to {MAX_RANK - 1}"
            )
        ranks[matches[0]] = rank
    return ranks


def _compute_min_world_size(captures: Sequence[RecordedMetadata], specified_ranks: Mapping[Path, int]) -> int:
    """Return the smallest number of ranks that the job can have, given its captures and their recorded metadata.

    Ranks from NCCL are ignored, because they may be those of a communicator with only some ranks of the job.
    """
    known = [len(captures), *(rank + 1 for rank in specified_ranks.values())]
    for capture in captures:
        known += [rank + 1 for rank in parse_ranks_in_file_name(capture.path.name)]
        known += [e.size or 0 for e in capture.evidence]
        known += [rank + 1 for e in capture.evidence if e.source != NCCL for rank in e.ranks]
    return max(known)


def _find_agreed_rank_and_source(
    capture: RecordedMetadata, min_world_size: int, captures: Sequence[RecordedMetadata]
) -> tuple[int, str] | None:
    """Return the rank on which all sources agree, and the name of the first source.

    Return None if no source states exactly one rank. The rank in an NCCL communicator is used only if the communicator
    contains all ranks of the job.

    Raises:
        TracekitError: The sources contradict each other.
    """
    in_name = parse_ranks_in_file_name(capture.path.name)
    evidence = [*capture.evidence, *([RankEvidence(FILE_NAME, tuple(in_name))] if len(in_name) == 1 else [])]
    evidence = [e for e in evidence if e.ranks and (e.source != NCCL or (e.size or 0) >= min_world_size)]
    single = [e for e in evidence if len(e.ranks) == 1]
    if not single:
        return None
    first = single[0]
    if any(first.ranks[0] not in e.ranks for e in evidence):
        ranks = ", ".join(f"{' and '.join(map(str, e.ranks))} according to {e.source}" for e in evidence)
        message = f"the rank of this capture is contradictory: {ranks}"
        raise TracekitError(message, path=capture.path, hint=_create_rank_option_hint(capture.path, captures))
    too_small = next((e for e in evidence if e.size is not None and first.ranks[0] >= e.size), None)
    if too_small is not None:
        count = f"the number of ranks is {too_small.size} according to {too_small.source}"
        message = f"the rank of this capture is {first.ranks[0]} according to {first.source}, but {count}"
        raise TracekitError(message, path=capture.path, hint=_create_rank_option_hint(capture.path, captures))
    return first.ranks[0], first.source


def determine_rank(capture: RecordedMetadata, min_world_size: int = 0) -> int | None:
    """Return the rank of a single capture of a set that is not known yet, or None if the rank is unknown.

    The recorded ranks and the rank in the file name must agree. Without both, a number between dots in the file name is
    the rank, such as 3 in ``report.3.nsys-rep``.

    Args:
        capture: The metadata that the capture records.
        min_world_size: The smallest number of ranks that the job can have.

    Raises:
        TracekitError: The sources of the rank contradict each other.
    """
    size = max(min_world_size, _compute_min_world_size([capture], {}))
    agreed = _find_agreed_rank_and_source(capture, size, [capture])
    name = capture.path.name
    return find_distinguishing_numbers([name]).get(name) if agreed is None else agreed[0]


def are_all_ranks_specified(
    paths: Sequence[Path], specified_ranks: Mapping[str, int], remote_paths: Container[Path] = ()
) -> bool:
    """Return whether the user specified the ranks of all files, so that no file has to be read to determine ranks.

    Args:
        paths: The captures.
        specified_ranks: Ranks by file name, stem of a file name, path or end of a path.
        remote_paths: The captures that are not on this machine.
    """
    absolute = [path.absolute() for path in paths]
    specified = {path for name in specified_ranks for path in _match_paths(name, absolute)}
    return specified.issuperset(absolute) and all(path in remote_paths or path.is_file() for path in paths)


def make_member(capture: RecordedMetadata, rank: int, rank_source: str) -> Member:
    """Create a member from its rank and the recorded metadata of its capture."""
    several = [e.ranks for e in capture.evidence if len(e.ranks) > 1]
    return Member(
        path=capture.path,
        rank=rank,
        format=capture.format,
        source=rank_source,
        world_size=max((e.size for e in capture.evidence if e.size), default=None),
        devices=capture.devices,
        origin_utc_ns=capture.origin_utc_ns,
        duration_ns=capture.duration_ns,
        recorded_ranks=several[0] if several else (),
        local_rank=capture.local_rank,
        host=capture.host,
        is_read=capture.is_read,
        state=capture.state,
    )


def _check_logs_are_separate(captures: Sequence[RecordedMetadata]) -> None:
    """Check that all captures are logs of collectives, or none of them.

    Raises:
        TracekitError: Logs of collectives are among other captures, which have the same ranks.
    """
    logs = [c for c in captures if c.format == LOG_FORMAT]
    others = [c for c in captures if c.format not in (LOG_FORMAT, *RESULT_FORMATS)]
    if logs and others:
        raise TracekitError(
            f"{_format_file_names(logs)} and {_format_file_names(others)} cannot be ranks of one set: "
            "the first are logs of collectives, and the others are captures",
            hint="pass only one of them, or join them in Python: load_many(captures).join_logs(load_many(logs))",
        )


def _check_ranks_are_unique(members: Sequence[Member]) -> None:
    """Check that no two captures have the same rank.

    Raises:
        TracekitError: Several captures have the same rank.
    """
    by_rank: dict[int, list[Member]] = defaultdict(list)
    for member in members:
        by_rank[member.rank].append(member)
    for rank, same in by_rank.items():
        if len(same) > 1:
            paths = [m.path for m in same]
            sources = ", ".join(
                f"{convert_to_printable_path(name_uniquely(m.path, paths))} (by {m.source})" for m in same[:_LISTED]
            )
            message = f"{len(same)} captures have rank {rank}: {sources}"
            raise TracekitError(
                message, hint=f"omit one of these captures, or {_create_rank_option_hint(same[1].path, members)}"
            )


def _warn_about_missing_ranks(members: Sequence[Member]) -> None:
    """Warn if ranks of the job are missing, or if captures state different numbers of ranks."""
    sizes = sorted({m.world_size for m in members if m.world_size})
    if len(sizes) > 1:
        warn(f"the captures state different numbers of ranks: {', '.join(map(str, sizes))}")
    ranks = {m.rank for m in members} | {rank for m in members for rank in m.recorded_ranks}
    size = max([*sizes, max(ranks) + 1])
    missing = [rank for rank in range(size) if rank not in ranks] if size <= MAX_RANK else []
    if missing:
        more = ", …" if len(missing) > _LISTED else ""
        listed = ", ".join(map(str, missing[:_LISTED])) + more
        warn(f"{len(missing)} of {size} ranks are missing: {listed}")


def _format_file_names(captures: Sequence[RecordedMetadata], shown_paths: Sequence[Path] = ()) -> str:
    """Return the names of captures, joined into a string for error messages.

    Args:
        captures: The captures. Names that several of them have are preceded by folders.
        shown_paths: The paths of the captures to name. If empty, the first captures are named.
    """
    paths = [c.path for c in captures]
    shown = list(shown_paths or paths)
    more = ", …" if len(shown) > _LISTED else ""
    return ", ".join(convert_to_printable_path(name_uniquely(path, paths)) for path in shown[:_LISTED]) + more


def _create_rank_option_hint(path: Path, captures: Sequence[RecordedMetadata | Member]) -> str:
    """Return a hint that states how to specify the rank of one of several captures."""
    name = convert_to_printable_path(name_uniquely(path, [c.path for c in captures]))
    return f"specify the rank with ranks={{{name!r}: N}} or --rank {name}=N"


def _remove_suffix(file_name: str) -> str:
    """Return a file name without its suffix. A numeric suffix, which may be a rank, is not removed."""
    stem, dot, suffix = file_name.rpartition(".")
    return stem if dot and not suffix.isdecimal() else file_name
