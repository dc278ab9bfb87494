"""Patterns of private values that have a recognizable format: addresses, ids, secrets and paths.

Matches are overwritten in place, so that no string changes its length. Searching every string for every pattern would
be slow. Therefore each pattern has search strings or prefilters, which are found quickly in megabytes of data. A
prefilter is a regular expression that begins with a fixed byte. Every match of a pattern contains one of its search
strings, or a match of one of its prefilters. Every repetition in a regular expression is bounded, so that the
time that a search takes is proportional to the number of bytes.
"""

from __future__ import annotations

import functools
import re
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from tracekit.readers.common.redaction import environments
from tracekit.readers.common.redaction.kinds import (
    ADDRESS,
    BUS,
    EMAIL,
    ENVIRONMENT,
    IDENTIFIER,
    MENTION,
    NETWORK,
    PATH,
    SECRET,
)
from tracekit.readers.common.redaction.vocabulary import COMMON, is_known_folder

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracekit.readers.common.redaction.pseudonyms import Pseudonyms

FILL = b"x"
Overwrite: TypeAlias = "Callable[[re.Match[bytes], Pseudonyms], bytes]"


@dataclass(frozen=True)
class Pattern:
    """A format of private values.

    Attributes:
        kind: Kind of private value, by which matches are counted.
        expression: Regular expression that matches the values.
        overwrite: Function that returns the replacement of a match, which has the same length.
        search_strings: Lower-case strings. Every match of the pattern contains one of them, or a match of a prefilter.
        prefilters: First byte and remaining regular expression of each prefilter.
        confirm: Function that returns whether a search string at an offset of the data may be part of a match. None
            accepts every search string.
    """

    kind: str
    expression: re.Pattern[bytes]
    overwrite: Overwrite
    search_strings: tuple[bytes, ...] = ()
    prefilters: tuple[tuple[bytes, bytes], ...] = ()
    confirm: Callable[[bytes, int], object] | None = None

    @functools.cached_property
    def prefilter_pattern(self) -> re.Pattern[bytes]:
        """A regular expression that has a match in every lower-case string that may contain a match of the pattern."""
        return re.compile(b"|".join(map(re.escape, (*self.search_strings, *(start for start, _ in self.prefilters)))))

    def overwrite_matches(self, text: bytes, lower_text: bytes, pseudonyms: Pseudonyms) -> bytes:
        """Return a string in which every match is overwritten.

        Args:
            text: The string.
            lower_text: The string in lower case, in which the absence of a match is detected quickly.
            pseudonyms: Pseudonyms for UUIDs and PCI addresses.
        """
        if self.prefilter_pattern.search(lower_text) is None:
            return text
        return self.expression.sub(lambda match: self.overwrite(match, pseudonyms), text)


def overwrite_with_x(text: bytes) -> bytes:
    """Return a string of the letter ``x`` that is as long as ``text``."""
    return FILL * len(text)


def _overwrite_match(match: re.Match[bytes], _pseudonyms: Pseudonyms) -> bytes:
    return overwrite_with_x(match[0])


def _overwrite_words(match: re.Match[bytes], _pseudonyms: Pseudonyms) -> bytes:
    """Replace each letter and digit of a match with ``x``, but leave the separators between them unchanged."""
    return re.sub(rb"[\w\x80-\xff]", FILL, match[0])


def _overwrite_last_group(match: re.Match[bytes], _pseudonyms: Pseudonyms) -> bytes:
    """Replace each byte of the last capture group of a match with ``x``, and leave all other bytes unchanged."""
    group = match.lastindex or 0
    start, end = (place - match.start() for place in match.span(group))
    return match[0][:start] + overwrite_with_x(match[group]) + match[0][end:]


_HEX = re.compile(rb"[0-9A-Fa-f]")
_PAIR, _FOUR = rb"[0-9A-Fa-f]{2}", rb"[0-9A-Fa-f]{4}"

# Secrets

_TOKEN = (
    rb"(?:(?:AKIA|ASIA)[0-9A-Z]{16}(?![0-9A-Za-z])"
    rb"|gh[pousr]_[0-9A-Za-z]{20,255}|github_pat_\w{20,255}|glpat-[\w\-]{16,255}|hf_[0-9A-Za-z]{20,255}"
    rb"|xox[abeoprs]-[\w\-]{10,255}|sk-[\w\-]{20,255}|AIza[\w\-]{30,255}|ya29\.[\w\-]{20,255}|npm_[0-9A-Za-z]{30,255}"
    rb"|pypi-[\w\-]{30,255}|dckr_pat_[\w\-]{20,255}|nvapi-[\w\-]{20,255}"
    rb"|eyJ[\w\-]{8,512}\.[\w\-]{4,8192}(?:\.[\w\-]{0,4096})?"
    rb"|-----BEGIN [A-Z ]{1,64}-----(?:[\w+/=\s\\:,.]|-(?!-)){0,16384}(?:-----END [A-Z ]{1,64}-----)?"
    rb"|(?:ssh-(?:rsa|dss|ed25519)|ecdsa-sha2-\w{1,32}) AAAA[\w+/=]{8,4096}(?: [^\s\"',;]{1,255})?)"
)
_TOKEN_START = re.compile(
    rb"(?:AKIA|ASIA)[0-9A-Z]{16}|gh[pousr]_[0-9A-Za-z]{20}|github_pat_\w{20}|glpat-[\w\-]{16}|hf_[0-9A-Za-z]{20}"
    rb"|xox[abeoprs]-[\w\-]{10}|sk-[\w\-]{20}|AIza[\w\-]{30}|ya29\.[\w\-]{20}|npm_[0-9A-Za-z]{30}|pypi-[\w\-]{30}"
    rb"|dckr_pat_[\w\-]{20}|nvapi-[\w\-]{20}|eyJ[\w\-]{8}|-----BEGIN [A-Z]|ssh-\w{1,16} AAAA|ecdsa-sha2-\w{1,32} AAAA"
)
_TOKENS = Pattern(
    SECRET,
    re.compile(rb"(?<![0-9A-Za-z])" + _TOKEN),
    _overwrite_match,
    search_strings=(
        *(b"akia", b"asia", b"ghp_", b"gho_", b"ghu_", b"ghs_", b"ghr_", b"github_pat_", b"glpat-", b"aiza", b"ya29."),
        *(b"xoxa-", b"xoxb-", b"xoxe-", b"xoxo-", b"xoxp-", b"xoxr-", b"xoxs-", b"npm_", b"pypi-", b"dckr_pat_"),
        *(b"nvapi-", b"-----begin ", b"ssh-rsa aaaa", b"ssh-dss aaaa", b"ssh-ed25519 aaaa", b"ecdsa-sha2-"),
        *(b"sk-", b"hf_", b"eyj"),
    ),
    confirm=_TOKEN_START.match,
)
_ASSIGNED = re.compile(
    rb"(?:passw(?:or)?d|passphrase|secret|api[_\-]?key|access[_\-]?key|private[_\-]?key|credentials?)"
    rb"[\w\-]{0,40}[\"']?[ \t]{0,2}[=:][ \t]{0,2}[\"']?([^\s\"'&,;:<>(){}\[\]]{4,1024})"
    rb"|token[\"']?[ \t]{0,2}[=:][ \t]{0,2}[\"']?"
    rb"((?=[\w./+\-]{0,255}[A-Za-z])(?=[\w./+\-]{0,255}\d)[\w./+=\-]{16,1024})"
    rb"|(?:bearer|basic)[ \t]{1,2}((?=[\w./+\-]{0,255}\d)[\w./+=~\-]{16,4096})",
    re.IGNORECASE,
)
_ASSIGNMENTS = Pattern(
    SECRET,
    _ASSIGNED,
    _overwrite_last_group,
    search_strings=(
        *(b"passw", b"passphrase", b"secret", b"api_key", b"api-key", b"apikey", b"access_key", b"access-key"),
        *(b"accesskey", b"private_key", b"private-key", b"privatekey", b"credential", b"token", b"bearer ", b"basic "),
    ),
    confirm=_ASSIGNED.match,
)
_CREDENTIALS = Pattern(
    SECRET,
    re.compile(rb"://[^\s/@:\"'<>]{1,256}(?::[^\s/@\"'<>]{0,1024})?@"),
    lambda match, _: b"://" + overwrite_with_x(match[0][3:-1]) + b"@",
    prefilters=((b":", rb"//[^\s/@\"'<>]{1,1281}@"),),
)

# Addresses of people, networks and devices

_EMAILS = Pattern(
    EMAIL,
    re.compile(
        rb"(?<![\w.+%\-])[\w.+%\-]{1,64}@(?:[\w\-]{1,63}\.){1,8}"
        rb"(?!(?:service|socket|target|timer|mount|slice|scope|path|device|swap|so|py|cpp|cu|cuh|hpp|cxx|plt|got)(?!\w))"
        rb"[A-Za-z]{2,24}(?![\w\-])"
    ),
    _overwrite_words,
    prefilters=((b"@", rb"[\w\-]{1,63}\."),),
)
_OCTET = rb"(?:25[0-5]|2[0-4]\d|1?\d?\d)"
_PRIVATE = re.compile(
    rb"10\.|192\.168\.|172\.(?:1[6-9]|2\d|3[01])\.|169\.254\.|100\.(?:6[4-9]|[7-9]\d|1[01]\d|12[0-7])\."
)
_LOCAL = re.compile(rb"127\.|0\.0\.0\.0|255\.")
_ADDRESS_BEFORE = re.compile(
    rb"(?://|@|(?:host|addr|address|ip|peer|server|from|listen|connect|rank)[\"']?\W{1,3})\Z", re.IGNORECASE
)
_VERSION_BEFORE = re.compile(rb"(?:ver|version|release|driver|cudnn|cublas|lib\w*)[\"']?\W{0,3}\Z", re.IGNORECASE)
_PORT_AFTER = re.compile(rb":\d{1,5}(?!\d)|/\d{1,2}(?!\d)|%\w")
_LARGE_OCTET, _LARGE_OCTETS = 100, 2


def _overwrite_ipv4(match: re.Match[bytes], _pseudonyms: Pseudonyms) -> bytes:
    """Overwrite an IPv4 address, unless it is special, such as 127.0.0.1, or may be a version number, such as 1.2.3.4.

    Addresses and version numbers are distinguished by the size of the numbers and by the bytes around them.
    """
    text, before = match[0], match.string[max(0, match.start() - 16) : match.start()]
    if _LOCAL.match(text) or _VERSION_BEFORE.search(before):
        return text
    large = sum(int(octet) >= _LARGE_OCTET for octet in text.split(b"."))
    is_address = _PRIVATE.match(text) or _PORT_AFTER.match(match.string, match.end()) or _ADDRESS_BEFORE.search(before)
    return re.sub(rb"\d", FILL, text) if is_address or large >= _LARGE_OCTETS else text


_IPV4 = Pattern(
    NETWORK,
    re.compile(rb"(?<![\w.\-])(?:" + _OCTET + rb"\.){3}" + _OCTET + rb"(?![\w\-]|\.\d)"),
    _overwrite_ipv4,
    prefilters=((b".", rb"\d{1,3}\.\d{1,3}\.\d"),),
)
_IPV6_GROUPS = 8


def _overwrite_ipv6(match: re.Match[bytes], _pseudonyms: Pseudonyms) -> bytes:
    """Overwrite the digits of an IPv6 address. A match with too few groups, such as ``2024:10:05``, is unchanged."""
    is_complete = b"::" in match[0] or match[0].count(b":") == _IPV6_GROUPS - 1
    return _HEX.sub(FILL, match[0]) if is_complete else match[0]


_IPV6 = Pattern(
    NETWORK,
    re.compile(rb"(?<![\w:])(?:fe80|f[cd][0-9a-f]{2}|2[0-9a-f]{3}):(?::?[0-9a-f]{1,4}){1,7}(?![\w:])", re.IGNORECASE),
    _overwrite_ipv6,
    search_strings=(b"fe80:",),
    prefilters=((b":", rb"[0-9A-Fa-f]{0,4}:[0-9A-Fa-f]{1,4}:"),),
)


def _overwrite_hardware_address(match: re.Match[bytes], _pseudonyms: Pseudonyms) -> bytes:
    """Overwrite the digits of a hardware address.

    Addresses that consist only of ``0`` or only of ``f``, and decimal numbers with hyphens, are returned unchanged.
    """
    digits = re.sub(rb"[:\-]", b"", match[0]).lower()
    is_placeholder = not digits.strip(b"0") or not digits.strip(b"f") or (b"-" in match[0] and digits.isdigit())
    return match[0] if is_placeholder else _HEX.sub(FILL, match[0])


_HARDWARE = Pattern(
    ADDRESS,
    re.compile(
        rb"(?<![\w:\-])(?:[0-9a-f]{2}([:\-])(?:[0-9a-f]{2}\1){4,18}[0-9a-f]{2}|[0-9a-f]{4}(?::[0-9a-f]{4}){3})(?![\w:\-])",
        re.IGNORECASE,
    ),
    _overwrite_hardware_address,
    prefilters=((b":", (_PAIR + rb":") * 3), (b"-", (_PAIR + rb"-") * 4), (b":", (_FOUR + rb":") * 2)),
)
_PCI = Pattern(
    BUS,
    re.compile(rb"(?<![0-9a-f:])(?:[0-9a-f]{4}){1,2}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7](?![0-9a-f])", re.IGNORECASE),
    lambda match, pseudonyms: pseudonyms.compute_pci_address_pseudonym(match[0]),
    prefilters=((b":", _PAIR + rb":" + _PAIR + rb"\.[0-7]"),),
)
_UUIDS = Pattern(
    IDENTIFIER,
    re.compile(rb"(?<![0-9a-f])[0-9a-f]{8}([-_])(?:[0-9a-f]{4}\1){3}[0-9a-f]{12}(?![0-9a-f])", re.IGNORECASE),
    lambda match, pseudonyms: pseudonyms.compute_uuid_pseudonym(match[0]),
    prefilters=((b"-", (_FOUR + rb"-") * 3), (b"_", (_FOUR + rb"_") * 3)),
)
_CONTAINERS = Pattern(
    IDENTIFIER,
    re.compile(
        rb"(?:docker|containerd|cri-?o|libpod|containers?|kubepods|buildkit|podman|lxc)"
        rb"[^\s\0]{0,256}?([0-9a-f]{64})(?![0-9a-f])"
    ),
    _overwrite_last_group,
    search_strings=(b"docker", b"container", b"crio", b"cri-o", b"libpod", b"kubepods", b"buildkit", b"podman", b"lxc"),
)

# Folders and paths

_IN_HOME = rb"[/\\]{1,2}(?:home|[Uu]sers)[/\\]{1,2}"
_COMPONENT = rb"[^/\\\0-\x20:;,\"'<>|()\[\]{}=&?*$!`\x7f]+"
_HOMES = Pattern(
    MENTION,
    re.compile(
        rb"(" + _IN_HOME + rb")([^/\\\0-\x1f:;,\"'<>|*?\x7f]{1,255}(?=\\)|" + _COMPONENT + rb")"
        rb"|(?<![\w:)\]>])(~)([A-Za-z_][\w.\-]{0,63})(?=/)"
    ),
    lambda match, _: (
        match[1] + _overwrite_account_name(match[2]) if match[2] else match[3] + _overwrite_account_name(match[4])
    ),
    search_strings=tuple(a + name + b for name in (b"home", b"users") for a in (b"/", b"\\") for b in (b"/", b"\\")),
    prefilters=((b"~", rb"[A-Za-z_][\w.\-]{0,63}/"),),
)


def _overwrite_account_name(name: bytes) -> bytes:
    """Overwrite the name of a user account, unless it is common, such as ``root``."""
    return name if name.lower() in COMMON else overwrite_with_x(name)


_ROOTS = (
    b"home users root data data1 data2 mnt media srv opt usr var tmp scratch work workspace workspaces project "
    b"projects proj nfs gpfs lustre beegfs ceph fsx efs nvme ssd raid export storage shared share software cluster "
    b"cvmfs afs pscratch gscratch volume volumes private applications library content kaggle sw lib lib64 bin"
).split()
_FROM_ROOT = rb"/(?:" + b"|".join(_ROOTS) + rb")(?:/{1,2}" + _COMPONENT + rb"){1,64}"
_PATH = re.compile(_FROM_ROOT, re.IGNORECASE)
_FILE_NAME = re.compile(rb"[^/\\]{1,255}\.(?:[A-Za-z]\w{0,15}|so[\d.]{1,32})(?:\.\d{1,8}){0,6}")
_PROGRAM_FOLDERS = frozenset((b"bin", b"sbin", b"libexec", b"scripts"))
_BEFORE_LAST = 2


@functools.lru_cache(maxsize=1 << 12)
def overwrite_private_folders(path: bytes, separators: bytes = b"/") -> bytes:
    """Return a path in which each byte of the uncommon folder names is replaced with ``x``.

    The separators, and the file name if the path has one, are unchanged.
    """
    parts = re.split(rb"([" + re.escape(separators) + rb"]+)", path)
    last = len(parts) - 1
    before = parts[last - 2].lower() if last >= _BEFORE_LAST else b""
    for at in range(0, len(parts), 2):
        is_file = at == last and (_FILE_NAME.fullmatch(parts[at]) or before in _PROGRAM_FOLDERS)
        if len(parts[at]) > 1 and not is_file and not is_known_folder(parts[at]):
            parts[at] = overwrite_with_x(parts[at])
    return b"".join(parts)


def _has_private_folders(data: bytes, start: int) -> bool:
    """Return whether a path that contains private folder names begins at an offset."""
    path = _PATH.match(data, start)
    return path is not None and overwrite_private_folders(path[0]) != path[0]


_PATHS = Pattern(
    PATH,
    re.compile(rb"(?<![\w.~\-])" + _FROM_ROOT, re.IGNORECASE),
    lambda match, _: overwrite_private_folders(match[0]),
    search_strings=tuple(b"/" + root + b"/" for root in _ROOTS),
    confirm=_has_private_folders,
)
_LIBRARIES = Pattern(
    PATH,
    re.compile(rb"\A/[^\0-\x20]{1,4096}\.(?:so|pyd|dylib|cubin)(?:\.\d{1,8}){0,6}(?: \(deleted\))?\Z"),
    lambda match, _: overwrite_private_folders(match[0]),
    search_strings=(b".so", b".pyd", b".dylib", b".cubin"),
)
_IN_WINDOWS = rb"[^\\/:*?\"<>|\0-\x1f]{1,255}"
_WINDOWS_PATHS = Pattern(
    PATH,
    re.compile(
        rb"(?:(?<![0-9A-Za-z])[A-Za-z]:|(?<![\\\w:])\\{1,2}(?=\\[\w.\-]{1,255}\\))"
        rb"(?:\\{1,2}" + _IN_WINDOWS + rb"(?=\\)){0,64}\\{1,2}[^\\/:*?\"<>|\0-\x20]{1,255}"
    ),
    lambda match, _: match[0][:2] + overwrite_private_folders(match[0][2:], b"\\"),
    prefilters=((b":", rb"\\{1,2}[\w.(]"), (b"\\", rb"\\[\w.\-]{1,255}\\")),
)


# Environments


def _overwrite_environment(match: re.Match[bytes], _pseudonyms: Pseudonyms) -> bytes:
    """Overwrite all bytes of a match from the start of the process environment in it to the end of the match."""
    start = environments.find_environment_start(match[0])
    return match[0] if start is None else match[0][:start] + overwrite_with_x(match[0][start:])


_ENVIRONMENTS = Pattern(
    ENVIRONMENT, re.compile(rb"(?s)\A.+\Z"), _overwrite_environment, search_strings=environments.SEARCH_STRINGS
)

PATTERNS = (
    *(_ENVIRONMENTS, _TOKENS, _ASSIGNMENTS, _CREDENTIALS, _EMAILS, _UUIDS, _CONTAINERS, _HARDWARE, _PCI, _IPV6, _IPV4),
    *(_HOMES, _WINDOWS_PATHS, _PATHS, _LIBRARIES),
)
"""All patterns, in the order in which they are applied."""

HOME_FOLDER, HOME_SEARCH_STRINGS = _HOMES.expression, _HOMES.search_strings


def _join_prefilters() -> tuple[tuple[re.Pattern[bytes], int], ...]:
    """Join all prefilters that begin with the same byte into one regular expression.

    A search for a joined expression is fast, because the regular expression engine first looks for the fixed byte.

    Returns:
        The joined expression of each first byte, with a bit mask of the patterns whose prefilters it contains.
    """
    rests: defaultdict[bytes, list[bytes]] = defaultdict(list)
    pattern_bits: defaultdict[bytes, int] = defaultdict(int)
    for nth, pattern in enumerate(PATTERNS):
        for start, rest in pattern.prefilters:
            rests[start].append(rest)
            pattern_bits[start] |= 1 << nth
    return tuple(
        (re.compile(re.escape(start) + rb"(?:" + b"|".join(rest) + rb")"), pattern_bits[start])
        for start, rest in rests.items()
    )


PREFILTERS = _join_prefilters()
"""The joined prefilters, each with a bit mask of the patterns that have one of its prefilters."""
