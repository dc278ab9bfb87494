"""State of the redaction of one capture: the private names collected from it, and counts of redacted values by kind."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

from tracekit.errors import CorruptTraceError
from tracekit.readers.redaction.escapes import iterate_levels
from tracekit.readers.redaction.matcher import ALL_PATTERNS, PrivateValueMatcher
from tracekit.readers.redaction.patterns import (
    COMMAND,
    ENVIRONMENT,
    HOMES,
    HOST,
    IDENTIFIER,
    KINDS,
    PATH,
    USER,
    find_environment_start,
    iterate_environment_variables,
    overwrite_private_folders,
)
from tracekit.readers.redaction.pseudonyms import Pseudonyms
from tracekit.readers.redaction.vocabulary import COMMON, TECHNICAL, is_known_folder

if TYPE_CHECKING:
    from pathlib import Path

MAX_NAMES = 1 << 12
MAX_VALUES, MAX_VARIABLES = 1 << 16, 1 << 20
"""Limits for the values to collect and the environment variables to read.

They are sufficient for the environments of all processes of a host.
"""
MAX_NESTED = 128
"""Maximum length of a chain of names and values in which each is a prefix of the next one, such as nested folders."""

_SHORTEST, _LONGEST = 2, 255
_NAME = re.compile(rb"(?=.*[A-Za-z\x80-\xff]|.{5})[\w.\-+ \x80-\xff]+")
_HOST_VARIABLES = frozenset(
    (b"HOSTNAME", b"COMPUTERNAME", b"SLURMD_NODENAME", b"SLURM_SUBMIT_HOST", b"SLURM_LAUNCH_NODE", b"PBS_O_HOST")
)
_USER_VARIABLES = frozenset(
    (b"USER", b"LOGNAME", b"USERNAME", b"SUDO_USER", b"SLURM_JOB_USER", b"PBS_O_LOGNAME", b"LOGUSER")
)
_HOME_VARIABLES = frozenset((b"HOME", b"USERPROFILE"))
_SECRET_VARIABLE = re.compile(
    rb"key|token|secret|pass|(?<!^old)(?<!^)pwd$|credential|cookie|private|webhook|dsn$", re.IGNORECASE
)
_SOFTWARE_VARIABLE = re.compile(
    rb"(?:LS_COLORS|LESS\w*|TERM\w*|COLORTERM|XDG_CURRENT_DESKTOP|XDG_SESSION_\w+|DESKTOP_SESSION|GDMSESSION|GTK_\w+|QT_\w+"
    rb"|GNOME_\w+|GJS_\w+|XMODIFIERS|NVIDIA_\w+|NV_\w+|NCCL_\w+|DEBUGINFOD_URLS|TZ|LISTEN_FDNAMES|DEBIAN_FRONTEND|EDITOR"
    rb"|PAGER|CC|CXX|FC|F77|F90|PYTORCH_\w+|TORCH_\w+|OMP_\w+|KMP_\w+|MKL_\w+|TF_\w+|XLA_\w+|JAX_\w+|LANG\w*|LC_\w+"
    rb"|BASH_FUNC_.*|which_declare)"
)
"""Names of variables whose values are settings of software that do not identify people or machines."""
_SYSTEM_FOLDER = re.compile(
    rb"/(?:usr/(?:(?:local/)?(?:s?bin|lib\w*|share|include|games|man|src))|lib\w*|s?bin|etc|proc|sys|dev|snap|run)(?:/|\Z)"
)
_SECRET_ARGUMENT = re.compile(
    rb"--?[\w\-]{0,40}(?:passw\w{0,8}|token|secret|api[_\-]?key|access[_\-]?key|credential)[\w\-]{0,40}"
    rb"[= ][\"']?([^\s\"']{4,1024})",
    re.IGNORECASE,
)
_COMMON_VALUE = re.compile(
    rb"[\d.,:xX/\-+ ]*|(?:true|false|none|null|yes|on|off|auto|default|enabled?|disabled?|all)"
    rb"|[A-Za-z]{2}_[A-Z]{2}(?:\.[\w\-]+)?(?:@\w+)?|C(?:\.UTF-?8)?|POSIX|[A-Za-z]+\d{0,3}|x?term[\w\-]*|v?\d[\w.+\-]*",
    re.IGNORECASE,
)
_SHORTEST_SECRET, _SHORTEST_VALUE, _LONGEST_VALUE = 5, 8, 4096
_MANY_PARTS = 2

PRIVATE_PROPERTIES = {610: ENVIRONMENT, 619: HOST}
"""Numbers of the private properties of a machine in captures of nsys, and the kind of the value of each property."""
FOLDER_PROPERTIES, NETWORK_PROPERTY = (170, 173), 910
"""Numbers of the properties of a machine that are paths, and of the property that describes its network devices."""


class Redaction:
    """The state of the redaction of one capture.

    Attributes:
        counts: Number of redacted values by kind. If several values of one kind are overwritten within a longer string,
            they count as one value.
        path: Path of the capture.
        pseudonyms: Pseudonyms for identifiers that rows or files refer to.
    """

    def __init__(self, path: Path, key: bytes | None = None) -> None:
        """Create the state for the capture at a path.

        Args:
            path: Path of the capture.
            key: Key of the pseudonyms, or None for a random key.
        """
        self.path = path
        self.pseudonyms = Pseudonyms(key)
        self.counts: Counter[str] = Counter(dict.fromkeys(KINDS, 0))
        self._names: set[bytes] = set()
        self._values: set[bytes] = set()
        self._variables = 0

    def replace_value(self, kind: str, value: bytes) -> bytes:
        """Return the replacement of a private value. The value is counted, and the names in it are collected.

        The replacement of a host name is a pseudonym. All other values are replaced with empty bytes. A value that was
        already replaced is returned unchanged and is not counted.
        """
        replacement = self.pseudonyms.compute_host_pseudonym(value) if kind == HOST else b""
        if replacement == value:
            return value
        self.collect_names(kind, value)
        self.counts[kind] += 1
        return replacement

    def replace_device_name(self, name: bytes) -> bytes:
        """Return the replacement of a device name, which contains a host name unless it denotes the local machine."""
        return name if name.startswith(b"Local") or not name else self.replace_value(HOST, name)

    def shorten_program_name(self, name: bytes) -> bytes:
        """Return the name of a program without its folder. A name with a folder counts as a private value."""
        shortened = extract_program_name(name)
        if shortened != name:
            self.replace_value(COMMAND, name)
        return shortened

    def replace_uuid(self, value: bytes) -> bytes:
        """Return the pseudonym of a UUID of 16 bytes, and increase the number of redacted UUIDs by 1.

        A value with another length, or a value that is already a pseudonym, is returned unchanged and is not counted.
        """
        replacement = self.pseudonyms.compute_binary_uuid_pseudonym(value)
        self.counts[IDENTIFIER] += replacement != value
        return replacement

    def redact_folders(self, path: bytes) -> bytes:
        """Return a path in which the names of private folders are overwritten.

        If any name was overwritten, the number of redacted paths is increased by 1. The path is also collected as a
        private value, unless it is a common path or has only one component.
        """
        replacement = overwrite_private_folders(path, b"/\\")
        if replacement != path:
            self._collect_folder(path)
            self.counts[PATH] += 1
        return replacement

    def collect_names(self, kind: str, value: bytes) -> None:
        """Collect the private names and secrets in a value of a given kind.

        Only host and user names, environments, command lines and paths are searched. Values of other kinds are ignored.
        """
        if kind == HOST:
            self._collect_host(value)
        elif kind == USER:
            self._collect_user(value)
        elif kind == ENVIRONMENT:
            self._collect_names_from_environment(value)
        elif kind == COMMAND:
            self._collect_names_from_command(value)
        elif kind == PATH:
            self._collect_users_of_home_folders(value)

    def collect_names_from_string(self, text: bytes) -> None:
        """Collect the private names and secrets in an environment or in paths of home folders in a string.

        The string may also contain them with escaped characters, for example as JSON that is a string of JSON.
        """
        for level in iterate_levels(text):
            self.collect_names(PATH, level)
            start = find_environment_start(level)
            if start is not None:
                self.collect_names(ENVIRONMENT, level[start:])

    def build_matcher(self) -> PrivateValueMatcher:
        """Return a matcher for the names and values collected so far.

        Raises:
            CorruptTraceError: More than ``MAX_NESTED`` names form a chain in which each begins with the previous one.
        """
        matcher = PrivateValueMatcher(self._names, self._values, self.pseudonyms)
        if matcher.depth > MAX_NESTED:
            raise CorruptTraceError(
                f"the capture has a chain of more than {MAX_NESTED} private names that each begin with the previous "
                "one, which tracekit does not support",
                path=self.path,
            )
        return matcher

    def overwrite_private_values(
        self, matcher: PrivateValueMatcher, text: bytes, pattern_mask: int = ALL_PATTERNS, min_length: int = 0
    ) -> bytes:
        """Overwrite the private values in a string or in binary data, and return the result.

        For each kind of private value in the string, the count of the kind is increased by 1.

        Args:
            matcher: Matcher for the private values.
            text: The string or the binary data.
            pattern_mask: Bit mask of the patterns to search for, as for ``PrivateValueMatcher.redact``.
            min_length: Minimum length of the collected names and values to overwrite in a string.
        """
        redacted, kinds = matcher.redact(text, pattern_mask, min_length)
        self.counts.update(kinds)
        return redacted

    def _collect_names_from_environment(self, text: bytes) -> None:
        for name, value in iterate_environment_variables(text):
            self._variables += 1
            if self._variables > MAX_VARIABLES:
                raise CorruptTraceError(
                    f"the environments in the capture have more than {MAX_VARIABLES} variables, "
                    "which tracekit does not support",
                    path=self.path,
                )
            if name in _HOST_VARIABLES:
                self._collect_host(value)
            elif name in _USER_VARIABLES:
                self._collect_user(value)
            elif name in _HOME_VARIABLES:
                if len(parts := re.split(rb"[/\\]+", value.strip(b"/\\"))) > 1:
                    self._collect_name(parts[-1])
            elif _SECRET_VARIABLE.search(name):
                self._collect_secret(value)
            elif not _SOFTWARE_VARIABLE.fullmatch(name):
                self._collect_names_from_variable(value)

    def _collect_names_from_variable(self, value: bytes) -> None:
        """Collect private names and values from the value of an environment variable.

        The value may be a list, as in ``PATH``. An element that is an absolute path is collected if it has private
        folders. Any other element is collected unless it is short or common.
        """
        self._collect_users_of_home_folders(value)
        for part in re.split(rb"[:;,]", value) if b"/" in value and b"://" not in value else [value]:
            if part.startswith(b"/"):
                self._collect_folder(part)
            elif (
                len(part) >= _SHORTEST_VALUE
                and not _COMMON_VALUE.fullmatch(part)
                and not _has_only_technical_words(part)
            ):
                self._collect_private_value(part)

    def _collect_names_from_command(self, value: bytes) -> None:
        self._collect_users_of_home_folders(value)
        for secret in _SECRET_ARGUMENT.findall(value):
            self._collect_secret(secret)
        if value.startswith(b"/"):
            program = value.split(b" ", 1)[0]
            self._collect_folder(program.rpartition(b"/")[0])

    def _collect_folder(self, path: bytes) -> None:
        """Collect the absolute path of a folder, unless it is a common path or has only one component."""
        parts = [p for p in path.strip(b"/").split(b"/") if p]
        is_common = _SYSTEM_FOLDER.match(path) or all(is_known_folder(p) for p in parts)
        if len(parts) >= _MANY_PARTS and not is_common:
            self._collect_private_value(path.rstrip(b"/"))

    def _collect_users_of_home_folders(self, value: bytes) -> None:
        for match in HOMES.expression.finditer(value):
            self._collect_name(match[2] or match[4])

    def _collect_host(self, value: bytes) -> None:
        self._collect_name(value)
        first, _, domain = value.partition(b".")
        self._collect_name(first)
        if b"." in domain and not re.fullmatch(rb"[\d.]+", value):
            self._collect_name(domain)

    def _collect_user(self, value: bytes) -> None:
        for part in re.split(rb"[\\@]", value):
            self._collect_name(part)

    def _collect_name(self, name: bytes) -> None:
        name = name.strip()
        common = name.lower() in COMMON or name.lower() in TECHNICAL
        if _SHORTEST <= len(name) <= _LONGEST and not common and _NAME.fullmatch(name) and name.strip(b"xX"):
            self._names.add(name.lower())
        if len(self._names) > MAX_NAMES:
            raise CorruptTraceError(
                f"the capture has more than {MAX_NAMES} names of hosts and users, which tracekit does not support",
                path=self.path,
            )

    def _collect_secret(self, value: bytes) -> None:
        """Collect a value that may be a secret, unless it is short or consists only of common or technical words."""
        value = value.strip()
        number = value.isdigit() and len(value) < _SHORTEST_VALUE
        if len(value) >= _SHORTEST_SECRET and not number and not _has_only_technical_words(value):
            self._collect_private_value(value)

    def _collect_private_value(self, value: bytes) -> None:
        value = value.strip()[:_LONGEST_VALUE]
        if value.strip(b"xX"):
            self._values.add(value)
        if len(self._values) > MAX_VALUES:
            raise CorruptTraceError(
                f"the capture has more than {MAX_VALUES} private values, which tracekit does not support",
                path=self.path,
            )


def _has_only_technical_words(value: bytes) -> bool:
    """Return whether a string contains words, and all of them are common or technical words."""
    words = [w.lower() for w in re.findall(rb"[A-Za-z]+", value)]
    return bool(words) and all(w in TECHNICAL or w in COMMON or is_known_folder(w) for w in words)


def extract_program_name(path: bytes) -> bytes:
    """Return the file name in the path of a program. A name that does not begin like a path is returned unchanged."""
    return re.sub(rb"(?s)^(?:[/.~]|[A-Za-z]:[\\/]|\\\\).*[/\\]", b"", path)
