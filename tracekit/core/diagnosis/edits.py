"""Parse edits of ``what-if``, such as ``kernel *gemm* x0.5``.

An edit selects events, and states what happens to them::

    edit     = [ NAME "=" ] [ "rank" RANKS ":" ] ( selector action | cause [ action ] ) [ "on" side ]
    selector = "kernel" PATTERN | "range" PATTERN | "call" PATTERN | "copy" term { term }
    term     = PATTERN | "pageable" | ( "<" | "<=" | ">" | ">=" ) SIZE
    cause    = "cause:" CAUSE
    action   = "x" FACTOR | "=" TIME | "removed"
    side     = "cpu" | "gpu" | "both"

A ``PATTERN`` has to match the whole name. In it, ``*`` matches any characters and ``?`` matches one character. It may
contain spaces. Words that would have another meaning are written in quotes: ``range "a = b" removed``. ``RANKS`` are
numbers and intervals of numbers, such as ``0,2-5``. A cause without an action is cured, as ``why`` predicts it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Literal, NamedTuple, NoReturn, cast

import numpy as np
import polars as pl

from tracekit.core.diagnosis import causes
from tracekit.core.diagnosis.cures import deduplicate
from tracekit.core.diagnosis.events import convert_to_label_expr
from tracekit.core.series import decode_categories, match_categories_expr
from tracekit.errors import UnknownFormatError, create_choices_hint
from tracekit.system.sorting import create_series
from tracekit.text import parse_byte_count, parse_nanoseconds, replace_surrogates

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from tracekit.core.diagnosis.cures import Cure
    from tracekit.core.diagnosis.inspection import Inspection
    from tracekit.core.diagnosis.model import Model

    Int64s = npt.NDArray[np.int64]
    Floats = npt.NDArray[np.float64]
    Mask = npt.NDArray[np.bool_]

_SHOWN_CHARS, _MAX_NAMES = 100, 10_000
_VERSION = r"(?:_v\d+)?"
_COMPARISONS: dict[str, Callable[[Int64s, int], Mask]] = {
    "<": np.less,
    "<=": np.less_equal,
    ">": np.greater,
    ">=": np.greater_equal,
}
EditTarget = Literal["kernel", "range", "call", "copy", "cause"]
EditSide = Literal["cpu", "gpu", "both"]
Verb = Literal["scaled", "set", "removed", "cured"]
Comparison = Literal["<", "<=", ">", ">="]
SIDES: tuple[EditSide, ...] = ("cpu", "gpu", "both")
DEFAULT_SIDES: dict[EditTarget, EditSide] = {
    "kernel": "gpu",
    "copy": "gpu",
    "range": "cpu",
    "call": "cpu",
    "cause": "both",
}
"""The side that an edit changes if it names none, by what it selects."""
_TARGETS = ("kernel", "range", "call", "copy", "cause:")
_MAX_CHARS = 4096
_MAX_NS = 10**15
_MAX_SHOWN = 80
_WORD = re.compile(r"""(?:[^\s"']|"[^"]*"|'[^']*')+""")
_QUOTED = re.compile(r""""([^"]*)"|'([^']*)'""")
_PLAIN = re.compile(r"""[^\s"'<>=]+""")
_FACTOR = re.compile(r"x([0-9]{1,6}(?:\.[0-9]{1,9})?)")
_RANKS = re.compile(r"[0-9]{1,9}(?:-[0-9]{1,9})?(?:,[0-9]{1,9}(?:-[0-9]{1,9})?)*")
_COMPARISON = re.compile(r"([<>]=?)(.*)", re.DOTALL)
_ACTIONS_HINT = "end the edit with x0.5 to scale the time, =20us to set it, or removed"
_UNITS = (("s", 10**9), ("ms", 10**6), ("us", 10**3))


class SelectedPart(NamedTuple):
    """Selected items or operations of a model.

    Attributes:
        rows: Their rows. A row may occur several times with different shares.
        share: Share of the time of each of them that is selected.
        group: Number of the occurrence to which each of them belongs. If a time is set, it is that of an occurrence.
    """

    rows: Int64s
    share: Floats
    group: Int64s

    @classmethod
    def create(cls, rows: Int64s, group: Int64s | None = None) -> SelectedPart:
        """Return a part of which the whole time is selected."""
        return cls(rows, np.ones(len(rows)), rows if group is None else group)


EMPTY = SelectedPart.create(np.zeros(0, np.int64))


class EditSelection(NamedTuple):
    """What an edit selects.

    Attributes:
        occurrences: Number of kernels, copies, calls or ranges that are selected.
        items: What is selected on the CPU.
        operations: What is selected on the GPU.
    """

    occurrences: int
    items: SelectedPart
    operations: SelectedPart


def select_events(inspection: Inspection, cures: Sequence[Cure], edit: StepEdit) -> EditSelection:
    """Return the events of a model that an edit selects, on the sides that it changes.

    Args:
        inspection: The model.
        cures: The cures of all causes in the model.
        edit: The edit.
    """
    if edit.target == "cause":
        selection = _select_cures(inspection, [cure for cure in cures if cure.cause == edit.pattern])
    elif edit.target == "range":
        selection = _select_ranges(inspection.model, edit.pattern)
    elif edit.target == "call":
        selection = _select_calls(inspection.model, edit.pattern)
    else:
        selection = _select_operations(inspection, edit)
    if edit.side == "cpu":
        return selection._replace(operations=EMPTY)
    return selection._replace(items=EMPTY) if edit.side == "gpu" else selection


def _select_cures(inspection: Inspection, cures: Sequence[Cure]) -> EditSelection:
    items = np.concatenate([EMPTY.rows, *(cure.item_rows for cure in cures)])
    operations = np.concatenate([EMPTY.rows, *(cure.operation_rows for cure in cures)])
    count = sum(inspection.count_occurrences(cure) for cure in cures)
    return EditSelection(count, SelectedPart.create(items), SelectedPart.create(operations))


def _select_operations(inspection: Inspection, edit: StepEdit) -> EditSelection:
    """Select kernels or copies. On the CPU, these are the calls that launch only one of them, and the code before."""
    model = inspection.model
    table = "kernels" if edit.target == "kernel" else "memcpys"
    tables = model.events.operations["table"].gather(create_series(model.operations.row))
    mask = (tables == table).to_numpy()
    if edit.pattern:
        mask &= _match_names(model.names, edit.pattern, flags="i" if edit.target == "copy" else "")
    if edit.is_pageable:
        mask &= model.sizes["pageable"].to_numpy()
    mask &= _match_sizes(model, edit.sizes)
    rows = np.flatnonzero(mask)
    items = inspection.find_launch_items(rows)
    return EditSelection(
        len(rows), SelectedPart.create(items, inspection.find_next_launches(items)), SelectedPart.create(rows)
    )


def _match_sizes(model: Model, limits: Sequence[SizeLimit]) -> Mask:
    """Return which operations satisfy conditions on their sizes. An unknown size satisfies none."""
    result = np.ones(len(model.operations.row), np.bool_)
    if limits:
        result &= model.sizes["bytes"].is_not_null().to_numpy()
    for limit in limits:
        result &= _COMPARISONS[limit.comparison](model.bytes, limit.bytes)
    return result


def _select_calls(model: Model, pattern: str) -> EditSelection:
    """Select API calls and the operations that they launch. The version at the end of a name can be omitted."""
    items, ops = model.items, model.operations
    matches = _match_names(model.events.calls["name"], pattern, _VERSION)
    selected = np.zeros(len(items.call), np.bool_)
    is_call = items.call >= 0
    selected[is_call] = matches[items.call[is_call]]
    rows = np.flatnonzero(selected & (items.lane == 0))
    launched = np.flatnonzero(selected[ops.item])
    count = len(deduplicate(np.concatenate([rows, ops.item[launched]])))
    return EditSelection(count, SelectedPart.create(rows), SelectedPart.create(launched, ops.item[launched]))


def _select_ranges(model: Model, pattern: str) -> EditSelection:
    """Select what the launching thread does in ranges, and the operations that it launches there.

    Ranges within other selected ranges are part of these.
    """
    starts, ends = _find_occurrences(model, pattern)
    items, ops = model.items, model.operations
    main = np.flatnonzero(items.lane == 0)
    start, end = items.start[main], items.end[main]
    first = np.searchsorted(end, starts, side="right")
    counts = np.maximum(np.searchsorted(start, ends, side="left") - first, 0)
    occurrence = np.repeat(np.arange(len(starts)), counts)
    position = np.repeat(first - (np.cumsum(counts) - counts), counts) + np.arange(len(occurrence))
    inside = np.minimum(end[position], ends[occurrence]) - np.maximum(start[position], starts[occurrence])
    length = end[position] - start[position]
    share = np.where(length > 0, inside / np.maximum(length, 1), 1.0)
    launched = items.start[ops.item]
    latest = np.searchsorted(starts, launched, side="right") - 1
    is_inside = (latest >= 0) & (items.lane[ops.item] == 0)
    if len(ends):
        is_inside &= launched < ends[np.maximum(latest, 0)]
    operations = np.flatnonzero(is_inside)
    return EditSelection(
        len(starts),
        SelectedPart(main[position], share, occurrence),
        SelectedPart.create(operations, latest[operations].astype(np.int64)),
    )


def _find_occurrences(model: Model, pattern: str) -> tuple[Int64s, Int64s]:
    """Return the starts and ends of the outermost ranges with matching names in the steps, as disjoint intervals."""
    ranges = model.events.ranges
    regex = _convert_glob(pattern)
    matches = match_categories_expr(
        pl.col("name"), lambda text: text.str.contains(regex) | convert_to_label_expr(text).str.contains(regex)
    )
    first, last = model.steps[0].start_ns, model.steps[-1].end_ns
    rows = ranges.filter(matches & (pl.col("end_ns") > first) & (pl.col("start_ns") < last))
    rows = rows.sort("start_ns", "end_ns", descending=[False, True])
    start, end = np.maximum(rows["start_ns"].to_numpy(), first), np.minimum(rows["end_ns"].to_numpy(), last)
    latest = np.concatenate([np.full(min(1, len(end)), first), np.maximum.accumulate(end)[:-1]])
    start = np.maximum(start, latest)
    return start[end > start], end[end > start]


def _convert_glob(pattern: str, suffix: str = "", flags: str = "") -> str:
    """Return the regular expression for a pattern with ``*`` and ``?``."""
    return f"(?s{flags})^{re.escape(pattern).replace(chr(92) + '*', '.*').replace(chr(92) + '?', '.')}{suffix}$"


def _match_names(names: pl.Series, pattern: str, suffix: str = "", flags: str = "") -> Mask:
    """Return which names a pattern matches. A null matches nothing."""
    regex = _convert_glob(pattern, suffix, flags)
    matches = match_categories_expr(pl.col("name"), lambda text: text.str.contains(regex))
    return names.to_frame("name").select(matches).to_series().to_numpy()


def create_matches_hint(inspection: Inspection, cures: Sequence[Cure], edit: StepEdit, selection: EditSelection) -> str:
    """Return what to do about an edit that changes nothing."""
    if selection.occurrences:
        others = "gpu" if edit.side == "cpu" else "cpu"
        return f"what it selects has no work of its own on the {edit.side}: write on {others}, or on both"
    model = inspection.model
    if edit.target == "cause":
        return create_choices_hint("causes of this capture", sorted({cure.cause for cure in cures}), edit.pattern)
    if edit.target == "range":
        named = model.events.ranges["name"]
    elif edit.target == "call":
        named = model.events.calls["name"]
    else:
        table = "kernels" if edit.target == "kernel" else "memcpys"
        named = model.events.operations.filter(pl.col("table") == table)["name"]
    names = decode_categories(named.unique()).drop_nulls().sort().head(_MAX_NAMES)
    shown = [name if len(name) <= _SHOWN_CHARS else f"{name[:_SHOWN_CHARS]}…" for name in names]
    kinds = {"kernel": "kernels", "range": "ranges", "call": "calls", "copy": "kinds of copies"}
    return create_choices_hint(kinds[edit.target], shown, edit.pattern.strip("*?"))


class Action(NamedTuple):
    """What happens to the time of the selected events.

    Attributes:
        verb: ``scaled``, ``set``, ``removed`` or ``cured``.
        factor: Factor of the time if it is scaled.
        ns: New time if it is set.
    """

    verb: Verb
    factor: Decimal = Decimal(1)
    ns: int = 0

    def __str__(self) -> str:
        """Return the action as it is written in an edit."""
        if self.verb == "scaled":
            return f"x{self.factor:f}"
        if self.verb == "set":
            unit, size = next(((u, s) for u, s in _UNITS if self.ns and self.ns % s == 0), ("ns", 1))
            return f"={self.ns // size}{unit}"
        return self.verb


class SizeLimit(NamedTuple):
    """A condition on the size of copies."""

    comparison: Comparison
    bytes: int

    def __str__(self) -> str:
        """Return the condition as it is written in an edit."""
        return f"{self.comparison}{self.bytes}B"


@dataclass(frozen=True, slots=True)
class StepEdit:
    """A hypothetical change of the events of steps.

    Attributes:
        target: What is selected: ``kernel``, ``range``, ``call``, ``copy`` or ``cause``.
        pattern: Pattern of the names, or name of a cause. "" selects copies of all kinds.
        action: What happens to the selected events.
        side: What is changed: the work of the CPU, of the GPU, or both.
        name: Name of the edit, or None.
        ranks: First and last number of the intervals of ranks to which the edit applies, or None for all ranks.
        is_pageable: Whether only copies from and to pageable memory are selected.
        sizes: Conditions on the size of copies.
    """

    target: EditTarget
    pattern: str
    action: Action
    side: EditSide
    name: str | None = None
    ranks: tuple[tuple[int, int], ...] | None = None
    is_pageable: bool = False
    sizes: tuple[SizeLimit, ...] = ()

    def __str__(self) -> str:
        """Return the edit in the form in which ``parse_edit`` accepts it."""
        words = [] if self.name is None else [*map(_quote, self.name.split(" ")), "="]
        if self.ranks is not None:
            ranks = ",".join(f"{first}-{last}" if last > first else f"{first}" for first, last in self.ranks)
            words += ["rank", f"{ranks}:"]
        words += [f"cause:{self.pattern}"] if self.target == "cause" else [self.target]
        if self.target != "cause" and (self.pattern or self.target != "copy"):
            words += map(_quote, self.pattern.split(" "))
        words += ["pageable"] if self.is_pageable else []
        words += map(str, self.sizes)
        words += [] if self.action.verb == "cured" else [str(self.action)]
        words += [] if self.side == DEFAULT_SIDES[self.target] else ["on", self.side]
        return " ".join(words)

    def applies_to(self, rank: int | None) -> bool:
        """Return whether the edit applies to a rank."""
        return self.ranks is None or any(first <= (-1 if rank is None else rank) <= last for first, last in self.ranks)


class _Word(NamedTuple):
    """A word of an edit: its value without quotes, its position, counted from 1, and whether it has no quotes."""

    value: str
    position: int
    is_plain: bool = True


def parse_edit(text: str) -> StepEdit:
    """Parse an edit, such as ``kernel *gemm* x0.5``.

    Raises:
        UnknownFormatError: The text is not an edit. The message states where the error is.
    """
    text = replace_surrogates(text)
    words = _split(text)
    name, words = _parse_name(text, words)
    ranks, words = _parse_ranks(text, words)
    side, words = _parse_side(text, words)
    first = words[0] if words else _Word("", len(text) + 1)
    if first.is_plain and first.value.startswith("cause:"):
        return _parse_cause(text, words, StepEdit("cause", "", Action("cured"), side or "both", name, ranks))
    if not first.is_plain or first.value not in _TARGETS:
        _fail(text, first, _state(first, "selector"), create_choices_hint("selectors", _TARGETS, first.value))
    target = cast("EditTarget", first.value)
    if len(words) == 1:
        _fail(text, first, f"there is no pattern after {target!r}", f"write {target} PATTERN, such as {target} *")
    action = _parse_action(text, words[-1])
    if len(words) < len(("kernel", "PATTERN", "x2")):
        _fail(text, words[-1], f"there is no pattern after {target!r}", f"write {target} * {words[-1].value}")
    edit = StepEdit(target, "", action, side or DEFAULT_SIDES[target], name, ranks)
    return _parse_pattern(text, words[1:-1], edit)


def _fail(text: str, word: _Word, problem: str, hint: str) -> NoReturn:
    shown = text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"
    raise UnknownFormatError(f"invalid edit {shown!r}: {problem} (character {word.position})", hint=hint)


def _state(word: _Word, noun: str) -> str:
    """State that a word is not what is expected, or that there is no word."""
    value = word.value if len(word.value) <= _MAX_SHOWN else f"{word.value[:_MAX_SHOWN]}…"
    return f"{value!r} is no {noun}" if value else f"there is no {noun}"


def _quote(word: str) -> str:
    """Return a word, in quotes if it needs them. Quotes of the other kind surround the quotes that it contains."""
    if _PLAIN.fullmatch(word) and word != "pageable":
        return word
    parts = re.split(r'("+)', word)
    return "".join(f"'{part}'" if part.startswith('"') else f'"{part}"' for part in parts if part) or '""'


def _split(text: str) -> list[_Word]:
    """Split an edit into words. Quotes keep spaces together, and are removed."""
    if len(text) > _MAX_CHARS:
        _fail(text, _Word("", _MAX_CHARS + 1), "it is too long", f"use at most {_MAX_CHARS} characters")
    words, position = [], 0
    while position < len(text):
        if text[position].isspace():
            position += 1
            continue
        match = _WORD.match(text, position)
        if match is None or text[match.end() : match.end() + 1] in ("'", '"'):
            at = position if match is None else match.end()
            _fail(text, _Word("", at + 1), "the quote is not closed", "put patterns with quotes in other quotes")
        raw = match[0]
        value = _QUOTED.sub(lambda quoted: quoted[1] if quoted[1] is not None else quoted[2], raw)
        words.append(_Word(value, position + 1, value == raw))
        position = match.end()
    return words


def _parse_name(text: str, words: list[_Word]) -> tuple[str | None, list[_Word]]:
    """Return the name that precedes ``=``, or None, and the other words."""
    index = next((i for i, word in enumerate(words) if word.is_plain and word.value == "="), None)
    if index is None:
        return None, words
    if not index:
        _fail(text, words[0], "there is no name before '='", "write NAME = EDIT, or remove '='")
    rest = words[index + 1 :]
    if len(rest) == 1 and _read_time(rest[0].value) is not None:
        _fail(text, rest[0], "a time follows '=' and a space", f"write ={rest[0].value} without a space")
    return " ".join(word.value for word in words[:index]), rest


def _parse_ranks(text: str, words: list[_Word]) -> tuple[tuple[tuple[int, int], ...] | None, list[_Word]]:
    """Return the ranks that precede a colon, or None, and the other words."""
    if not words or not words[0].is_plain or words[0].value != "rank":
        return None, words
    word = words[1] if len(words) > 1 else _Word("", len(text) + 1)
    hint = "write numbers and a colon, such as rank 0,2-5: kernel * x0.5"
    if not word.value.endswith(":") or not _RANKS.fullmatch(word.value[:-1]):
        _fail(text, word, _state(word, "list of ranks"), hint)
    ranks = []
    for part in word.value[:-1].split(","):
        first, _, last = part.partition("-")
        ranks.append((int(first), int(last or first)))
        if ranks[-1][1] < ranks[-1][0]:
            _fail(text, word, f"the last rank of {part!r} is less than the first one", hint)
    return tuple(ranks), words[2:]


def _parse_side(text: str, words: list[_Word]) -> tuple[EditSide | None, list[_Word]]:
    """Return the side that follows ``on``, or None, and the other words."""
    if len(words) < 2 or not words[-2].is_plain or words[-2].value != "on":  # noqa: PLR2004 - "on" and a side
        return None, words
    if words[-1].is_plain and words[-1].value in SIDES:
        return words[-1].value, words[:-2]
    if words[-1].is_plain and _read_action(words[-1].value) is not None:
        return None, words
    _fail(text, words[-1], _state(words[-1], "side"), create_choices_hint("sides", SIDES, words[-1].value))


def _parse_cause(text: str, words: list[_Word], edit: StepEdit) -> StepEdit:
    """Return the edit of a cause, with its name and, if there is one, its action."""
    name = words[0].value.removeprefix("cause:")
    if name not in causes.CAUSES:
        hint = create_choices_hint("causes", causes.CAUSES, name)
        _fail(text, words[0], _state(words[0], "cause"), hint)
    action = edit.action if len(words) == 1 else _parse_action(text, words[-1])
    if len(words) > len(("cause:NAME", "x2")):
        _fail(text, words[1], _state(words[1], "action"), f"write cause:{name}, or cause:{name} x0.5")
    return StepEdit("cause", name, action, edit.side, edit.name, edit.ranks)


def _parse_action(text: str, word: _Word) -> Action:
    action = _read_action(word.value) if word.is_plain else None
    if action is None:
        _fail(text, word, _state(word, "action"), _ACTIONS_HINT)
    return action


def _read_action(text: str) -> Action | None:
    """Return the action that a word stands for, or None if it is no action."""
    if text == "removed":
        return Action("removed")
    if match := _FACTOR.fullmatch(text):
        return Action("scaled", Decimal(match[1]))
    ns = _read_time(text[1:]) if text.startswith("=") else None
    return None if ns is None else Action("set", ns=ns)


def _read_time(text: str) -> int | None:
    """Return a time in ns, or None if a text is no time, or one of more than ten days."""
    try:
        ns = parse_nanoseconds(text) if text[:1].isdecimal() else -1
    except ValueError:
        return None
    return ns if 0 <= ns <= _MAX_NS else None


def _parse_pattern(text: str, words: Sequence[_Word], edit: StepEdit) -> StepEdit:
    """Return an edit with the pattern and the conditions of its selector."""
    if edit.target != "copy":
        pattern = " ".join(word.value for word in words)
        if not pattern.strip():
            _fail(text, words[0], "the pattern is empty", f"write {edit.target} *")
        return StepEdit(edit.target, pattern, edit.action, edit.side, edit.name, edit.ranks)
    names, sizes, is_pageable, rest = [], [], False, list(words)
    while rest:
        word = rest.pop(0)
        match = _COMPARISON.fullmatch(word.value) if word.is_plain else None
        if match is not None:
            size = _Word(match[2], word.position + len(match[1])) if match[2] or not rest else rest.pop(0)
            sizes.append(SizeLimit(cast("Comparison", match[1]), _parse_size(text, size)))
        elif word.is_plain and word.value == "pageable":
            is_pageable = True
        else:
            names.append(word)
    pattern = " ".join(word.value for word in names)
    if names and not pattern.strip():
        _fail(text, names[0], "the pattern is empty", "write copy *")
    return StepEdit("copy", pattern, edit.action, edit.side, edit.name, edit.ranks, is_pageable, tuple(sizes))


def _parse_size(text: str, word: _Word) -> int:
    try:
        return parse_byte_count(word.value)
    except ValueError:
        _fail(text, word, _state(word, "size"), "write a size, such as <64KiB")
