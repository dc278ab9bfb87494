"""Sequences get the numbers that a dictionary of prefixes would give them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tracekit.readers.common import tries as module
from tracekit.readers.common.budget import START_BYTES, Budget
from tracekit.readers.common.damage import Damage
from tracekit.readers.common.tries import NODE_BYTES, Trie

SEQUENCES = st.lists(st.lists(st.integers(0, 3) | st.integers(0, (1 << 32) - 1), max_size=8), max_size=30)


def add(trie: Trie, sequences: Sequence[Sequence[int]]) -> list[int]:
    edges = np.cumsum([0, *map(len, sequences)], dtype=np.int64)
    return trie.add_sequences(edges, np.array([x for s in sequences for x in s], np.uint32)).tolist()


def known(numbers: dict[tuple[int, ...], int], sequences: Sequence[Sequence[int]]) -> list[int]:
    """The number of each sequence, and in ``numbers`` those of all prefixes in order of first use."""
    for sequence in sequences:
        path = tuple(reversed(sequence))
        for end in range(1, len(path) + 1):
            numbers.setdefault(path[:end], len(numbers) + 1)
    return [numbers.get(tuple(reversed(s)), 0) for s in sequences]


def nodes(trie: Trie) -> list[tuple[int, int, int]]:
    return list(zip(trie.parents.tolist(), trie.labels.tolist(), trie.depths.tolist(), strict=True))


def expected(numbers: dict[tuple[int, ...], int]) -> list[tuple[int, int, int]]:
    return [(0, 0, 0), *((numbers.get(path[:-1], 0), path[-1], len(path)) for path in numbers)]


@given(st.lists(SEQUENCES, max_size=4), st.sampled_from([1, 7, 1 << 18]))
def test_numbers_are_those_of_a_dictionary(parts: list[list[list[int]]], batch: int) -> None:
    trie, numbers = Trie(Budget(0), "labels"), dict[tuple[int, ...], int]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "BATCH", batch)
        patch.setattr(module, "MIN_NODES", 2)
        for sequences in parts:
            assert add(trie, sequences) == known(numbers, sequences)
    assert trie.count == len(numbers)
    assert nodes(trie) == expected(numbers)


@given(SEQUENCES, SEQUENCES)
def test_merged_tries_number_all_sequences_as_one(one: list[list[int]], other: list[list[int]]) -> None:
    first, second, numbers = Trie(Budget(0), "labels"), Trie(Budget(0), "labels"), dict[tuple[int, ...], int]()
    known(numbers, one)
    add(first, one)
    in_second = add(second, other)
    merged = first.merge(second)
    assert merged[in_second].tolist() == known(numbers, other)
    assert nodes(first) == expected(numbers)


@pytest.mark.thorough
def test_many_nodes_of_one_parent_and_a_long_sequence() -> None:
    trie = Trie(Budget(1 << 20), "labels")
    assert add(trie, [[n] for n in range(300_000)]) == list(range(1, 300_001))
    assert add(trie, [[7] * 600_000, [7]]) == [899_999, 8]
    assert int(trie.depths[-1]) == 600_000


def test_the_memory_of_nodes_is_limited() -> None:
    trie = Trie(Budget(0), "labels")
    most = START_BYTES // NODE_BYTES
    with pytest.raises(Damage, match=r"labels would take .* bytes of memory"):
        add(trie, [list(range(most + 1))])
    assert add(trie, [[1, 2]]) == [2]


def test_more_nodes_than_are_supported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_NODES", 1 << 12)
    with pytest.raises(Damage, match="more than 4,096 labels, which tracekit does not support"):
        add(Trie(Budget(0), "labels"), [list(range(5000))])
