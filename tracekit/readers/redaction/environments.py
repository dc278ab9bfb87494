"""Detect and parse process environments in strings."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

USUAL_NAMES = (
    rb"PATH|HOME|PWD|OLDPWD|USER|LOGNAME|USERNAME|USERPROFILE|SHELL|LANG|TERM|HOSTNAME|COMPUTERNAME|SHLVL|MAIL|EDITOR"
    rb"|DISPLAY|TMPDIR|LD_LIBRARY_PATH|LD_PRELOAD|PYTHONPATH|CUDA_HOME|SSH_CLIENT|SSH_CONNECTION|SSH_TTY|XDG_\w+"
    rb"|SLURM_\w+|KUBERNETES_\w+"
)
"""Regular expression for well-known names of variables."""
_SEARCHED_NAMES = (
    b"path home pwd user logname shell hostname shlvl username lang term lc_all lc_ctype lc_numeric lc_time lc_collate "
    b"lc_monetary lc_messages lc_paper lc_name lc_address lc_telephone lc_measurement lc_identification"
)
SEARCH_STRINGS = tuple(
    name + end for name in _SEARCHED_NAMES.split() for end in (b"=", b"'", b'"', b"\\'", b'\\"', b"%3d", b"\\u003d")
)
"""Lower-case strings to search for. A detected environment without NUL bytes contains at least one of them."""

ALMOST_ALWAYS_SET = (b"PATH", b"HOME", b"PWD", b"USER")
"""Names of variables. In every complete environment, at least one of them is set."""

_VARIABLE = re.compile(rb"(?:^|[\0\n])[A-Za-z_][\w.%()]*=")
_WELL_KNOWN_ENTRY = re.compile(
    rb"(?:^|\n)(?:PATH|HOME|PWD|USER|LOGNAME|SHELL|LANG|LC_[A-Z]+|TERM|HOSTNAME|LD_LIBRARY_PATH)="
)
_EMBEDDED = re.compile(rb"(?<![\w$])['\"]?(" + USUAL_NAMES + rb")(?:=|['\"]\s*:\s*['\"])")
_QUOTED = re.compile(rb"['\"]([A-Za-z_]\w*)['\"]\s*:\s*(?:'([^'\0]*)'|\"([^\"\0]*)\")")
_LONGEST = 1 << 16
"""Maximum number of bytes at the start of a string that are examined."""
_LONGEST_READ = 1 << 22


def is_environment(text: bytes) -> bool:
    """Return whether a string is a process environment: ``NAME=value`` entries separated by NUL bytes or newlines.

    If the string has a NUL byte, it must contain at least one entry. Otherwise most of its lines must be entries, and
    at least one entry must have a well-known name.
    """
    text = text[:_LONGEST]
    if b"\0" in text:
        return bool(_VARIABLE.search(text))
    return (
        bool(_WELL_KNOWN_ENTRY.search(text)) and len(_VARIABLE.findall(text)) * 2 > text.rstrip(b"\n").count(b"\n") + 1
    )


def find_environment_start(text: bytes) -> int | None:
    """Return the offset at which an environment starts in a string, or None if the string contains no environment.

    The entries of the environment may be written as ``NAME=value``, as JSON or as a Python dictionary. Part of a longer
    string counts as an environment only if it sets at least two variables with well-known names, because an ordinary
    string may mention one of these names.
    """
    if is_environment(text):
        return 0
    first: re.Match[bytes] | None = None
    for match in _EMBEDDED.finditer(text):
        first = first or match
        if match[1] != first[1]:
            return first.start()
    return None


def iterate_environment_variables(text: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the name and value of each variable in the first 4 MiB of an environment."""
    text = text[:_LONGEST_READ]
    if b"\0" not in text and (quoted := _QUOTED.findall(text)):
        yield from ((name, one or other) for name, one, other in quoted)
        return
    for part in re.split(_create_separator_pattern(text), text):
        name, equals, value = part.partition(b"=")
        if equals and name.strip():
            yield name.strip(b" \t'\"{(["), value.strip(b'"')


def _create_separator_pattern(environment: bytes) -> bytes:
    """Return a regular expression that matches the separator between the variables of an environment."""
    if b"\0" in environment:
        return rb"\0"
    if b"\n" in environment.strip(b"\n"):
        return rb"\n"
    return rb";(?=[A-Za-z_]\w*=)" if re.search(rb";[A-Za-z_]\w*=", environment) else rb"[\s,]+(?=['\"]?[A-Za-z_]\w*=)"
