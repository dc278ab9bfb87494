"""Compare captures with each other or with saved baselines."""

from __future__ import annotations

import contextlib
import json
import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from tracekit.errors import CorruptTraceError, TracekitError
from tracekit.plan import summaries
from tracekit.sets import TraceSet, paths
from tracekit.sets.trace_set import open_captures
from tracekit.system import targets
from tracekit.text.urls import is_url
from tracekit.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tracekit.core.compare import Diff, Summary
    from tracekit.trace import Layers

    Side: TypeAlias = Trace | TraceSet | Summary | str | os.PathLike[str]

Decoded = TypeVar("Decoded")
MAX_BASELINE_BYTES = 1 << 26
_HEAD_BYTES = 64
_HEAD = re.compile(rb'\s*\{\s*"format"\s*:\s*"tracekit-baseline"')


def diff(
    a: Side,
    b: Side,
    *,
    by: Sequence[str] | None = None,
    key_op: str | None = None,
    iterations: tuple[int | None, int | None] | None = None,
    include_warm_up: bool = False,
    exact_names: bool = False,
    alpha: float | None = None,
    min_percent: float | None = None,
) -> Diff:
    """Compare two captures, sets of captures or saved baselines.

    A change is *significant* if it is larger than the differences between the iterations of one side, and also larger
    than the usual differences between two runs of the same program. The page "Comparing captures" explains the test.

    Args:
        a: The first side: a trace, a set of traces, the path of a capture or of a baseline, a folder of captures, or a
            pattern.
        b: The second side, as for ``a``. Changes are those from ``a`` to ``b``.
        by: Kinds to compare: ``kernels``, ``ops``, ``groups``, ``nvtx_gpu``, ``nvtx``, ``api``, ``copies``, ``idle``,
            ``iterations``, ``op_kernels`` and ``categories``. If None, all kinds except the last two are compared or,
            if the GPUs have different makers, all except ``kernels`` and ``api``.
        key_op: Id or name of the op that delimits iterations, as for ``Trace.rollup``.
        iterations: First and last iteration to compare, both inclusive.
        include_warm_up: Whether the first iterations are compared even if they are much slower than the others, as for
            ``Trace.rollup``.
        exact_names: Whether names are compared as they were recorded. By default, hashes, addresses, numbers in
            template arguments and iteration numbers are replaced with ``*`` before names are compared.
        alpha: Probability that at least one change is significant although both sides come from the same distribution.
            The default is 0.01.
        min_percent: Smallest increase of a time in percent that is significant. The smallest significant decrease is
            the one that reverses this increase. If None, the value depends on the kind.

    Returns:
        The differences. ``frame("kernels")`` returns the differences of one kind, ``notes`` lists limitations of the
        comparison, and ``to_dict()`` returns everything as JSON values.

    Raises:
        UnknownFormatError: A kind does not exist, or no reader recognizes a file.
        TracekitError: A file cannot be read, or the value of an argument is not allowed.
        CorruptTraceError: A file is damaged.
        FileNotFoundError: A file does not exist.

    Examples:
        >>> import tracekit as tk
        >>> diff = tk.diff("fixtures/train_amp.sqlite", "fixtures/ddp2.sqlite", by=["copies"])
        >>> diff.frame("copies").select("name", "status", "count_a", "count_b").rows()[0]
        ('Device-to-Device', 'slower', 6, 24)
    """
    from tracekit.core import compare

    chosen = tuple(compare.KINDS if by is None else by)
    compare.check_kinds(chosen)
    summarizer = Summarizer(chosen, key_op, iterations, exact_names, include_warm_up=include_warm_up)
    before, after = summarizer.summarize_both(a, b)
    kinds = compare.choose_kinds(before, after) if by is None else chosen
    limit = compare.DEFAULT_ALPHA if alpha is None else alpha
    return compare.compare(before, after, kinds, alpha=limit, min_percent=min_percent)


def save_baseline(
    side: Side,
    path: str | os.PathLike[str],
    *,
    key_op: str | None = None,
    iterations: tuple[int | None, int | None] | None = None,
    include_warm_up: bool = False,
    exact_names: bool = False,
    overwrite: bool = False,
) -> Path:
    """Save a baseline of a capture, with which ``diff`` can compare other captures later.

    A baseline is a JSON file, which is much smaller than the capture. It contains the names, counts and times of
    events, but no host names, paths or command lines of the capture.

    Args:
        side: A trace, a set of traces, the path of a capture, a folder of captures, or a pattern.
        path: Baseline file to write.
        key_op: Id or name of the op that delimits iterations, as for ``Trace.rollup``.
        iterations: First and last iteration to save, both inclusive.
        include_warm_up: Whether the first iterations are saved even if they are much slower than the others, as for
            ``diff``.
        exact_names: Whether names are saved as they were recorded, as for ``diff``.
        overwrite: Whether to replace an existing file.

    Returns:
        The path of the file.

    Raises:
        TracekitError: The capture cannot be read.
        CorruptTraceError: The capture is damaged.
        ExportError: The file exists or cannot be written.

    Examples:
        >>> import tempfile, tracekit as tk
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     baseline = tk.save_baseline("fixtures/train_amp.sqlite", f"{folder}/amp.json")
        ...     set(tk.diff(baseline, "fixtures/train_amp.sqlite").frame("kernels")["status"])
        {'equal'}
    """
    from tracekit.core import compare

    summarizer = Summarizer(tuple(compare.KINDS), key_op, iterations, exact_names, include_warm_up=include_warm_up)
    summary = summarizer.summarize(side)
    return write_baseline(summary, path, overwrite=overwrite, inputs=list_input_files_of_side(side))


def write_baseline(
    summary: Summary | Sequence[Summary],
    path: str | os.PathLike[str],
    *,
    overwrite: bool,
    inputs: Sequence[targets.Input] = (),
) -> Path:
    """Write a summary, or the summaries of several runs, to a baseline file atomically.

    Raises:
        ExportError: The file exists or cannot be written.
    """
    from tracekit.core.compare import Summary, baseline

    values = baseline.encode_summary(summary) if isinstance(summary, Summary) else baseline.encode_runs(summary)
    with targets.open_atomic_output(path, overwrite=overwrite, inputs=inputs) as new:
        text = json.dumps(values, separators=(",", ":"), ensure_ascii=True)
        new.write_text(text + "\n", "ascii", newline="\n")
    return Path(path)


def read_baseline(path: str | os.PathLike[str]) -> Summary:
    """Read a baseline file and return its summary of a capture.

    Raises:
        CorruptTraceError: The file is not a baseline, is damaged or is larger than ``MAX_BASELINE_BYTES``.
        UnsupportedVersionError: The file was written by a newer version.
        FileNotFoundError: The file does not exist.
    """
    from tracekit.core.compare import baseline

    return read_json_file(path, baseline.decode_summary, "the baseline")


def read_json_file(path: str | os.PathLike[str], decode: Callable[[object], Decoded], what: str) -> Decoded:
    """Read a small JSON file, and return the result of a function that validates and converts its content.

    Args:
        path: The file.
        decode: Function that converts the content of the file. Its errors get the path of the file.
        what: Name of the content for errors, such as "the baseline".

    Raises:
        CorruptTraceError: The file is not valid JSON, or is larger than ``MAX_BASELINE_BYTES``.
        FileNotFoundError: The file does not exist.
    """
    with Path(path).open("rb") as file:
        content = file.read(MAX_BASELINE_BYTES + 1)
    if len(content) > MAX_BASELINE_BYTES:
        raise CorruptTraceError(f"{what} exceeds the limit of {MAX_BASELINE_BYTES:,} bytes", path=path)
    try:
        return decode(json.loads(content))
    except TracekitError as e:
        raise type(e)(e.message, path=path, hint=e.hint) from None
    except (ValueError, RecursionError):
        raise CorruptTraceError(f"{what} is not valid JSON", path=path) from None


def is_baseline(path: str | os.PathLike[str]) -> bool:
    """Return whether a file begins like a baseline. Return False if the file cannot be read."""
    try:
        with Path(path).open("rb") as file:
            return _HEAD.match(file.read(_HEAD_BYTES)) is not None
    except OSError:
        return False


@dataclass(frozen=True, slots=True)
class Summarizer:
    """A picklable callable that returns the summary of a trace, which ``diff`` compares with another summary.

    Attributes:
        kinds: Kinds to summarize, such as ``kernels``.
        key_op: Id or name of the op that delimits iterations. If None, the roll-up chooses an op.
        iterations: First and last iteration to summarize, both inclusive.
        exact_names: Whether names are compared as they were recorded. If False, they are normalized first.
        strict: Whether a capture that cannot be read is an error if a side consists of several captures.
        include_warm_up: Whether the warm-up is summarized.
        layers: Where the ranges inside of replays of CUDA graphs come from, as for ``Trace.with_layers``, or None.
        preferred_key_op: Name of the op that delimits iterations in other captures of the program. Captures that have
            this op use it, even if the roll-up would choose another op or none. ``key_op`` takes precedence.
    """

    kinds: tuple[str, ...]
    key_op: str | None = None
    iterations: tuple[int | None, int | None] | None = None
    exact_names: bool = False
    strict: bool = False
    include_warm_up: bool = False
    layers: Layers | None = None
    preferred_key_op: str | None = None

    def __call__(self, trace: Trace) -> Summary:
        """Return the summary of a trace."""
        return self.summarize_rolled_up(self.roll_up(trace))

    def roll_up(self, trace: Trace) -> Trace:
        """Return a trace with the iterations that are summarized.

        A trace that is already rolled up is not rolled up again if ``key_op`` and ``iterations`` are None and
        ``include_warm_up`` is false.
        """
        linked = (trace if self.layers is None else trace.with_layers(self.layers)).correlate()
        is_rolled_up = linked._view.plan.rollup is not None  # noqa: SLF001 - as for exporters
        if is_rolled_up and self.key_op is None and self.iterations is None and not self.include_warm_up:
            return linked
        chosen = self._roll_up(linked, self.key_op)
        preferred = None if is_rolled_up or self.key_op is not None else self.preferred_key_op
        if preferred is not None and preferred != summaries.get_key_op(chosen._view):  # noqa: SLF001
            with contextlib.suppress(TracekitError):
                other = self._roll_up(linked, preferred)
                return other if summaries.get_key_op(other._view) else chosen  # noqa: SLF001
        return chosen

    def _roll_up(self, trace: Trace, key_op: str | None) -> Trace:
        return trace.rollup(key_op=key_op, iterations=self.iterations, include_warm_up=self.include_warm_up or None)

    def summarize_rolled_up(self, trace: Trace) -> Summary:
        """Return the summary of a trace that ``roll_up`` returned."""
        return summaries.summarize(trace._view, self.kinds, exact_names=self.exact_names)  # noqa: SLF001

    def summarize(self, side: Side) -> Summary:
        """Return the summary of one side of a comparison.

        A summary is returned unchanged. If the side is a path, the baseline or the captures at this path are read.

        Raises:
            TracekitError: A file cannot be read.
        """
        from tracekit.core import compare

        if not isinstance(side, str | os.PathLike):
            return side if isinstance(side, compare.Summary) else self._summarize_traces(side)
        if is_baseline(side):
            return read_baseline(side)
        with open_captures(side, strict=self.strict) as traces:
            return self._summarize_traces(traces)

    def summarize_both(self, a: Side, b: Side) -> tuple[Summary, Summary]:
        """Return the summaries of both sides, whose iterations the same op delimits if both sides have it.

        The roll-up may choose different ops for captures of one program, such as if one of them lacks events.

        Raises:
            TracekitError: A file cannot be read.
        """
        before = self.summarize(a)
        after = replace(self, preferred_key_op=before.facts.get("key_op")).summarize(b)
        key_op = after.facts.get("key_op")
        if key_op is not None and key_op != before.facts.get("key_op"):
            before = replace(self, preferred_key_op=key_op).summarize(a)
        return before, after

    def _summarize_traces(self, side: Trace | TraceSet) -> Summary:
        """Return the summary of a trace, or the combined summary of all traces of a set."""
        from tracekit.core import compare

        return compare.combine_summaries(side.map(self), side.ranks) if isinstance(side, TraceSet) else self(side)


def list_input_files_of_side(side: Side) -> tuple[targets.Input, ...]:
    """Return the input files of one side of a comparison, which an output must not replace."""
    if isinstance(side, Trace | TraceSet):
        return side.inputs
    if isinstance(side, str | os.PathLike) and not is_url(side):
        located = paths.locate_captures(side).urls.items()
        return tuple(targets.Input.from_path(path) for path, url in located if url is None)
    return ()
