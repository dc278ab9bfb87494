"""The alignment of sequences, against the sum over all alignments, each written out as a list of states."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tracekit.native.alignment import LEVELS, MIN_MASS, Aligner, AlignmentModel, SequencePair

if TYPE_CHECKING:
    from collections.abc import Iterator

MATCH, INSERT, SKIP = range(3)
MODEL = AlignmentModel(np.array([0.8, 0.1, 0.1, 0.6, 0.3, 0.1, 0.3, 0.1, 0.6]), 0.2, 0.5)
ALIGNER = Aligner()

Path = list[tuple[int, int, int]]
"""States with the numbers of items and of others after each."""


@st.composite
def pairs(draw: st.DrawFn) -> SequencePair:
    """Sequences of at most 5 items and 4 others, and a band."""
    items, others = draw(st.integers(1, 5)), draw(st.integers(0, 4))
    codes = st.lists(st.integers(0, 2), min_size=LEVELS * (items + others), max_size=LEVELS * (items + others))
    table = np.array(draw(codes), np.int32).reshape(LEVELS, -1)
    seed = draw(st.integers(0, 1000))
    gains = np.random.default_rng(seed).uniform(0.01, 5, (LEVELS + 1, others))
    groups = np.array(draw(st.lists(st.integers(0, 2), min_size=others, max_size=others)), np.int32)
    width = draw(st.integers(1, others + 1))
    firsts = sorted(draw(st.lists(st.integers(0, others + 1 - width), min_size=items + 1, max_size=items + 1)))
    return SequencePair(table[:, :items], table[:, items:], gains, groups, np.array(firsts, np.int32), width)


def list_paths(pair: SequencePair, path: Path) -> Iterator[Path]:
    """Yield all alignments that begin with a path and stay in the band."""
    _, i, j = path[-1]
    first = pair.first_columns[i]
    if not first <= j < first + pair.width or j > pair.other_codes.shape[1]:
        return
    if i == pair.item_codes.shape[1]:
        if path[-1][0] != SKIP:
            yield path
        return
    for state, di, dj in ((MATCH, 1, 1), (INSERT, 1, 0), *([(SKIP, 0, 1)] if i else [])):
        yield from list_paths(pair, [*path, (state, i + di, j + dj)])


def weigh(pair: SequencePair, path: Path) -> float:
    """Return the weight of an alignment."""
    others = pair.other_codes.shape[1]
    weight = (1 if path[0][2] == 0 else MODEL.end_share) * (1 if path[-1][2] == others else MODEL.end_share)
    for (before, _, _), (state, i, j) in itertools.pairwise(path):
        weight *= MODEL.transitions[3 * before + state]
        if state == MATCH:
            equal = pair.item_codes[:, i - 1] == pair.other_codes[:, j - 1]
            weight *= pair.gains[:LEVELS, j - 1][equal].sum() + pair.gains[LEVELS, j - 1]
    return weight


@given(pairs())
def test_sums_over_all_alignments(pair: SequencePair) -> None:
    items, others = pair.item_codes.shape[1], pair.other_codes.shape[1]
    total, matched, masses = 0.0, np.zeros(items), [dict[int, float]() for _ in range(items)]
    for start in range(others + 1):
        for path in list_paths(pair, [(MATCH, 0, start)]):
            weight = weigh(pair, path)
            total += weight
            for state, i, j in path[1:]:
                group = int(pair.groups[j - 1]) if j else -1
                if state == MATCH:
                    matched[i - 1] += weight
                    masses[i - 1][group] = masses[i - 1].get(group, 0) + weight
                elif state == INSERT and 0 < j < others and group == pair.groups[j]:
                    masses[i - 1][group] = masses[i - 1].get(group, 0) + weight * MODEL.insert_share
    result = ALIGNER.align(pair, MODEL)
    if not total:
        assert result.log_odds == -np.inf
        return
    assert result.log_odds == pytest.approx(np.log(total))
    assert result.match_mass == pytest.approx(matched / total)
    for i, expected in enumerate(masses):
        computed = dict(zip(result.groups[i].tolist(), result.masses[i].tolist(), strict=True))
        computed.pop(-1, None)
        likely = {g: m / total for g, m in expected.items() if m / total > len(expected) * 10 * MIN_MASS}
        assert {g: computed[g] for g in likely} == pytest.approx(likely, abs=10 * MIN_MASS)
        assert sorted(computed.values(), reverse=True) == list(computed.values())
        for group, column in zip(result.groups[i], result.columns[i], strict=True):
            assert column == -1 if group < 0 else pair.groups[column] == group


def test_long_sequences_need_a_larger_sandbox() -> None:
    codes = np.arange(9000, dtype=np.int32)[None].repeat(LEVELS, 0)
    gains = np.full((LEVELS + 1, 9000), 100.0)
    firsts = np.clip(np.arange(9001) - 16, 0, 9001 - 33).astype(np.int32)
    aligner = Aligner()
    before = aligner._sandbox._capacity
    result = aligner.align(SequencePair(codes, codes, gains, codes[0], firsts, 33), MODEL)
    assert aligner._sandbox._capacity > before
    assert result.groups[:, 0].tolist() == list(range(9000))
    assert result.masses[:, 0].min() > 0.9


def test_memory_outside_the_sandbox() -> None:
    codes = np.zeros((LEVELS, 1), np.int32)
    groups, firsts = np.array([-(1 << 28)], np.int32), np.zeros(2, np.int32)
    pair = SequencePair(codes, codes, np.ones((LEVELS + 1, 1)), groups, firsts, 2)
    with pytest.raises(MemoryError, match="the alignment left its memory"):
        Aligner().align(pair, MODEL)
