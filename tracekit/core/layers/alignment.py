"""Align the kernels of replayed CUDA graphs with the kernels of steps that were recorded with their ranges.

A graph that was captured before the recording began replays kernels without layers. In another recording of the same
program, the same kernels ran one by one, each in its layer. ``align_replays`` compares the two sequences of kernels by
names, launch shapes and order, and assigns to each replayed kernel the recorded one that it most likely corresponds to.

The comparison is a pair hidden Markov model (``native.alignment``). A replayed kernel either matches the next recorded
one, or is inserted, and recorded kernels may be skipped. A match is worth the more, the rarer what both have in common
is: name and launch shape, the name, the base name without template arguments and numbers, or at least the class of
kernel. The forward-backward algorithm sums over all alignments, so the result is not only the best alignment, but the
probability that a kernel belongs to a layer. Where several alignments are equally good, as when one of several equal
layers is missing, the probability is divided among their layers.

The confidence of a kernel is this probability, times the probability that the order of the graph comes from the
recorded step rather than from chance.
"""

from __future__ import annotations

import bisect
import math
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import polars as pl

from tracekit.core.layers.kernel_names import split_kernel_name
from tracekit.core.series import decode_categories
from tracekit.core.trees import remove_arguments_expr
from tracekit.system.sorting import create_series, sort_and_deduplicate

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from tracekit.native.alignment import Aligner, AlignmentModel, AlignmentResult

    Int32s = npt.NDArray[np.int32]
    Int64s = npt.NDArray[np.int64]
    Float64s = npt.NDArray[np.float64]

MIN_CONFIDENCE: Final = 0.8
"""Confidence below which a replayed kernel gets no layer."""
MIN_PLACED_SHARE: Final = 0.35
"""Share of the kernels of a replay that must have a layer, or none has: the recording may be of another program."""
SHAPE: Final = ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z")
MAX_PATTERNS: Final = 4096
"""Maximum number of distinct sequences of replayed kernels that are aligned."""
MAX_KERNELS: Final = 1 << 20
"""Maximum number of kernels of a replay that is aligned."""
MAX_SEQUENCES: Final = 512
"""Maximum number of distinct recorded sequences that are compared."""
_CANDIDATES: Final = 3
"""Number of recorded sequences with which a replay is aligned: those with the most kernels in common."""
_MIN_COMMON: Final = 0.2
"""Share of the kernels of a replay that a recorded sequence must contain, by base name, to be a candidate."""
_FULL_CELLS: Final = 1 << 21
_BAND_CELLS: Final = 1 << 23
_MAX_CELLS: Final = 1 << 27
"""Maximum number of cells of all tables, of one table that is computed completely, and of one that is not."""
_MIN_WIDTH: Final = 64
_TILED_RATIO: Final = 1.5
"""Ratio of the number of replayed and recorded kernels from which on the recorded ones are repeated."""
_MIN_REPEATED: Final = 0.75
"""Share of the repetitions of each name that a graph of several steps must contain."""
_TILE_ODDS: Final = 0.01
"""Odds, before kernels are compared, that a graph contains a step several times."""
_CHANCE_ODDS: Final = 0.5
"""Odds, before kernels are compared, that a replay has nothing to do with a recorded step."""
_INSERT_SHARE: Final = 0.9
"""Probability that a kernel between two kernels of the same layer belongs to this layer."""
_END_SHARE: Final = 0.5
"""Weight of a replay that lacks the beginning of a step, and of one that lacks its end."""


class _Regime(NamedTuple):
    """How much the recorded kernels may differ from the replayed ones.

    Attributes:
        levels: Probability that a match agrees in name and shape, only in the name, only in the base name, only in the
            class, or in nothing.
        insert: Probability that an insertion begins after a match.
        skip: Probability that skipping begins after a match.
        stay: Probability that skipping goes on.
    """

    levels: tuple[float, ...]
    insert: float
    skip: float
    stay: float

    @property
    def model(self) -> AlignmentModel:
        """The parameters of the model."""
        from tracekit.native.alignment import AlignmentModel  # imports wasmtime

        match = 1 - self.insert - self.skip
        leave = 1 - self.stay
        transitions = [match, self.insert, self.skip, 0.7, 0.25, 0.05, leave * 0.95, leave * 0.05, self.stay]
        return AlignmentModel(np.array(transitions), _END_SHARE, _INSERT_SHARE)


_SAME = (0.93, 0.02, 0.02, 0.02, 0.01)
_SIMILAR = (0.30, 0.40, 0.15, 0.10, 0.05)
_MIXED = (0.45, 0.15, 0.15, 0.15, 0.10)
_REGIMES: Final = (
    _Regime(_SAME, insert=0.01, skip=0.01, stay=0.9),
    _Regime(_SAME, insert=0.05, skip=0.08, stay=0.5),
    _Regime(_SIMILAR, insert=0.02, skip=0.02, stay=0.9),
    _Regime(_MIXED, insert=0.15, skip=0.15, stay=0.6),
)
"""The same kernels; the same kernels, of which many are missing or additional; the same kernels with other shapes or
algorithms; kernels of which many were fused."""
_GOOD_SHARE: Final = 0.7
"""Share of the highest possible logarithm of the odds at which further regimes are not tried."""
_MAX_LOG_ODDS: Final = 500.0
_BAG_LEVELS: Final = (0, 2)
_BINS: Final = 1024
_MAX_COUNTS: Final = 1 << 28
"""Maximum number of counts of names that are compared to find candidates. Further replays are not aligned."""
_MAX_ANCHORS: Final = 4096


NO_CANDIDATE: Final = "no recorded step has similar kernels"
TOO_MANY: Final = "there are too many different replays, or too many kernels in one"
LOW_CONFIDENCE: Final = "the confidence of all kernels is below the bound"
"""Why no kernel of a graph has a layer."""
_NO_CANDIDATE, _TOO_MANY = -1, -2


GRAPH_RESULTS: Final = {
    **dict.fromkeys(("graph", "replay", "replays", "kernels", "matched", "abstained"), pl.Int64),
    "confidence": pl.Float64,
    "sequence": pl.Int64,
    "reason": pl.String,
}
"""The columns of ``Alignment.graphs``."""


class Alignment(NamedTuple):
    """The result of ``align_replays``.

    Attributes:
        kernels: One row per replayed kernel, in the order of the argument: ``recorded_row`` (null if its layer is not
            known) and ``confidence`` (null if the kernel was compared with nothing).
        graphs: One row per graph and distinct sequence of kernels: ``graph``, ``replay`` (the first one), ``replays``
            (their number), ``kernels``, ``matched`` and ``abstained`` (sums over these replays), ``confidence`` (the
            mean), ``sequence`` (the recorded one, or null), ``reason`` (why no kernel has a layer, or null).
    """

    kernels: pl.DataFrame
    graphs: pl.DataFrame


class _Runs(NamedTuple):
    """Runs of rows with equal numbers: the kernels of one replay, or of one step.

    Attributes:
        starts: Position of the first row of each run in ``order``.
        sizes: Number of rows of each run.
        order: Row numbers, sorted by run.
        firsts: For each run, the position of the first run that is equal to it.
    """

    starts: Int64s
    sizes: Int64s
    order: Int64s
    firsts: Int64s

    def list_distinct(self) -> list[int]:
        """Return the positions of the runs that equal no earlier run."""
        positions: list[int] = np.flatnonzero(self.firsts == np.arange(len(self.firsts))).tolist()
        return positions

    def get_rows(self, position: int) -> Int64s:
        """Return the row numbers of a run."""
        return self.order[self.starts[position] : self.starts[position] + self.sizes[position]]

    def spread(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the value of the run of each row."""
        spread = np.empty(len(self.order), values.dtype)
        spread[self.order] = np.repeat(values, self.sizes)
        return spread


class _Sequence(NamedTuple):
    """A recorded sequence of kernels.

    Attributes:
        number: The number of the sequence.
        codes: The codes of the kernels, one row per level of similarity.
        rows: Their row numbers in the recorded frame.
        layers: Their layers, as numbers that all sequences share.
    """

    number: int
    codes: Int32s
    rows: Int64s
    layers: Int32s

    def tile(self, count: int) -> _Sequence:
        """Return the sequence repeated ``count`` times."""
        arrays: list[Any] = [np.tile(array, count) for array in (self.codes, self.rows, self.layers)]
        return _Sequence(self.number, *arrays)


class _Match(NamedTuple):
    """An alignment with a recorded sequence: the result, the layer of each group, and the logarithm of its odds."""

    sequence: _Sequence
    result: AlignmentResult
    layers: Int32s
    log_odds: float


class _Places(NamedTuple):
    """What is known about each replayed kernel.

    Attributes:
        recorded: The likeliest row of the recorded frame, or -1.
        confidence: The confidence, or -1 if the kernel was compared with nothing.
        sequence: The number of the recorded sequence, or why there is none: ``_NO_CANDIDATE`` or ``_TOO_MANY``.
    """

    recorded: Int64s
    confidence: Float64s
    sequence: Int64s

    @classmethod
    def create(cls, count: int, reason: int) -> _Places:
        """Return the places of kernels that were aligned with nothing, for a reason."""
        return cls(np.full(count, -1, np.int64), np.full(count, -1.0), np.full(count, reason, np.int64))


def align_replays(replayed: pl.DataFrame, recorded: pl.DataFrame) -> Alignment:
    """Find the recorded kernel, and thereby the layer, of each kernel of replayed graphs.

    Replays with equal kernels are aligned once. If the place of a graph in the recorded step remains unknown, because
    the step consists of several similar graphs, all graphs of a step are aligned together.

    Args:
        replayed: One row per replayed kernel, copy or memory set, in the order of the nodes of its graph: ``row``,
            ``replay`` (a number per execution of a graph, ascending), ``graph`` (may be null), ``name``, the columns
            ``SHAPE`` (may be null), and optionally ``step`` (the step in which the graph was replayed; may be null).
        recorded: The kernels of steps, in the order in which they were launched: ``row``, ``sequence`` (a number per
            step), ``name``, the columns ``SHAPE``, and ``path`` (the layer; may be null).

    Returns:
        The recorded kernels and confidences, and the results of the graphs.
    """
    codes, recorded_codes = _encode(replayed, recorded)
    aligner = _PatternAligner(_list_sequences(recorded, recorded_codes))
    graphs = replayed["graph"].fill_null(-1).to_numpy()
    replays = _find_runs(replayed["replay"].to_numpy(), (codes[0], graphs))
    places = _align_runs(aligner, codes, replays)
    cycles = _number_cycles(replayed, replays)
    if cycles.max(initial=-1) + 1 < len(cycles):
        runs = _find_runs(replays.spread(cycles), (codes[0],))
        is_unknown = np.minimum.reduceat(places.confidence[runs.order], runs.starts) < MIN_CONFIDENCE
        together = _align_runs(aligner, codes, runs, is_unknown)
        better = together.confidence > places.confidence
        places = _Places(*(np.where(better, a, b) for a, b in zip(together, places, strict=True)))
    return _collect(replayed, recorded, replays, _reject_foreign_replays(replays, places))


def _reject_foreign_replays(replays: _Runs, places: _Places) -> _Places:
    """Lower the confidence below the bound where most kernels of a replay have no place in the recorded step."""
    is_placed = (places.recorded[replays.order] >= 0).astype(np.int64)
    placed = np.add.reduceat(is_placed, replays.starts) if len(replays.starts) else is_placed
    share = replays.spread(placed / replays.sizes)
    is_foreign = (share > 0) & (share < MIN_PLACED_SHARE)
    confidence = np.where(is_foreign & (places.confidence > 0), places.confidence * share, places.confidence)
    return places._replace(recorded=np.where(is_foreign, -1, places.recorded), confidence=confidence)


def _encode(replayed: pl.DataFrame, recorded: pl.DataFrame) -> tuple[Int32s, Int32s]:
    """Return the codes of the replayed and of the recorded kernels, one row per level of similarity."""
    columns = ["name", *SHAPE]
    frames = [f.select(pl.col("name").cast(pl.Categorical), pl.col(SHAPE).cast(pl.Int64)) for f in (replayed, recorded)]
    if any(frame["block_x"].null_count() == frame.height for frame in frames):
        columns = ["name"]  # one of the profilers records no shapes of kernels in graphs
    rows = pl.concat(frames)
    distinct = rows["name"].unique()
    parts = [split_kernel_name(name or "") for name in decode_categories(distinct).to_list()]
    table = pl.DataFrame(parts, schema=["whole", "base", "kind"], orient="row").with_columns(name=distinct)
    rows = rows.join(table, on="name", how="left", maintain_order="left", nulls_equal=True)
    shapes = [c for c in columns if c != "name"]
    levels = [("whole", *shapes), ("whole",), ("base",), ("kind",)]
    codes = np.stack([rows.select(level).hash_rows().rank("dense").to_numpy() for level in levels]).astype(np.int32)
    return np.split(codes, [replayed.height], axis=1)  # type: ignore[return-value]


def _find_runs(numbers: Int64s, contents: Sequence[npt.NDArray[Any]]) -> _Runs:
    """Return the runs of rows with equal numbers, in ascending order. Runs are equal if all their contents are."""
    order = np.argsort(numbers, kind="stable")
    ordered = numbers[order]
    starts = np.flatnonzero(np.diff(ordered, prepend=ordered[:1] - 1))
    sizes = np.diff(starts, append=len(ordered))
    places = _mix(np.arange(len(ordered)) - np.repeat(starts, sizes))
    hashes = {"size": sizes}
    for number, column in enumerate(contents):
        mixed = _mix(column[order].astype(np.uint64) ^ places)
        hashes[str(number)] = np.add.reduceat(mixed, starts) if len(starts) else mixed
    rows = pl.DataFrame([create_series(values).alias(name) for name, values in hashes.items()])
    firsts = rows.with_row_index("first").select(pl.col("first").cast(pl.Int64).first().over(list(hashes))).to_series()
    return _Runs(starts, sizes, order, firsts.to_numpy())


def _mix(values: npt.NDArray[Any]) -> npt.NDArray[np.uint64]:
    """Return a hash of each value (the finalizer of SplitMix64)."""
    mixed = values.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def _list_sequences(recorded: pl.DataFrame, codes: Int32s) -> list[_Sequence]:
    """Return the distinct recorded sequences. Of several equal ones, the middle one represents all."""
    layers = _number_layers(recorded)
    runs = _find_runs(recorded["sequence"].to_numpy(), (codes[0], layers))
    numbers = recorded["sequence"].to_numpy()
    sequences = []
    for first in runs.list_distinct()[:MAX_SEQUENCES]:
        equal = np.flatnonzero(runs.firsts == first)
        rows = runs.get_rows(int(equal[len(equal) // 2]))
        sequences.append(_Sequence(int(numbers[rows[0]]), codes[:, rows], rows, layers[rows]))
    return sequences


def _number_layers(recorded: pl.DataFrame) -> Int32s:
    """Return the number of the layer of each recorded kernel: of its path without what the paths of its step share.

    The first parts of the paths name the step, such as ``step 5``. Kernels of different steps are in the same layer if
    their paths are equal otherwise. If one first part occurs in one step only, it names the step, and paths that begin
    otherwise are kept, such as those of the backward pass on another thread. The number is 0 for kernels without a
    path.
    """
    keys = ["sequence", "path"]
    paths = recorded.select("sequence", pl.col("path").cast(pl.Categorical))
    distinct = paths.drop_nulls().unique(maintain_order=True)
    names = decode_categories(distinct["path"]).str.split("/")
    split = distinct.with_columns(parts=names.list.eval(remove_arguments_expr(pl.element())))
    first = pl.col("parts").list.first()
    split = split.with_columns(first=first, is_own=pl.col("sequence").n_unique().over(first) == 1)
    has_name = pl.col("first").filter("is_own").n_unique().over("sequence") == 1
    split = split.with_columns(is_step=pl.col("is_own") | ~has_name)
    size = pl.col("parts").list.len().min()
    steps = split.filter("is_step")
    parts = steps.with_columns(size=size.over("sequence")).explode("parts", keep_nulls=True, empty_as_null=True)
    parts = parts.with_columns(place=pl.int_range(pl.len()).over(keys)).filter(pl.col("place") < pl.col("size"))
    same = parts.group_by("sequence", "place").agg(is_shared=pl.col("parts").n_unique() == 1).sort("sequence", "place")
    shared = same.group_by("sequence").agg(shared=pl.col("is_shared").cast(pl.Int64).cum_min().sum())
    layers = split.join(shared, on="sequence", how="left", maintain_order="left")
    left = pl.col("parts").list.slice(pl.when("is_step").then("shared").otherwise(0))
    layer = left.list.join("/").rank("dense").cast(pl.Int32)
    numbers = paths.join(layers.select(*keys, layer=layer), on=keys, how="left", maintain_order="left")
    return numbers["layer"].fill_null(0).to_numpy()


def _number_cycles(replayed: pl.DataFrame, replays: _Runs) -> Int64s:
    """Return the number of the cycle of each replay: of its step, or of the replays until a graph is replayed again."""
    first_rows = replays.order[replays.starts]
    columns = replayed.select("graph", *({"step"} & {*replayed.columns}))[first_rows]
    if "step" in columns.columns and columns["graph"].null_count():
        step = pl.col("step").fill_null(-1 - pl.int_range(pl.len()))
        return columns.select(step.rank("dense").cast(pl.Int64) - 1).to_series().to_numpy()
    numbers = pl.int_range(pl.len(), dtype=pl.Int64)
    if columns["graph"].n_unique() == 1:
        return columns.select(numbers).to_series().to_numpy()
    previous = columns.select(numbers.shift(1).over("graph").fill_null(-1)).to_series().cum_max().to_numpy()
    begins, start = np.zeros(len(previous), np.int64), 0
    while (start := int(np.searchsorted(previous, start))) < len(previous):
        begins[start] = 1
    return np.cumsum(begins)


def _align_runs(
    aligner: _PatternAligner, codes: Int32s, runs: _Runs, is_selected: npt.NDArray[np.bool_] | None = None
) -> _Places:
    """Align runs of replayed kernels. Equal runs are aligned once.

    Args:
        aligner: Aligns one run.
        codes: The codes of all replayed kernels.
        runs: The runs.
        is_selected: Which runs are aligned. By default, all are.
    """
    distinct = [d for d in runs.list_distinct() if is_selected is None or is_selected[d]][:MAX_PATTERNS]
    aligned = [aligner.align(codes[:, runs.get_rows(position)]) for position in distinct]
    parts = [*aligned, _Places.create(1, _TOO_MANY)]
    unknown = sum(len(part.recorded) for part in aligned)
    offsets = np.full(len(runs.firsts), -1, np.int64)
    offsets[distinct] = np.cumsum([0, *(len(part.recorded) for part in aligned)])[:-1]
    first_rows = np.repeat(offsets[runs.firsts], runs.sizes)
    within = np.arange(len(runs.order)) - np.repeat(runs.starts, runs.sizes)
    picked = np.where(first_rows < 0, unknown, first_rows + within)
    columns = [np.concatenate(arrays) for arrays in zip(*parts, strict=True)]
    places = _Places.create(len(runs.order), _TOO_MANY)
    for target, column in zip(places, columns, strict=True):
        target[runs.order] = column[picked]
    return places


class _PatternAligner:
    """Aligns sequences of replayed kernels with the most similar recorded sequences."""

    def __init__(self, sequences: Sequence[_Sequence]) -> None:
        from tracekit.native.alignment import Aligner  # imports wasmtime

        self._sequences = sequences
        self._aligner: Aligner = Aligner()
        self._cells = 0
        self._counts = 0
        self._sizes = np.array([len(s.rows) for s in sequences])
        self._bags = [
            np.stack([_count_codes(s.codes[level]) for s in sequences], axis=1) for level in _BAG_LEVELS if sequences
        ]

    def align(self, codes: Int32s) -> _Places:
        """Return the places of the kernels of one replay, given their codes."""
        size = codes.shape[1]
        if size > MAX_KERNELS or self._cells > _MAX_CELLS or self._counts > _MAX_COUNTS:
            return _Places.create(size, _TOO_MANY)
        matches = [self._align_with(codes, *candidate) for candidate in self._find_candidates(codes)]
        if not matches:
            return _Places.create(size, _NO_CANDIDATE)
        best = max(matches, key=lambda match: match.log_odds)
        if best.log_odds == -math.inf:
            unknown = _Places.create(size, best.sequence.number)
            return unknown._replace(confidence=np.zeros(size))
        chosen = best.result.groups[:, 0]
        layers = np.where(chosen >= 0, best.layers[chosen], -1)
        weights = np.exp([match.log_odds - best.log_odds for match in matches])
        confidence = np.zeros(size)
        for match, weight in zip(matches, weights / weights.sum(), strict=True):
            same = (match.result.groups >= 0) & (match.layers[match.result.groups] == layers[:, None])
            confidence += weight * np.where(same, match.result.masses, 0).sum(axis=1)
        odds = min(best.log_odds - math.log(_CHANCE_ODDS), _MAX_LOG_ODDS)
        confidence *= 1 / (1 + math.exp(-odds)) if odds > -_MAX_LOG_ODDS else 0
        rows = best.sequence.rows[best.result.columns[:, 0]]
        is_known = confidence >= MIN_CONFIDENCE
        return _Places(
            np.where(is_known, rows, -1), np.minimum(confidence, 1), np.full(size, best.sequence.number, np.int64)
        )

    def _find_candidates(self, codes: Int32s) -> list[tuple[_Sequence, int]]:
        """Return the recorded sequences that are most similar to a replay, and how often each is repeated."""
        if not self._sequences:
            return []
        ratio = codes.shape[1] / self._sizes
        copies = np.where(ratio >= _TILED_RATIO, np.ceil(ratio), 1).astype(np.int32)
        bags = []
        for level, recorded in zip(_BAG_LEVELS, self._bags, strict=True):
            counts = _count_codes(codes[level])
            bins = np.flatnonzero(counts)
            bags.append((counts[bins, None], recorded[bins]))
            self._counts += len(bins) * len(self._sequences)
        if copies.max() > 1:
            copies = np.where(_find_repeated(*bags[-1], copies), copies, 1)
            bags = [(own, copies * recorded) for own, recorded in bags]
        common = [np.minimum(own, recorded).sum(axis=0) / codes.shape[1] for own, recorded in bags]
        scores = common[0] + common[1] - 0.05 * np.abs(np.log(ratio / copies))
        scores[common[-1] < _MIN_COMMON] = -np.inf
        best = np.argsort(-scores, kind="stable")[:_CANDIDATES]
        return [(self._sequences[i], int(copies[i])) for i in best.tolist() if scores[i] > -np.inf]

    def _align_with(self, codes: Int32s, sequence: _Sequence, copies: int) -> _Match:
        """Align a replay with a recorded sequence that is repeated, in the regime that explains it best."""
        from tracekit.native.alignment import SequencePair  # imports wasmtime

        sequence = sequence.tile(copies) if copies > 1 else sequence
        groups, layers = _compact(sequence.layers)
        shares = [_compute_shares(codes[level], sequence.codes[level]) for level in range(len(codes))]
        first_columns, width = _plan_band(codes, sequence.codes)
        best_possible = -np.log(_compute_shares(sequence.codes[0], codes[0])).sum()
        matches: list[_Match] = []
        for regime in _REGIMES:
            levels = zip(regime.levels, [*shares, np.ones(len(groups))], strict=True)
            gains = np.stack([probability / share for probability, share in levels])
            pair = SequencePair(codes, sequence.codes, gains, groups, first_columns, width)
            result = self._aligner.align(pair, regime.model)
            log_odds = result.log_odds + (math.log(_TILE_ODDS) if copies > 1 else 0)
            matches.append(_Match(sequence, result, layers, log_odds))
            self._cells += width * len(first_columns)
            if result.log_odds >= _GOOD_SHARE * best_possible:
                break
        return max(matches, key=lambda match: match.log_odds)


def _count_codes(codes: Int32s) -> Int32s:
    """Return how many codes fall into each of a fixed number of bins."""
    return np.bincount(codes % _BINS, minlength=_BINS).astype(np.int32)


def _find_repeated(counts: Int32s, recorded_counts: Int32s, copies: Int32s) -> npt.NDArray[np.bool_]:
    """Return which recorded steps a replay may repeat: all names of both occur about as often as in so many steps.

    Otherwise, the replay is not several steps, but for example a step of a program with more layers.
    """
    is_lacking = (counts < _MIN_REPEATED * copies * recorded_counts) & (recorded_counts > 0)
    return np.logical_not(is_lacking.any(axis=0))


def _compact(layers: Int32s) -> tuple[Int32s, Int32s]:
    """Return numbers of layers from 0, and the layer of each of these numbers."""
    distinct = sort_and_deduplicate(layers.copy())
    return np.searchsorted(distinct, layers).astype(np.int32), distinct


def _compute_shares(codes: Int32s, other_codes: Int32s) -> Float64s:
    """Return the share of the kernels of both sequences that have the code of each of the others."""
    counts = np.bincount(np.concatenate([codes, other_codes]))
    return counts[other_codes] / (len(codes) + len(other_codes))


def _plan_band(codes: Int32s, other_codes: Int32s) -> tuple[Int32s, int]:
    """Return the first column of each row of the band in which two sequences are aligned, and the width of the band.

    A small table is computed completely. In a large one, the band follows kernels that occur equally often in both
    sequences: the first of them in one sequence corresponds to the first in the other, and so on.
    """
    rows, columns = codes.shape[1] + 1, other_codes.shape[1] + 1
    if rows * columns <= _FULL_CELLS:
        return np.zeros(rows, np.int32), columns
    width = min(max(_BAND_CELLS // rows, _MIN_WIDTH), columns)
    x, y = _find_anchors(codes[0], other_codes[0])
    centers = np.interp(np.arange(rows), [0, *x, rows - 1], [0, *y, columns - 1])
    furthest = np.arange(rows) * (width // 2)  # the bands of consecutive rows have to overlap
    centers = furthest + np.minimum.accumulate(centers - furthest)
    return np.clip(centers - width // 2, 0, columns - width).astype(np.int32), width


def _find_anchors(codes: Int32s, other_codes: Int32s) -> tuple[list[int], list[int]]:
    """Return the positions in two sequences of kernels that correspond, ascending in both."""
    size = int(max(codes.max(), other_codes.max())) + 1
    is_common = np.bincount(codes, minlength=size) == np.bincount(other_codes, minlength=size)
    pairs = []
    for values in (codes, other_codes):
        positions = np.flatnonzero(is_common[values])
        pairs.append(positions[np.argsort(values[positions], kind="stable")])
    order = np.argsort(pairs[0])
    order = order[:: max(1, len(order) // _MAX_ANCHORS)]
    x, y = pairs[0][order].tolist(), pairs[1][order].tolist()
    ends: list[int] = []  # the last positions of the best ascending subsequences of each length
    tails: list[int] = []
    previous = [-1] * len(y)
    for i, value in enumerate(y):
        length = bisect.bisect_left(ends, value)
        ends[length : length + 1] = [value]
        tails[length : length + 1] = [i]
        previous[i] = tails[length - 1] if length else -1
    chain, last = [], tails[-1] if tails else -1
    while last >= 0:
        chain.append(last)
        last = previous[last]
    return [x[i] + 1 for i in reversed(chain)], [y[i] + 1 for i in reversed(chain)]


def _collect(replayed: pl.DataFrame, recorded: pl.DataFrame, replays: _Runs, places: _Places) -> Alignment:
    """Return the places of all kernels, and the results of the graphs."""
    columns = zip(_Places._fields, places, strict=True)
    frame = pl.DataFrame([create_series(array).alias(name) for name, array in columns])
    known = frame.select(pl.when(pl.all() >= 0).then(pl.all()))
    kernels = pl.DataFrame(
        {"recorded_row": recorded["row"].gather(known["recorded"]).cast(pl.Int64), "confidence": known["confidence"]}
    )
    is_matched, sequence = pl.col("recorded_row").is_not_null(), pl.col("sequence")
    kinds = create_series(replays.spread(replays.firsts)).alias("kind")
    rows = kernels.hstack([replayed["graph"], replayed["replay"], frame["sequence"], kinds])
    graphs = rows.group_by("kind", maintain_order=True).agg(
        pl.col("graph", "replay").first(),
        replays=pl.col("replay").n_unique(),
        kernels=pl.len(),
        matched=is_matched.sum(),
        abstained=(~is_matched).sum(),
        confidence=pl.col("confidence").mean(),
        sequence=sequence.max(),
    )
    reason = (
        pl.when(sequence == _TOO_MANY)
        .then(pl.lit(TOO_MANY))
        .when(sequence == _NO_CANDIDATE)
        .then(pl.lit(NO_CANDIDATE))
        .when(pl.col("matched") == 0)
        .then(pl.lit(LOW_CONFIDENCE))
    )
    graphs = graphs.with_columns(sequence=pl.when(sequence >= 0).then(sequence), reason=reason)
    return Alignment(kernels, graphs.select(pl.col(name).cast(dtype) for name, dtype in GRAPH_RESULTS.items()))
