"""Patterns of private values that have a recognizable format: addresses, ids, secrets and paths.

Matches are overwritten in place, so that no string changes its length. Searching every string for every pattern would
be slow. Therefore each pattern has search strings or prefilters, which are found quickly in megabytes of data. A
prefilter is a regular expression that begins with a fixed byte. Every match of a pattern contains one of its search
strings, or a match of one of its prefilters. Every repetition in a regular expression is bounded, so that the
time that a search takes is proportional to the number of bytes.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from tracekit.readers.redaction import environments
from tracekit.readers.redaction.address_patterns import (
    CONTAINERS,
    EMAILS,
    HARDWARE,
    INFINIBAND,
    IPV4,
    IPV4_NAMES,
    IPV6,
    IPV6_NAMES,
    NAMED_HARDWARE,
    PCI,
    PLAIN_UUIDS,
    SERIALS,
    UUIDS,
)
from tracekit.readers.redaction.kinds import ENVIRONMENT
from tracekit.readers.redaction.path_patterns import HOMES, LIBRARIES, PATHS, WINDOWS_PATHS
from tracekit.readers.redaction.pattern import Pattern, overwrite_with_x
from tracekit.readers.redaction.secret_patterns import (
    ASSIGNMENTS,
    AWS_SECRETS,
    AZURE_SECRETS,
    CREDENTIALS,
    OPTIONS,
    OTHER_ASSIGNMENTS,
    PASSWORD_OPTIONS,
    SHORT_TOKENS,
    TOKENS,
)

if TYPE_CHECKING:
    from tracekit.readers.redaction.pseudonyms import Pseudonyms


def _overwrite_environment(match: re.Match[bytes], _pseudonyms: Pseudonyms) -> bytes:
    """Overwrite all bytes of a match from the start of the process environment in it to the end of the match."""
    start = environments.find_environment_start(match[0])
    return match[0] if start is None else match[0][:start] + overwrite_with_x(match[0][start:])


_ENVIRONMENTS = Pattern(
    ENVIRONMENT, re.compile(rb"(?s)\A.+\Z"), _overwrite_environment, search_strings=environments.SEARCH_STRINGS
)

PATTERNS = (
    *(_ENVIRONMENTS, AWS_SECRETS, TOKENS, AZURE_SECRETS, ASSIGNMENTS, OTHER_ASSIGNMENTS, SHORT_TOKENS, OPTIONS),
    *(PASSWORD_OPTIONS, CREDENTIALS, EMAILS),
    *(
        UUIDS,
        PLAIN_UUIDS,
        CONTAINERS,
        HARDWARE,
        NAMED_HARDWARE,
        INFINIBAND,
        SERIALS,
        PCI,
        IPV6,
        IPV4_NAMES,
        IPV6_NAMES,
        IPV4,
        HOMES,
        WINDOWS_PATHS,
        PATHS,
        LIBRARIES,
    ),
)
"""All patterns, in the order in which they are applied."""

NAMED_VALUE_PATTERNS = (
    *(ASSIGNMENTS, OTHER_ASSIGNMENTS, AWS_SECRETS, SHORT_TOKENS, OPTIONS, PASSWORD_OPTIONS),
    *(PLAIN_UUIDS, NAMED_HARDWARE, INFINIBAND, SERIALS, IPV6, IPV4),
)
"""Patterns of values that are private because of the name before them, such as ``password`` and ``uuid``."""


class Prefilter(NamedTuple):
    """All prefilters that begin with the same byte.

    Attributes:
        expression: Regular expression that matches the first byte where at least one of the prefilters matches. A
            search for it is fast, because the regular expression engine first looks for the fixed byte.
        parts: The regular expression of each prefilter, with the bit of its pattern in bit masks.
    """

    expression: re.Pattern[bytes]
    parts: tuple[tuple[re.Pattern[bytes], int], ...]


def _join_prefilters() -> tuple[Prefilter, ...]:
    rests: defaultdict[bytes, list[tuple[bytes, int]]] = defaultdict(list)
    for nth, pattern in enumerate(PATTERNS):
        for start, rest in pattern.prefilters:
            rests[start].append((rest, 1 << nth))
    return tuple(
        Prefilter(
            re.compile(re.escape(start) + rb"(?=" + b"|".join(rest for rest, _ in parts) + rb")"),
            tuple((re.compile(re.escape(start) + rb"(?:" + rest + rb")"), bit) for rest, bit in parts),
        )
        for start, parts in rests.items()
    )


PREFILTERS = _join_prefilters()
"""The joined prefilters of all patterns."""
