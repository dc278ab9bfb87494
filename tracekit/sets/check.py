"""Check whether captures are slower than a baseline, given how much runs of one program differ from one another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tracekit.sets.comparison import Summarizer, read_json_file, write_baseline
from tracekit.sets.history import add_to_history, read_history
from tracekit.sets.run_sources import RunReader

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence
    from pathlib import Path

    from tracekit.core.check import Check, CheckLimits, PredictedSaving
    from tracekit.core.compare import Condition, Summary
    from tracekit.sets.comparison import Side


def check(
    baseline: Side | Sequence[Side],
    current: Side | Sequence[Side],
    *,
    fail_if: str | Sequence[str] = (),
    by: Sequence[str] | None = None,
    key_op: str | None = None,
    iterations: tuple[int | None, int | None] | None = None,
    include_warm_up: bool = False,
    exact_names: bool = False,
    one_run: bool = False,
    alpha: float | None = None,
    min_change: float | None = None,
    resolution: float | None = None,
    history: str | os.PathLike[str] | None = None,
    prediction: str | os.PathLike[str] | None = None,
    cause: str | None = None,
) -> Check:
    """Check whether several runs of a program are slower than the runs of a baseline.

    The variation between the runs of each side is estimated first. A difference counts only if it is larger than this
    variation explains. Iterations of one run are never used for this purpose, because they have in common what differs
    between runs.

    Args:
        baseline: The runs of A: a capture, a trace, a set of the ranks of one run, a baseline, or several of them as a
            list. Each capture of a folder or pattern is a run, unless the names of the captures differ in a rank.
        current: The runs of B, as for ``baseline``.
        fail_if: Conditions such as ``gpu_time > 5%`` or ``slower > 0``, as for ``tracekit diff --fail-if``.
        by: Kinds of rows to check beside the duration of a step. If None, they are ``iterations`` (the parts of a
            step), ``nvtx_gpu`` (phases), ``ops`` and ``kernels``.
        key_op: Id or name of the op that delimits iterations, as for ``Trace.rollup``.
        iterations: First and last iteration to check, both inclusive.
        include_warm_up: Whether slow first iterations are included, as for ``diff``.
        exact_names: Whether names are compared as they were recorded, as for ``diff``.
        one_run: Whether the captures of each folder or pattern are the ranks of one run.
        alpha: Probability that a check without a change reports any slower row. The default is 0.05.
        min_change: Smallest change in per cent that is slower or faster. The default is 0.5.
        resolution: Change of the duration of a step in per cent that the variation between runs must not hide. If it
            does, the check is untestable. The default is 10.
        history: Folder in which the runs are kept. The variation between earlier runs counts if there are too few runs.
        prediction: JSON file with an answer of ``tracekit why`` or ``tracekit what-if``, whose predicted saving is
            compared with the measured one.
        cause: Name of the cause in this answer that was cured, or ``together``. If None, it is the first one.

    Returns:
        The result. ``verdict`` is ``faster``, ``slower``, ``same`` or ``untestable``, ``outcome`` is ``passed``,
        ``failed`` or ``untestable``, and ``frame()`` returns all rows.

    Raises:
        UnknownFormatError: A kind does not exist, a condition is invalid, or no reader recognizes a file.
        TracekitError: A file cannot be read, or the value of an argument is not allowed.
        CorruptTraceError: A file is damaged.
        FileNotFoundError: A file does not exist.

    Examples:
        >>> import tracekit as tk
        >>> result = tk.check("fixtures/train_amp.sqlite", "fixtures/train_amp.nsys-rep")
        >>> result.outcome, result.runs_a, result.runs_b
        ('untestable', 1, 1)
    """
    gate = GateKeeper.create(
        by,
        [fail_if] if isinstance(fail_if, str) else fail_if,
        alpha=alpha,
        min_change=min_change,
        resolution=resolution,
        history=history,
        prediction=None if prediction is None else read_prediction(prediction, cause),
    )
    summarizer = Summarizer(gate.required_kinds, key_op, iterations, exact_names, include_warm_up=include_warm_up)
    reader = RunReader(summarizer, is_one_run=one_run)
    return gate.check(reader.read(baseline), reader.read(current))


def save_runs(
    runs: Side | Sequence[Side],
    path: str | os.PathLike[str],
    *,
    key_op: str | None = None,
    iterations: tuple[int | None, int | None] | None = None,
    include_warm_up: bool = False,
    exact_names: bool = False,
    one_run: bool = False,
    overwrite: bool = False,
) -> Path:
    """Save several runs as a baseline, with which ``check`` can compare other runs later.

    A baseline is a JSON file, as for ``save_baseline``. It contains the names, counts and times of the events of each
    run, but no host names, paths or command lines.

    Args:
        runs: The runs, as for ``check``.
        path: Baseline file to write.
        key_op: Id or name of the op that delimits iterations, as for ``Trace.rollup``.
        iterations: First and last iteration to save, both inclusive.
        include_warm_up: Whether slow first iterations are included, as for ``diff``.
        exact_names: Whether names are saved as they were recorded, as for ``diff``.
        one_run: Whether the captures of each folder or pattern are the ranks of one run.
        overwrite: Whether to replace an existing file.

    Returns:
        The path of the file.

    Raises:
        TracekitError: A capture cannot be read.
        CorruptTraceError: A capture is damaged.
        ExportError: The file exists or cannot be written.
    """
    from tracekit.core import compare

    summarizer = Summarizer(tuple(compare.KINDS), key_op, iterations, exact_names, include_warm_up=include_warm_up)
    reader = RunReader(summarizer, is_one_run=one_run)
    return write_baseline(reader.read(runs), path, overwrite=overwrite, inputs=reader.inputs)


def read_prediction(path: str | os.PathLike[str], cause: str | None = None) -> PredictedSaving:
    """Read the predicted saving in a JSON file with an answer of ``why`` or ``what-if``.

    Args:
        path: The file.
        cause: Name of the cause that was cured, or None for the first one.

    Raises:
        CorruptTraceError: The file is not an answer.
        TracekitError: The answer has no prediction, or none for this cause.
        FileNotFoundError: The file does not exist.
    """
    from tracekit.core.check import parse_prediction

    return read_json_file(path, lambda value: parse_prediction(value, cause), "the answer")


@dataclass(frozen=True, slots=True)
class GateKeeper:
    """Checks runs, and keeps them in a history.

    Attributes:
        kinds: Kinds of rows to check.
        conditions: Conditions on changes.
        limits: The limits of the check.
        history: Folder of the history, or None.
        prediction: A saving to compare with the measured one, or None.
    """

    kinds: tuple[str, ...]
    conditions: tuple[Condition, ...]
    limits: CheckLimits
    history: str | os.PathLike[str] | None = None
    prediction: PredictedSaving | None = None

    @classmethod
    def create(
        cls,
        kinds: Sequence[str] | None,
        conditions: Sequence[str],
        *,
        alpha: float | None,
        min_change: float | None,
        resolution: float | None,
        history: str | os.PathLike[str] | None,
        prediction: PredictedSaving | None,
    ) -> GateKeeper:
        """Return a gate keeper with the default value of each argument that is None.

        Args:
            kinds: Kinds of rows to check.
            conditions: Conditions as texts.
            alpha: Probability that a check without a change reports any slower row.
            min_change: Smallest change in per cent that is slower or faster.
            resolution: Change of the duration of a step in per cent that noise must not hide.
            history: Folder of the history.
            prediction: A saving to compare with the measured one.

        Raises:
            UnknownFormatError: A kind does not exist, or a condition is invalid.
            TracekitError: A limit is out of range.
        """
        from tracekit.core import compare
        from tracekit.core.check import DEFAULT_KINDS, CheckLimits

        chosen = tuple(DEFAULT_KINDS if kinds is None else dict.fromkeys(kinds))
        compare.check_kinds(chosen)
        limits = {"alpha": alpha, "min_change_percent": min_change, "resolution_percent": resolution}
        return cls(
            chosen,
            tuple(map(compare.parse_condition, conditions)),
            CheckLimits(**{name: value for name, value in limits.items() if value is not None}),
            history,
            prediction,
        )

    @property
    def required_kinds(self) -> tuple[str, ...]:
        """The kinds that captures have to be summarized by. A history contains all default kinds."""
        from tracekit.core.check import DEFAULT_KINDS

        required = (kind for condition in self.conditions for kind in condition.required_kinds)
        default = DEFAULT_KINDS if self.history is not None else ()
        return tuple(dict.fromkeys(["iterations", *self.kinds, *required, *default]))

    def check(self, a: Sequence[Summary] | None, b: Sequence[Summary]) -> Check:
        """Return the result of a check, and add its runs to the history.

        Args:
            a: The runs of A. If None, they are the runs of B of the last check in the history.
            b: The runs of B.

        Raises:
            TracekitError: The history cannot be read or written.
        """
        from tracekit.core.check import check_runs, compute_run_id

        checks = [] if self.history is None else read_history(self.history)
        if a is None:
            a = next((sides["B"] for sides in reversed(checks) if sides.get("B")), [])
        used = {compute_run_id(run) for run in (*a, *b)}
        earlier = [
            [run for run in runs if compute_run_id(run) not in used] for sides in checks for runs in sides.values()
        ]
        result = check_runs(
            a,
            b,
            kinds=self.kinds,
            conditions=self.conditions,
            limits=self.limits,
            earlier=[runs for runs in earlier if len(runs) > 1],
            prediction=self.prediction,
        )
        if self.history is not None and b:
            add_to_history(self.history, result, a, b)
        return result
