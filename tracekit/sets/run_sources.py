"""Find the runs that captures, folders, patterns and baselines contain, and read one run after another.

A run is one execution of the program. The captures of its ranks are read as one run.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, cast

from tracekit.errors import TracekitError, convert_to_printable_path
from tracekit.sets import TraceSet, load_many, paths, ranks
from tracekit.sets.comparison import is_baseline, list_input_files_of_side, read_json_file
from tracekit.sets.member import read_recorded_metadata
from tracekit.system.files import convert_file_url_to_path
from tracekit.system.targets import Input
from tracekit.text.urls import is_url
from tracekit.trace import Trace, load

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tracekit.core.compare import Summary
    from tracekit.sets.comparison import Side, Summarizer
    from tracekit.sets.member import RecordedMetadata

_MAX_ENTRIES = 10_000


@dataclass(frozen=True, slots=True)
class RunSource:
    """What is read as one run, or a baseline with several runs.

    Attributes:
        captures: Paths and URLs of the captures of the ranks of the run, or the path of one baseline.
    """

    captures: tuple[Path | str, ...]


class ReadRun(NamedTuple):
    """A run that has been read, and whose captures are still open.

    Attributes:
        source: The capture, the captures of the ranks, the path of the baseline, or None for a summary.
        summary: The summary of the run.
        steps: The capture with the iterations that were summarized. None if there are several captures or none.
    """

    source: Trace | TraceSet | Path | None
    summary: Summary
    steps: Trace | None = None


class RunObserver:
    """What is called with each run while its captures are open."""

    def __call__(self, run: ReadRun) -> None:
        """Handle a run that has been read."""

    def forget(self, count: int) -> None:
        """Forget the last runs, because they are read again."""


class RunReader:
    """Reads the runs of both sides of a check, one capture at a time.

    The iterations of all runs are delimited by the op that delimits those of most runs of the side that is read first,
    if they have this op. The roll-up may choose different ops for runs of one program, such as if some lack events.

    Args:
        summarizer: How captures are summarized.
        is_one_run: Whether the captures of each folder or pattern are the ranks of one run.
        observe: Observer that is called with each run in turn, or None.

    Attributes:
        inputs: The files that have been read, which an output must not replace.
    """

    def __init__(
        self,
        summarizer: Summarizer,
        *,
        is_one_run: bool = False,
        observe: RunObserver | None = None,
    ) -> None:
        self._summarizer = summarizer
        self._is_one_run = is_one_run
        self._observe = observe or RunObserver()
        self.inputs: list[Input] = []

    def read(self, sides: Side | Sequence[Side]) -> list[Summary]:
        """Return the runs of captures, sets of captures, paths and baselines.

        Raises:
            TracekitError: A file cannot be read, or captures are probably the ranks of one run.
        """
        from tracekit.core.check import reduce_to_run

        runs = self._read_sides(sides)
        key_ops = Counter(run.facts["key_op"] for run in runs if "key_op" in run.facts)
        if self._summarizer.preferred_key_op is None and key_ops:
            (key_op, count), *_ = key_ops.most_common(1)
            self._summarizer = replace(self._summarizer, preferred_key_op=key_op)
            if count < len(runs):
                self._observe.forget(len(runs))
                runs = self._read_sides(sides)
        return [reduce_to_run(run) for run in runs]

    def _read_sides(self, sides: Side | Sequence[Side]) -> list[Summary]:
        recorded: dict[Path | str, RecordedMetadata] = {}
        runs = [run for side in list_sides(sides) for run in self._read_side(side, recorded)]
        _check_ranks(recorded)
        return runs

    def _read_side(self, side: Side, recorded: dict[Path | str, RecordedMetadata]) -> Iterator[Summary]:
        if isinstance(side, str | os.PathLike):
            yield from self._read_paths(side, recorded)
        else:
            self.inputs += list_input_files_of_side(side)
            if isinstance(side, Trace):
                yield self._summarize(side)
                return
            summary = self._summarizer.summarize(side)
            self._observe(ReadRun(side if isinstance(side, TraceSet) else None, summary))
            yield summary

    def _summarize(self, trace: Trace) -> Summary:
        """Return the summary of a capture that is a run."""
        rolled_up = self._summarizer.roll_up(trace)
        summary = self._summarizer.summarize_rolled_up(rolled_up)
        self._observe(ReadRun(trace, summary, rolled_up))
        return summary

    def _read_paths(
        self, path: str | os.PathLike[str], recorded: dict[Path | str, RecordedMetadata]
    ) -> Iterator[Summary]:
        """Yield the runs at a path, and add what single captures record about their ranks."""
        for source in list_run_sources(path, is_one_run=self._is_one_run, strict=self._summarizer.strict):
            first = source.captures[0]
            self.inputs += [Input.from_path(path) for path in source.captures if isinstance(path, Path)]
            if is_baseline(first):
                from tracekit.core.compare import baseline

                for summary in read_json_file(first, baseline.decode_runs, "the baseline"):
                    self._observe(ReadRun(Path(first), summary))
                    yield summary
            elif len(source.captures) > 1:
                with load_many(list(source.captures), strict=self._summarizer.strict) as traces:
                    summary = self._summarizer.summarize(traces)
                    self._observe(ReadRun(traces, summary))
                    yield summary
            else:
                with load(first) as trace:
                    yield self._summarize(trace)
                    recorded[first] = read_recorded_metadata(trace, get_path(first))


def get_path(path: Path | str) -> Path:
    """Return the path of a capture, or for a URL its file name."""
    from tracekit.system.remote import convert_url_to_path

    return path if isinstance(path, Path) else convert_url_to_path(path)


def list_run_sources(
    path: str | os.PathLike[str], *, is_one_run: bool = False, strict: bool = False
) -> list[RunSource]:
    """Return the runs that a path, a folder, a pattern or a URL refers to, in natural order.

    Each capture of a folder or pattern is a run of its own, unless their names differ in a rank, such as
    ``a_rank0.nsys-rep`` and ``a_rank1.nsys-rep``. A folder of captures that a pattern matches is one run, and so is one
    inside a folder without captures of its own.

    Args:
        path: Path of a capture or of a baseline, a folder, a pattern, or a URL.
        is_one_run: Whether the captures of a folder or pattern are the ranks of one run.
        strict: Whether a file that has the suffix of a capture and cannot be read is an error.

    Raises:
        TracekitError: No file matches.
        FileNotFoundError: The path does not exist.
    """
    path = convert_file_url_to_path(path)
    if is_url(path):
        located = paths.expand_paths(path, strict=strict)
        return _group_by_run(located) if len(located) > 1 and not is_one_run else [RunSource(tuple(located))]
    path = Path(path)
    entries = _list_entries(path)
    if entries == [path]:
        return [RunSource((path,))]
    are_folders_runs = not path.is_dir() or not paths.is_folder_of_captures(path)
    folders = [entry for entry in entries if are_folders_runs and paths.is_folder_of_captures(entry)]
    baselines = [entry for entry in entries if entry not in folders and entry.is_file() and is_baseline(entry)]
    others = [entry for entry in entries if entry not in folders and entry not in baselines]
    sources = [RunSource(tuple(paths.expand_paths(folder, strict=strict))) for folder in folders]
    sources += [RunSource((baseline,)) for baseline in baselines]
    located = _locate(others, is_required=not sources, strict=strict)
    if is_one_run and located:
        return [*sources, RunSource(tuple(located))]
    return [*sources, *_group_by_run(located)]


def _locate(candidates: Sequence[Path], *, is_required: bool, strict: bool) -> list[Path | str]:
    """Return the captures among files. Without captures, raise an error only if one is required."""
    if is_required:
        return paths.expand_paths(candidates, strict=strict)
    captures = paths.locate_captures(candidates) if candidates else paths.CapturePaths()
    if strict:
        captures.raise_first_error()
    if captures.urls:
        captures.report_skipped()
    return [path if url is None else url for path, url in captures.urls.items()]


def _list_entries(path: Path) -> list[Path]:
    """Return the files and folders of a folder or pattern, or the path itself if it is a capture or a baseline."""
    if not path.is_dir() or paths.is_folder_of_captures(path):
        return paths.list_candidates(path)
    entries = sorted(path.iterdir(), key=lambda entry: paths.compute_natural_sort_key(entry.name))[:_MAX_ENTRIES]
    runs = [e for e in entries if paths.is_folder_of_captures(e) or (e.is_file() and is_baseline(e))]
    return runs or [path]


def _group_by_run(captures: Sequence[Path | str]) -> list[RunSource]:
    """Return the runs of captures. Captures whose names differ only in a rank belong to one run."""
    groups: dict[object, list[Path | str]] = {}
    for number, capture in enumerate(captures):
        path = get_path(capture)
        has_rank = len(ranks.parse_ranks_in_file_name(path.name)) == 1
        key = (path.parent, ranks.remove_rank_from_file_name(path.name)) if has_rank else number
        groups.setdefault(key, []).append(capture)
    return [RunSource(tuple(group)) for group in groups.values()]


def _check_ranks(recorded: Mapping[Path | str, RecordedMetadata]) -> None:
    """Check that single captures, which are read as runs, are not the ranks of one run.

    Raises:
        TracekitError: Two captures recorded different ranks.
    """
    rank_of = {}
    for path, metadata in recorded.items():
        stated = {e.ranks[0] for e in metadata.evidence if len(e.ranks) == 1 and (e.size or 0) > 1}
        if len(stated) == 1:
            rank_of[path] = stated.pop()
    if len(set(rank_of.values())) > 1:
        first, second = next((a, b) for a in rank_of for b in rank_of if rank_of[a] != rank_of[b])
        names = " and ".join(convert_to_printable_path(get_path(path).name) for path in (first, second))
        raise TracekitError(
            f"{names} recorded ranks {rank_of[first]} and {rank_of[second]}, so they are not two runs of one program",
            hint="put the captures of each run into a folder of its own, or use --one-run or one_run=True",
        )


def list_sides(sides: Side | Sequence[Side]) -> Sequence[Side]:
    """Return the captures, sets of captures, paths and baselines that one side of a check consists of."""
    return sides if isinstance(sides, list | tuple) else (cast("Side", sides),)
