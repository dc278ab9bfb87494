"""Align two sequences with a pair hidden Markov model, and compute how likely each item belongs to each group.

The *items* of the first sequence are explained by the *others*, the items of the second sequence. Each step of the
model has one of three states:

- ``match``: An item corresponds to the next of the others.
- ``insert``: An item corresponds to none of the others.
- ``skip``: The next of the others corresponds to no item.

An item and one of the others are equal on some of ``LEVELS`` levels. The *weight* of a match is the sum of the gains of
these levels, and a gain without any condition: how much likelier the match makes the item than chance does.

Each of the others belongs to a *group*. By the forward-backward algorithm, the program sums the probabilities of all
alignments in which an item is matched to a member of a group, or is inserted between two members of it. Only a band of
the table of items and others is computed: ``width`` columns per row.

Importing this module imports ``wasmtime``, which takes about 40 ms. It should be imported when it is first needed.
"""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from tracekit.native.arrays import ArraySandbox
from tracekit.native.program import Program

Int32s = npt.NDArray[np.int32]
Float64s = npt.NDArray[np.float64]

LEVELS: Final = 4
"""Number of levels on which an item and one of the others can be equal."""
CHOICES: Final = 4
"""Number of groups that are returned per item."""
MIN_MASS: Final = 1e-5
"""Probability below which a place is ignored."""
_STATES: Final = 3
_SHARES: Final = ("INSERT_SHARE", "MIN_MASS", "TINY", "HUGE")
"""Numbers that follow the transitions in their array."""
_TINY, _HUGE = 1e-250, 1e250
PROGRAM: Final = Program(
    "alignment",
    {"alignment": ("items", "others", "width", "spacing")},
    {
        "LEVELS": LEVELS,
        "CHOICES": CHOICES,
        "STATES": _STATES,
        **{name: _STATES**2 + number for number, name in enumerate(_SHARES)},
    },
    {
        "alignment": {
            **dict.fromkeys(("item_codes", "other_codes"), np.int32),
            "gains": np.float64,
            **dict.fromkeys(("groups", "first_columns"), np.int32),
            **dict.fromkeys(("transitions", "starts", "ends"), np.float64),
            **dict.fromkeys(("group_choices", "column_choices"), np.int32),
            **dict.fromkeys(("mass_choices", "match_mass", "scales", "likelihood"), np.float64),
            **dict.fromkeys(("kept", "block", "behind", "ahead", "weights", "masses", "peaks"), np.float64),
            **dict.fromkeys(("peak_columns", "touched"), np.int32),
        }
    },
)


class AlignmentModel(NamedTuple):
    """The parameters of the model.

    Attributes:
        transitions: Probability of each state (column: match, insert, skip) after each state (row).
        end_share: Weight of an alignment that leaves out others at the beginning, and of one that does so at the end.
        insert_share: Share of the probability of an inserted item that counts for the group of its two neighbors.
    """

    transitions: Float64s
    end_share: float
    insert_share: float


class SequencePair(NamedTuple):
    """Two sequences to align.

    Attributes:
        item_codes: Codes of the items, one row per level. Items are equal on a level if their codes are.
        other_codes: Codes of the others, one row per level.
        gains: For each of the others, the weight of an equal code on each level and, in the last row, of any match.
        groups: Group of each of the others, from 0.
        first_columns: First column of the band in each row, ascending. There is one more row than there are items.
        width: Number of columns of the band.
    """

    item_codes: Int32s
    other_codes: Int32s
    gains: Float64s
    groups: Int32s
    first_columns: Int32s
    width: int


class AlignmentResult(NamedTuple):
    """The result of an alignment.

    Attributes:
        groups: The likeliest groups of each item, likeliest first, and -1 where there are no more groups.
        columns: The likeliest of the others in each of these groups, or -1.
        masses: The probability of each of these groups.
        match_mass: The probability that each item is matched at all.
        log_odds: Logarithm of the likelihood of the items under the model, relative to chance.
    """

    groups: Int32s
    columns: Int32s
    masses: Float64s
    match_mass: Float64s
    log_odds: float


class Aligner:
    """A sandbox that aligns sequences one after another. Only one thread at a time may use it."""

    def __init__(self) -> None:
        """Create the sandbox."""
        self._sandbox = ArraySandbox(PROGRAM)

    def align(self, pair: SequencePair, model: AlignmentModel) -> AlignmentResult:
        """Align two sequences.

        Args:
            pair: The sequences, of which the items are not empty.
            model: The parameters of the model.

        Raises:
            MemoryError: The memory cannot be allocated.
        """
        items, others = pair.item_codes.shape[1], pair.other_codes.shape[1]
        spacing = max(2, math.isqrt(items))
        row, groups = _STATES * pair.width, int(pair.groups.max(initial=0)) + 1
        ends = np.full(others + 1, model.end_share)
        starts = ends.copy()
        starts[0] = ends[-1] = 1
        shares = np.array([*model.transitions.ravel(), model.insert_share, MIN_MASS, _TINY, _HUGE])
        inputs: dict[str, npt.NDArray[Any]] = dict(zip(SequencePair._fields, pair[:-1], strict=False))
        inputs |= {"transitions": shares, "starts": starts, "ends": ends}
        choices = dict.fromkeys(("group_choices", "column_choices", "mass_choices"), items * CHOICES)
        arrays = self._sandbox.allocate(
            "alignment",
            **{name: values.size for name, values in inputs.items()},
            **choices,
            match_mass=items,
            scales=items,
            likelihood=1,
            kept=row * (items // spacing + 1),
            block=row * spacing,
            behind=row,
            ahead=row,
            weights=pair.width * spacing,
            **dict.fromkeys(("masses", "peaks", "peak_columns", "touched"), groups),
        )
        for name, values in inputs.items():
            arrays[name][:] = values.ravel()
        arrays["masses"][:] = 0
        self._sandbox.call("alignment", items=items, others=others, width=pair.width, spacing=spacing)
        with np.errstate(divide="ignore"):
            log_odds = float(np.log(arrays["scales"]).sum() + np.log(arrays["likelihood"][0]))
        chosen, columns, masses = (arrays[name].reshape(items, CHOICES).copy() for name in choices)
        return AlignmentResult(chosen, columns, masses, arrays["match_mass"].copy(), log_odds)
