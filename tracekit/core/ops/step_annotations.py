"""Parse the names of ranges with which frameworks mark the steps of serving and training.

The patterns are in ``schemas/serving_annotations.toml``. A number that contradicts another one is not believed: the
counts of such a step are not known.
"""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, NamedTuple

from tracekit import schemas

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

PREFILL, DECODE, MIXED, IDLE, CAPTURE = "prefill", "decode", "mixed", "idle", "capture"
_FIELD = re.compile(r"(\w+)=(\d{1,12})(?!\d)")
_GROUP_NAME = re.compile(r"\?P<[a-z_]+>")
_MAX_NAME_CHARS = 1 << 10
_CONTEXT = ("context_requests", "context_tokens", "context_length")
_TOTALS = ("requests", "tokens", "length")
_GENERATION = ("generation_requests", "generation_tokens", "generation_length")


class Annotation(NamedTuple):
    """What the name of a range tells about a step. Numbers are None if they are not known.

    Attributes:
        framework: Framework that writes such names.
        phase: ``prefill``, ``decode``, ``mixed``, ``idle``, ``warm_up`` or a phase of training, or None if the name
            does not tell.
        requests: Number of requests.
        context_requests: Number of requests in prefill.
        context_tokens: Number of their tokens that the step processes.
        generation_requests: Number of requests in decode.
        generation_tokens: Number of their tokens that the step processes.
        sequence_tokens: Sum of the lengths of the sequences to which the requests attend.
        is_fallback: Whether the range counts only if the capture has no other annotations.
        is_companion: Whether the range counts only if the capture has other annotations of the framework.
    """

    framework: str
    phase: str | None
    requests: int | None = None
    context_requests: int | None = None
    context_tokens: int | None = None
    generation_requests: int | None = None
    generation_tokens: int | None = None
    sequence_tokens: int | None = None
    is_fallback: bool = False
    is_companion: bool = False


def load_annotation_patterns() -> Sequence[Mapping[str, Any]]:
    """Return the declared annotations, each with its pattern, its framework and what its groups mean."""
    declared: Sequence[Mapping[str, Any]] = schemas.load_serving_annotations()["annotations"]
    return declared


def combine_patterns(patterns: Iterable[str]) -> str:
    """Return a regular expression, without named groups, that matches what any of the patterns matches."""
    return "|".join(f"(?:{_GROUP_NAME.sub('?:', pattern)})" for pattern in patterns)


def parse_annotation(name: str) -> Annotation | None:
    """Parse the name of a range. Return None if no framework writes such names."""
    if len(name) > _MAX_NAME_CHARS:
        return None
    for pattern, rule in _compile_patterns():
        if match := pattern.fullmatch(name):
            return _interpret(rule, match.groupdict())
    return None


@functools.cache
def _compile_patterns() -> tuple[tuple[re.Pattern[str], Mapping[str, Any]], ...]:
    return tuple((re.compile(rule["pattern"]), rule) for rule in load_annotation_patterns())


def _interpret(rule: Mapping[str, Any], groups: dict[str, str | None]) -> Annotation:
    """Return the annotation that the groups of a pattern describe."""
    mode, fields = groups.pop("mode", None), groups.pop("fields", None)
    numbers = {name: int(digits) for name, digits in groups.items() if digits is not None}
    for key, digits in _FIELD.findall(fields or ""):
        if key in rule["keys"]:
            numbers.setdefault(rule["keys"][key], int(digits))
    numbers = {
        name: number for name, number in numbers.items() if number or name not in rule.get("unknown_if_zero", ())
    }
    phase = rule.get("modes", {}).get(mode, rule.get("phase"))
    numbers = _complete(numbers, phase, has_one_token=mode in rule.get("one_token", ()))
    if not _is_consistent(numbers):
        numbers = {}
    counts = (numbers.get("context_requests"), numbers.get("generation_requests"))
    if "new_requests" in numbers:
        phase = PREFILL if numbers["new_requests"] and not numbers["cached_requests"] else None
    elif None not in counts:
        phase = {(True, True): MIXED, (True, False): PREFILL, (False, True): DECODE}.get(
            (counts[0] != 0, counts[1] != 0), IDLE
        )
    counts_by_name = {name: numbers.get(name) for name in ("requests", *_CONTEXT[:2], *_GENERATION[:2])}
    return Annotation(
        rule["framework"],
        phase,
        **counts_by_name,
        sequence_tokens=numbers.get("length"),
        is_fallback=rule.get("fallback", False),
        is_companion=rule.get("companion", False),
    )


def _complete(numbers: dict[str, int], phase: str | None, *, has_one_token: bool) -> dict[str, int]:
    """Return the numbers of a step with those that follow from others.

    In a step of one phase, all requests and tokens are those of this phase. SGLang writes the numbers of some steps of
    decode as those of a context.

    Args:
        numbers: The recorded numbers.
        phase: The phase that the name states, or None.
        has_one_token: Whether the step processes one token per request.
    """
    numbers = dict(numbers)
    own, other = (_CONTEXT, _GENERATION) if phase == PREFILL else (_GENERATION, _CONTEXT)
    if phase in (PREFILL, DECODE) and other[0] not in numbers and "requests" in numbers:
        for sources in (other, _TOTALS):
            for name, source in zip(own, sources, strict=True):
                if source in numbers:
                    numbers.setdefault(name, numbers[source])
        numbers |= dict.fromkeys(other, 0)
    if has_one_token and "generation_requests" in numbers:
        numbers.setdefault("generation_tokens", numbers["generation_requests"])
    if "new_requests" in numbers:
        numbers["requests"] = numbers["new_requests"] + numbers["cached_requests"]
    for total, names in zip(_TOTALS, zip(_CONTEXT, _GENERATION, strict=True), strict=True):
        if all(name in numbers for name in names):
            numbers.setdefault(total, sum(numbers[name] for name in names))
    return numbers


def _is_consistent(numbers: Mapping[str, int]) -> bool:
    """Return whether the numbers of a step do not contradict one another.

    Each request has a token, a sequence is not shorter than the tokens of it that are processed, and the parts of a
    total add up to it.
    """
    for names in (_CONTEXT, _GENERATION, _TOTALS):
        known = [numbers[name] for name in names if name in numbers]
        if known != sorted(known) or (0 in known and any(known)):
            return False
    return all(
        numbers[total] == sum(numbers[name] for name in names)
        for total, names in zip(_TOTALS, zip(_CONTEXT, _GENERATION, strict=True), strict=True)
        if total in numbers and all(name in numbers for name in names)
    )
