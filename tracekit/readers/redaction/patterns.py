"""Patterns of private values that have a recognizable format: addresses, ids, secrets, paths and process environments.

Matches are overwritten in place, so that no string changes its length. Searching every string for every pattern would
be slow. Therefore each pattern has search strings or prefilters, which are found quickly in megabytes of data. A
prefilter is a regular expression that begins with a fixed byte. Every match of a pattern contains one of its search
strings, or a match of one of its prefilters. Every repetition in a regular expression is bounded, so that the
time that a search takes is proportional to the number of bytes.
"""

from __future__ import annotations

import functools
import ipaddress
import re
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from tracekit.readers.redaction.vocabulary import COMMON, is_known_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tracekit.readers.redaction.pseudonyms import Pseudonyms


# Kinds of private values, by which redacted values are counted and reported

ENVIRONMENT = "environment"
COMMAND = "command line"
HOST = "host name"
USER = "user name"
OUTPUT = "program output"
ADDRESS = "hardware address"
IDENTIFIER = "unique id"
BUS = "PCI address"
NETWORK = "network address"
EMAIL = "e-mail address"
SECRET = "secret"  # noqa: S105 - the name of a kind
PATH = "path"
MENTION = "name in another text"
KINDS = (*(ENVIRONMENT, COMMAND, HOST, USER, OUTPUT, ADDRESS, IDENTIFIER, BUS, NETWORK, EMAIL, SECRET, PATH, MENTION),)


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


def overwrite_match(match: re.Match[bytes], _pseudonyms: Pseudonyms) -> bytes:
    """Replace each byte of a match with ``x``."""
    return overwrite_with_x(match[0])


def overwrite_words(match: re.Match[bytes], _pseudonyms: Pseudonyms) -> bytes:
    """Replace each letter and digit of a match with ``x``, but leave the separators between them unchanged."""
    return re.sub(rb"[\w\x80-\xff]", FILL, match[0])


def overwrite_last_group(match: re.Match[bytes], _pseudonyms: Pseudonyms) -> bytes:
    """Replace each byte of the last capture group of a match with ``x``, and leave all other bytes unchanged."""
    group = match.lastindex or 0
    start, end = (place - match.start() for place in match.span(group))
    return match[0][:start] + overwrite_with_x(match[group]) + match[0][end:]


# Addresses of people, networks and devices, and unique ids

_HEX = re.compile(rb"[0-9A-Fa-f]")
_PAIR, _FOUR = rb"[0-9A-Fa-f]{2}", rb"[0-9A-Fa-f]{4}"

_LABEL = rb"[\w\-\x80-\xff]{1,63}"
_NOT_A_DOMAIN = (
    rb"(?!(?:service|socket|target|timer|mount|slice|scope|path|device|swap|so|py|cpp|cu|cuh|hpp|cxx|plt|got)(?!\w))"
)
EMAILS = Pattern(
    EMAIL,
    re.compile(
        rb"(?<![\w.+%\-\x80-\xff])(?:\"[^\"\0\r\n]{1,64}\"|[\w.+%\-!#$'*^{}~`\x80-\xff]{1,64})@"
        rb"(?:(?:" + _LABEL + rb"\.){1,8}" + _NOT_A_DOMAIN +
        rb"(?:[A-Za-z]{2,24}|xn--[0-9A-Za-z\-]{2,59}|[\w\-]{0,24}[\x80-\xff][\w\-\x80-\xff]{0,60})(?![\w\-])"
        rb"|\[[0-9A-Fa-fIPv6.:]{3,64}\])"
    ),
    overwrite_words,
    prefilters=((b"@", _LABEL + rb"\.|\[[0-9A-Fa-fI]"),),
)  # fmt: skip

# Network addresses

_OCTET = rb"(?:25[0-5]|2[0-4]\d|1?\d?\d)"
_DOTTED = rb"(?:" + _OCTET + rb"\.){3}" + _OCTET
_PRIVATE = re.compile(
    rb"10\.|192\.168\.|172\.(?:1[6-9]|2\d|3[01])\.|169\.254\.|100\.(?:6[4-9]|[7-9]\d|1[01]\d|12[0-7])\."
)
_LOCAL = re.compile(rb"127\.|0\.0\.0\.0|255\.")
_ADDRESS_BEFORE = re.compile(
    rb"(?://|@|(?:host|addr|address|ip|ipv4|ipv6|inet6?|peer|server|from|listen|connect|rank)[\"']?\W{1,3})\Z",
    re.IGNORECASE,
)
_VERSION_BEFORE = re.compile(rb"(?:ver|version|release|driver|cudnn|cublas|lib\w*)[\"']?\W{0,3}\Z", re.IGNORECASE)
_PORT_AFTER = re.compile(rb":\d{1,5}(?!\d)|/\d{1,2}(?!\d)|%\w")
_LARGE_OCTET, _LARGE_OCTETS = 100, 2


def _get_bytes_before(match: re.Match[bytes]) -> bytes:
    return match.string[max(0, match.start() - 16) : match.start()]


def _overwrite_ipv4(match: re.Match[bytes], _pseudonyms: Pseudonyms) -> bytes:
    """Overwrite an IPv4 address, unless it is special, such as 127.0.0.1, or may be a version number, such as 1.2.3.4.

    Addresses and version numbers are distinguished by the size of the numbers and by the bytes around them.
    """
    text, before = match[0], _get_bytes_before(match)
    if _LOCAL.match(text) or _VERSION_BEFORE.search(before):
        return text
    large = sum(int(octet) >= _LARGE_OCTET for octet in text.split(b"."))
    is_address = _PRIVATE.match(text) or _PORT_AFTER.match(match.string, match.end()) or _ADDRESS_BEFORE.search(before)
    return re.sub(rb"\d", FILL, text) if is_address or large >= _LARGE_OCTETS else text


IPV4 = Pattern(
    NETWORK,
    re.compile(rb"(?<![0-9A-Za-z.\-])" + _DOTTED + rb"(?![0-9A-Za-z\-]|\.\d)"),
    _overwrite_ipv4,
    prefilters=((b".", rb"\d{1,3}\.\d{1,3}\.\d"),),
)

_ASSIGNED_PREFIX = re.compile(
    rb"(?:[23][0-9a-f]{3}|f[cd][0-9a-f]{2}|fe[89a-f][0-9a-f]|ff[0-3][0-9a-f]|64:ff9b):", re.IGNORECASE
)
"""Beginning of an address in one of the ranges of IPv6 that are in use."""
_NETWORK_AFTER = re.compile(rb"/\d{1,3}(?!\d)|%\w|\]:\d")
_HOST_BEFORE = re.compile(rb"[/@]\[\Z")
_MANY_GROUPS, _ALL_GROUPS = 3, 8


def _overwrite_ipv6(match: re.Match[bytes], _pseudonyms: Pseudonyms) -> bytes:
    """Overwrite the digits of an IPv6 address, unless it is local or unspecified, such as ``::1`` and ``::``.

    A match that may be something else is returned unchanged: names in C++ such as ``ab::cd``, in which no part begins
    with a digit, and short sequences of numbers such as ``2024:10:05`` and ``add::1``.
    """
    text, before = match[0], _get_bytes_before(match)
    try:
        address = ipaddress.IPv6Address(text.decode())
    except ValueError:
        return text
    mapped = address.ipv4_mapped
    if address.is_loopback or address.is_unspecified or (mapped is not None and _LOCAL.match(str(mapped).encode())):
        return text
    groups = [group for group in text.split(b":") if group]
    has_prefix = _ASSIGNED_PREFIX.match(text) and (len(groups) > 1 or re.search(rb"\d", text))
    is_address = (
        b"." in text
        or len(groups) == _ALL_GROUPS
        or has_prefix
        or (len(groups) >= _MANY_GROUPS and any(group[:1].isdigit() for group in groups))
        or _NETWORK_AFTER.match(match.string, match.end())
        or _HOST_BEFORE.search(before)
        or (re.search(rb"\d", text) and _ADDRESS_BEFORE.search(before))
    )
    return _HEX.sub(FILL, text) if is_address else text


_GROUP = rb"[0-9A-Fa-f]{1,4}"
_LAST_GROUPS = rb":?(?:" + _DOTTED + rb"|" + _GROUP + rb")|:"
IPV6 = Pattern(
    NETWORK,
    re.compile(
        rb"(?<![0-9A-Za-z:])(?:" + _GROUP + rb":|::)(?::?" + _GROUP + rb":){0,6}(?:" + _LAST_GROUPS + rb")?"
        rb"(?![0-9A-Za-z:]|\.\d)"
    ),
    _overwrite_ipv6,
    prefilters=(
        (b":", _GROUP + rb":[0-9A-Fa-f:]"),
        (b":", rb":(?<=[0-9A-Fa-f\s\[\"'=(,/@]::)" + _GROUP + rb"(?![0-9A-Za-z])"),
        (b":", rb":(?=[/%\]])"),
        (b":", rb":(?<=[23fF][0-9A-Fa-f]{3}::)"),
        (b":", rb":" + _DOTTED),
    ),
)  # fmt: skip
IPV4_NAMES = Pattern(
    NETWORK,
    re.compile(rb"(?<![\w\-])ip-(?:" + _OCTET + rb"-){3}" + _OCTET + rb"(?![\w\-])"),
    lambda match, _: re.sub(rb"\d", FILL, match[0]),
    search_strings=(b"ip-",),
)
"""Names that clouds form from addresses, such as ``ip-10-0-3-4.ec2.internal``."""
_REVERSED_IPV6 = (
    rb"(?<![0-9A-Za-z])(?:[0-9a-f]\.){4,32}ip6\.arpa"
    rb"|(?<![0-9A-Za-z\-])[0-9a-f\-]{2,45}(?:s\w{1,16})?\.ipv6-literal\.net"
)
IPV6_NAMES = Pattern(
    NETWORK,
    re.compile(_REVERSED_IPV6, re.IGNORECASE),
    lambda match, _: re.sub(rb"(?i)[0-9a-f](?=.*\.ip)", FILL, match[0]),
    search_strings=(b".ip6.arpa", b".ipv6-literal.net"),
)

# Hardware addresses, PCI addresses and unique ids


def _overwrite_hardware_address(match: re.Match[bytes], _pseudonyms: Pseudonyms) -> bytes:
    """Overwrite the digits of a hardware address.

    Addresses that consist only of ``0`` or only of ``f``, and decimal numbers with hyphens or dots, are returned
    unchanged.
    """
    digits = re.sub(rb"[:.\-]", b"", match[0]).lower()
    is_number = b":" not in match[0] and digits.isdigit()
    is_placeholder = not digits.strip(b"0") or not digits.strip(b"f") or is_number
    return match[0] if is_placeholder else _HEX.sub(FILL, match[0])


HARDWARE = Pattern(
    ADDRESS,
    re.compile(
        rb"(?<![0-9A-Za-z:])(?:(?:[0-9a-f]{2}:){5,19}[0-9a-f]{2}|[0-9a-f]{4}(?::[0-9a-f]{4}){3})(?![0-9A-Za-z:])"
        rb"|(?<![0-9A-Za-z\-])[0-9a-f]{2}(?:-[0-9a-f]{2}){5,19}(?![0-9A-Za-z\-])"
        rb"|(?<![0-9A-Za-z.])[0-9a-f]{4}(?:\.[0-9a-f]{4}){2,3}(?![0-9A-Za-z]|\.[0-9A-Za-z])",
        re.IGNORECASE,
    ),
    _overwrite_hardware_address,
    prefilters=(
        (b":", (_PAIR + rb":") * 3),
        (b"-", (_PAIR + rb"-") * 4),
        (b":", (_FOUR + rb":") * 2),
        (b".", _FOUR + rb"\." + _FOUR),
    ),
)
_NAMED_HARDWARE = (
    rb"(?:mac|ether|lladdr|(?:mac|hw)[_\- ]?addr(?:ess)?|(?:node|port|sys(?:tem)?_?ima?ge?|sm|ca|hca)?[_\- ]?guid)"
    rb"[\"']?[ \t]{0,2}[=: ][ \t]{0,2}[\"']?(?:0x)?"
    rb"(\d{17,20}|[0-9a-f]{16}|[0-9a-f]{12}|(?:[0-9a-f]{1,2}[:\-]){5}[0-9a-f]{1,2})"
)
NAMED_HARDWARE = Pattern(
    ADDRESS,
    re.compile(rb"(?<![A-Za-z])" + _NAMED_HARDWARE + rb"(?![0-9A-Za-z:\-])", re.IGNORECASE),
    lambda match, _: match[0][: -len(match[1])] + _HEX.sub(FILL, match[1]),
    search_strings=(
        *(b"mac", b"hwaddr", b"hw_addr", b"hw-addr", b"hw addr", b"ether", b"lladdr"),
        b"guid",
    ),
    confirm=re.compile(_NAMED_HARDWARE, re.IGNORECASE).match,
)
_INFINIBAND = rb"[gl](?:u?id)[\"']?[ \t]{0,2}[=: ][ \t]{0,2}[\"']?0x([0-9a-f]{1,16})"
INFINIBAND = Pattern(
    ADDRESS,
    re.compile(
        rb"(?:guid|(?<![A-Za-z])(?:base|sm|port)?[_\- ]?lid)"
        rb"[\"']?[ \t]{0,2}[=: ][ \t]{0,2}[\"']?0x([0-9a-f]{1,16})(?![0-9a-z])",
        re.IGNORECASE,
    ),
    lambda match, _: match[0][: -len(match[1])] + _HEX.sub(FILL, match[1]),
    search_strings=(b"guid", b"lid"),
    confirm=re.compile(_INFINIBAND, re.IGNORECASE).match,
)
_SERIAL = (
    rb"serial(?:[_\- ]?(?:number|num|no|nr|id))?[\"']?[ \t]{0,8}(?:=|:(?!:))[ \t]{0,8}[\"']?"
    rb"((?=[0-9A-Za-z\-]{0,40}\d)[0-9A-Za-z\-]{6,40})"
    rb"|uuid[\"']?[ \t]{0,2}(?:=|:(?!:))[ \t]{0,2}[\"']?(?:0x)?([0-9a-f]{8,31})"
)
SERIALS = Pattern(
    IDENTIFIER,
    re.compile(
        rb"(?<![A-Za-z])(?:(?:gpu|board|device|product|module|chassis|system)[_\- ]?)?(?:"
        + _SERIAL
        + rb")(?![0-9A-Za-z\-])",
        re.IGNORECASE,
    ),
    overwrite_last_group,
    search_strings=(b"serial", b"uuid"),
    confirm=re.compile(_SERIAL, re.IGNORECASE).match,
)
"""Numbers of devices in fields with names such as ``serial``, and other ids than UUIDs in fields named ``uuid``."""
PCI = Pattern(
    BUS,
    re.compile(rb"(?<![0-9a-f:])(?:[0-9a-f]{4}){1,2}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7](?![0-9a-f])", re.IGNORECASE),
    lambda match, pseudonyms: pseudonyms.compute_pci_address_pseudonym(match[0]),
    prefilters=((b":", _PAIR + rb":" + _PAIR + rb"\.[0-7]"),),
)
UUIDS = Pattern(
    IDENTIFIER,
    re.compile(rb"(?<![0-9a-f])[0-9a-f]{8}([-_])(?:[0-9a-f]{4}\1){3}[0-9a-f]{12}(?![0-9a-f])", re.IGNORECASE),
    lambda match, pseudonyms: pseudonyms.compute_uuid_pseudonym(match[0]),
    prefilters=((b"-", (_FOUR + rb"-") * 3), (b"_", (_FOUR + rb"_") * 3)),
)


def _replace_plain_uuid(match: re.Match[bytes], pseudonyms: Pseudonyms) -> bytes:
    return match[0][:-32] + pseudonyms.compute_uuid_pseudonym(match[0][-32:])


_PLAIN_UUID = re.compile(
    rb"(?:uuid|guid|machine[_\- ]?id|boot[_\- ]?id|trace[_\- ]?id|session[_\- ]?id|gpu-|mig-|urn:uuid:)"
    rb"[\"']?[ \t]{0,2}[=: ]?[ \t]{0,2}[\"'{]?(?:0x)?[0-9a-f]{32}",
    re.IGNORECASE,
)
PLAIN_UUIDS = Pattern(
    IDENTIFIER,
    re.compile(_PLAIN_UUID.pattern + rb"(?![0-9a-f])", re.IGNORECASE),
    _replace_plain_uuid,
    search_strings=(
        *(b"uuid", b"guid", b"gpu-", b"mig-"),
        *(name + end for name in b"machine boot trace session".split() for end in (b"id", b"_id", b"-id", b" id")),
    ),
    confirm=_PLAIN_UUID.match,
)  # fmt: skip
_CONTAINER = re.compile(
    rb"(?:docker|containerd|cri-?o|libpod|containers?|kubepods|buildkit|podman|lxc)"
    rb"[^\s\0]{0,256}?([0-9a-f]{64})(?![0-9a-f])"
)
CONTAINERS = Pattern(
    IDENTIFIER,
    _CONTAINER,
    overwrite_last_group,
    search_strings=(b"docker", b"container", b"crio", b"cri-o", b"libpod", b"kubepods", b"buildkit", b"podman", b"lxc"),
)


# Secrets: tokens of a known form, values that are assigned to names such as ``password``, and credentials. The value
# of a name may be quoted and then contain spaces. It may also be the argument of an option, as in ``--password X`` or
# ``["--password", "X"]``.

# Tokens of a known form. Each consists of the text that it begins with, and a regular expression for the rest.

_WORD, _HYPHENATED = rb"[0-9A-Za-z]", rb"[\w\-]"
_END = rb"(?![0-9A-Za-z])"
"""End of a token. In messages, the byte after a string may be a letter, so candidates are confirmed without it."""
_FORMS: tuple[tuple[tuple[bytes, ...], bytes], ...] = (
    ((b"AKIA", b"ASIA", b"ABIA", b"ACCA", b"AGPA", b"AIDA", b"AIPA", b"ANPA", b"ANVA", b"APKA", b"AROA", b"ASCA"),
     rb"[0-9A-Z]{16}" + _END),
    ((b"AIza",), _HYPHENATED + rb"{30,255}"),
    ((b"ya29.",), _HYPHENATED + rb"{20,255}"),
    ((b"GOCSPX-",), _HYPHENATED + rb"{20,255}"),
    ((b"GOOG1E",), rb"[0-9A-Z]{18,64}"),
    ((b"LTAI",), _WORD + rb"{12,26}" + _END),
    ((b"AKID",), _WORD + rb"{30,40}" + _END),
    ((b"ghp_", b"gho_", b"ghu_", b"ghs_", b"ghr_", b"hf_", b"npm_", b"gsk_"), _WORD + rb"{20,255}"),
    ((b"shpat_", b"shpca_", b"shppa_", b"shpss_"), _WORD + rb"{20,255}"),
    ((b"github_pat_", b"dckr_pat_", b"dckr_oat_"), rb"\w{20,255}"),
    ((b"glpat-", b"gldt-", b"glrt-", b"glptt-", b"glcbt-", b"glsoat-"), rb"[\w\-.]{16,255}"),
    ((b"xoxa-", b"xoxb-", b"xoxe-", b"xoxe.", b"xoxo-", b"xoxp-", b"xoxr-", b"xoxs-", b"xapp-"), rb"[\w\-.]{10,255}"),
    ((b"sk-", b"nvapi-", b"lin_api_", b"ntn_"), _HYPHENATED + rb"{20,255}"),
    ((b"sk_live_", b"sk_test_", b"rk_live_", b"rk_test_", b"pk_live_", b"pk_test_", b"whsec_"), _WORD + rb"{16,255}"),
    ((b"pypi-",), _HYPHENATED + rb"{30,255}"),
    ((b"hvs.", b"hvb.", b"hvr."), _HYPHENATED + rb"{20,255}"),
    ((b"glsa_", b"glc_", b"pat_"), rb"[\w=+/]{30,255}"),
    ((b"dapi",), rb"[0-9a-f]{32}(?:-\d)?" + _END),
    ((b"dop_v1_", b"doo_v1_", b"dor_v1_"), rb"[0-9a-f]{64}"),
    ((b"SG.",), _HYPHENATED + rb"{16,64}\." + _HYPHENATED + rb"{16,64}"),
    ((b"AGE-SECRET-KEY-1",), rb"[0-9A-Z]{40,80}"),
    ((b"r8_",), _WORD + rb"{30,64}"),
    ((b"eyJ",), rb"[\w\-]{8,512}\.[\w\-]{4,8192}(?:\.[\w\-]{0,4096}){0,3}"),
    ((b"-----BEGIN ",),
     rb"[A-Z0-9 ]{1,64}-----(?:[\w+/=\s\\:,.]|-(?!-)){0,16384}(?:-----END [A-Z0-9 ]{1,64}-----)?"),
    ((b"ssh-rsa AAAA", b"ssh-dss AAAA", b"ssh-ed25519 AAAA"), rb"[\w+/=]{8,4096}(?: [^\s\"',;]{1,255})?"),
    ((b"ecdsa-sha2-",), rb"\w{1,32} AAAA[\w+/=]{8,4096}(?: [^\s\"',;]{1,255})?"),
    ((b"hooks.slack.com/services/", b"discord.com/api/webhooks/", b"discordapp.com/api/webhooks/"), rb"[\w\-/]{8,255}"),
)  # fmt: skip
_TOKEN = b"|".join(b"(?:" + b"|".join(map(re.escape, starts)) + b")" + rest for starts, rest in _FORMS)
TOKENS = Pattern(
    SECRET,
    re.compile(rb"(?<![0-9A-Za-z])(?:" + _TOKEN + rb")"),
    overwrite_match,
    search_strings=tuple(start.lower() for starts, _ in _FORMS for start in starts),
    confirm=re.compile(_TOKEN.replace(_END, b"")).match,
)
_AWS_SECRET = (
    rb"A(?:KIA|SIA)[0-9A-Z]{16}(?![0-9A-Za-z])[^\0]{1,80}?(?:(?<![0-9A-Za-z+/])|(?<=\\[nrt]))([0-9A-Za-z+/]{40})"
    rb"(?![0-9A-Za-z+/=])"
)
AWS_SECRETS = Pattern(
    SECRET,
    re.compile(rb"(?<![0-9A-Za-z])" + _AWS_SECRET),
    overwrite_last_group,
    search_strings=(b"akia", b"asia"),
    confirm=re.compile(rb"A(?:KIA|SIA)[0-9A-Z]{16}[^\0]{1,80}?[0-9A-Za-z+/]{40}").match,
)
"""Secret keys without a name that follow the id of an access key, which ``TOKENS`` overwrites afterwards."""
AZURE_SECRETS = Pattern(
    SECRET,
    re.compile(rb"(?<![\w.~\-])[\w.~\-]{3}[78]Q~[\w.~\-]{31,40}(?![\w~\-])|(?<![\w+/])[0-9A-Za-z+/]{86}==(?![\w+/=])"),
    overwrite_match,
    prefilters=((b"~", rb"(?<=[78]Q~)[\w.~\-]{31}"), (b"=", rb"=(?<=[0-9A-Za-z+/]{86}==)")),
)

# Values assigned to names

_TOKENS_OF_TEXT = b"bos eos pad unk sep cls mask next max min num stop start end special image first last new".split()
"""What precedes the word token in the names of numbers and strings that are no secrets."""
_SHORT_TOKEN = (
    b"".join(rb"(?<!" + word + rb"[_\-])" for word in _TOKENS_OF_TEXT)
    + rb"token[\"']?[ \t]{0,2}(?:=>|:=|={1,2}|:(?!:))[ \t]{0,2}[\"']?"
    rb"(?!(?:none|null|true|false|undefined|tensor)(?!\w))((?=[^\s\"'&,;]{0,15}[A-Za-z])[\w./+=@!#$%^*~\-]{4,15}(?![\w./+(\[<]))"
)
SHORT_TOKENS = Pattern(
    SECRET,
    re.compile(rb"(?<![A-Za-z])" + _SHORT_TOKEN, re.IGNORECASE),
    overwrite_last_group,
    search_strings=(b"token",),
    confirm=re.compile(rb"token[\"']?[ \t]{0,2}[=:][ \t=>]{0,3}[\"']?[\w./+=@!#$%^*~\-]{4}", re.IGNORECASE).match,
)

_NAMES_IN_OTHER_LANGUAGES = (
    "passwort|kennwort|contraseña|contrasena|senha|пароль|wachtwoord|lösenord|hasło|motdepasse|mot de passe"
    "|mot_de_passe|密码|密碼|口令|パスワード|비밀번호|암호"
)
_OTHER_LANGUAGES = tuple(_NAMES_IN_OTHER_LANGUAGES.encode().split(b"|"))
"""Words for a password in other languages."""
_NAMED = (
    rb"passw(?:or)?d|passphrase|passcode|secret|credentials?|"
    + b"|".join(_OTHER_LANGUAGES)
    + rb"|(?:api|access|private|account|signing|encryption|storage|master|shared|license|service|secret)[_\-]?key"
    rb"|(?:auth|access|api|hf|github|gitlab|refresh|session|security|bearer|sas|bot)[_\-]?token"
)
PRIVATE_KEY = rb"(?:[\w.]{0,40}[_.\-])?(?:" + _NAMED + rb"|pwd)"
"""Regular expression for the keys of JSON members whose values are secrets, even if they are numbers."""
_SEPARATOR = rb"[\"']?[ \t]{0,2}(?:=>|:=|={1,2}|:(?!:)|\xef\xbc[\x9a\x9d])[ \t]{0,2}"
_QUOTED = rb"[bfru]{0,2}(?:\"((?:[^\"\\\0\r\n]|\\.){1,1024})\"|'((?:[^'\\\0\r\n]|\\.){1,1024})')"
_BACKSLASH = rb"\\(?!\\{0,16}[\"'])"
"""A backslash that does not belong to an escaped quote, which ends a value in JSON that is a string of JSON."""
_UNQUOTED = rb"((?:[^\s\"'&,;\0\\]|" + _BACKSLASH + rb"){4,1024})"
_ASSIGNED = re.compile(
    rb"(?:" + _NAMED + rb")[\w\-]{0,40}" + _SEPARATOR + rb"(?:" + _QUOTED + rb"|[\"']?" + _UNQUOTED + rb")"
    rb"|token" + _SEPARATOR + rb"[\"']?"
    rb"((?=[\w./+\-]{0,255}[A-Za-z])(?=[\w./+\-]{0,255}\d)[\w./+=\-]{16,1024})"
    rb"|(?:bearer|basic)[ \t]{1,2}((?=[\w./+\-]{0,255}\d)[\w./+=~\-]{16,4096})",
    re.IGNORECASE,
)
_CLOSING = {ord(")"): ord("("), ord("]"): ord("["), ord("}"): ord("{"), ord(">"): ord("<")}


def _measure_unquoted_value(value: bytes) -> int:
    """Return the length of a value without quotes, which ends at a closing bracket that is not opened in the value."""
    opened: list[int] = []
    for at, char in enumerate(value):
        if char in _CLOSING.values():
            opened.append(char)
        elif char in _CLOSING and (not opened or opened.pop() != _CLOSING[char]):
            return at
    return len(value)


def _overwrite_value(match: re.Match[bytes], _pseudonyms: Pseudonyms) -> bytes:
    """Overwrite the value that is assigned to a name. The value is the last capture group of the match."""
    text, (start, end) = match.string, match.span(match.lastindex or 0)
    if text[start - 1 : start] not in (b'"', b"'"):
        end = start + _measure_unquoted_value(text[start:end])
    return text[match.start() : start] + overwrite_with_x(text[start:end]) + text[end : match.end()]


_NAME_STRINGS = (
    *(b"passw", b"passphrase", b"passcode", b"secret", b"credential", *_OTHER_LANGUAGES),
    *(
        word + separator + b"key"
        for word in b"api access private account signing encryption storage master shared license service".split()
        for separator in (b"_", b"-", b"")
    ),
)
ASSIGNMENTS = Pattern(
    SECRET,
    _ASSIGNED,
    _overwrite_value,
    search_strings=(*_NAME_STRINGS, b"token", b"bearer ", b"basic "),
    confirm=re.compile(_ASSIGNED.pattern + rb"|token" + _SEPARATOR + rb"[\"']?[^\s\"']", re.IGNORECASE).match,
)
_DATABASE = re.compile(
    rb"(?<![0-9A-Za-z_])pwd[ ]{0,2}=[ ]{0,2}(?:" + _QUOTED + rb"|(?![/~.$%\\]|[A-Za-z]:[/\\])" + _UNQUOTED + rb")"
    rb"|authorization[\"']?[ \t]{0,2}[=:][ \t]{0,2}[\"']?(?:[A-Za-z][\w\-]{2,20}[ \t]{1,2})?((?:[^\s\"',;\\]|"
    + _BACKSLASH
    + rb"){4,4096})"
    rb"|cookie[\"']?[ \t]{0,2}:[ \t]{0,2}[\"']?((?:[^\"'\0\r\n\\]|" + _BACKSLASH + rb"){4,2048})"
    rb"|(?<![\w\-])(?:-u|--(?:proxy-)?user)[ =][\"']?(?!\d{1,9}:\d{1,9}(?!\d))([^\s:\"'/]{1,64}:[^\s\"']{1,256})"
    rb"|(?<![\w\-])sshpass[ ]{1,2}-p[ ]?[\"']?([^\s\"']{1,256})"
    rb"|(?<![\w\-])login[ \t\n]{1,4}[^\s]{1,64}[ \t\n]{1,4}password[ \t]{1,4}([^\s]{1,256})"
    rb"|[?&](?:sig|signature|x-(?:amz|goog)-(?:signature|credential|security-token)|key|token|auth|code)="
    rb"([^&\s\"'<>]{8,4096})"
    rb"|(?<![\w\-])(?:(?:zip|7z[ar]?)[ ][^\0\r\n|;&]{0,100}?-p|redis-cli[^\0\r\n|;&]{0,100}?[ ]-a|wandb[ ]login)"
    rb"[ ]?[\"']?(?!-)([^\s\"']{4,256})"
    rb"|-pass(?:in|out|word)?[ =]pass:([^\s\"']{4,256})"
    rb"|(?<![\w\-])-u[ ]?[\"']?[^\s%\"']{1,64}%([^\s\"']{4,256})"
    rb"|(?-i:(?<![A-Za-z0-9_])[A-Z][A-Z0-9_]{0,40}_(?:KEY|PASS|PWD|CREDS?))=[\"']?"
    rb"((?=[^\s\"']{0,255}[A-Za-z])(?=[^\s\"']{0,255}\d)[^\s\"'&,;]{8,1024})",
    re.IGNORECASE,
)
OTHER_ASSIGNMENTS = Pattern(
    SECRET,
    _DATABASE,
    _overwrite_value,
    search_strings=(
        *(b"pwd=", b"pwd =", b"authorization", b"cookie", b"-u ", b"-u=", b"--user ", b"--user=", b"-user ", b"-user="),
        *(b"sshpass", b"login", b"sig=", b"signature=", b"-credential=", b"-token=", b"?key=", b"&key=", b"?token="),
        *(b"&token=", b"?auth=", b"&auth=", b"?code=", b"&code=", b"zip ", b"7z ", b"7za ", b"7zr ", b"redis-cli"),
        *(b"wandb login", b"=pass:", b" pass:", b"_key=", b"_pass=", b"_cred=", b"_creds="),
    ),
)

# Arguments of options

_OTHER_TOKENS = rb"(?:" + b"|".join(_TOKENS_OF_TEXT) + rb")"
_OPTION = re.compile(
    rb"(?<![\w\-])--?(?![\w\-]{0,40}" + _OTHER_TOKENS + rb"[_\-]token)[\w\-]{0,40}?"
    rb"(?:" + _NAMED + rb"|token(?=[\"']?[ \t,=]{1,4}[\"']?[^\s\"']{0,255}[A-Za-z])|pass|pwd)"
    rb"(?:[ \t]{1,4}|=|[\"'][ \t]{0,2},[ \t\r\n]{0,64}(?=[\"']))"
    rb"(?:" + _QUOTED + rb"|(?![\-\"'])((?:[^\s\"'\0\\]|" + _BACKSLASH + rb"){1,1024}))",
    re.IGNORECASE,
)
OPTIONS = Pattern(
    SECRET,
    _OPTION,
    _overwrite_value,
    search_strings=(
        *_NAME_STRINGS,
        *(b"token ", b"token=", b'token"', b"token'", b"-pass ", b"-pass=", b'-pass"', b"-pass'"),
        *(b"-pwd ", b"-pwd=", b'-pwd"', b"-pwd'"),
    ),
    confirm=re.compile(rb"-?[\w\-]{1,50}[\"']?[ \t,=]", re.IGNORECASE).match,
)
_PASSWORD_OPTION = (
    rb"-p(?:[ ]{1,2}[\"']?|=[\"']?|[\"'][ ]{0,2},[ ]{0,8}[\"'])"
    rb"(?![\-/~.$%\\]|[A-Za-z]:[/\\]|[\d:.,\-]{1,32}(?![^\s\"',;]))([^\s\"'\0\\]{4,256})"
)
_MYSQL = rb"(?i:mysql|mariadb|sshpass)[\w\-]{0,24}[^\0\r\n|;&]{0,200}?[ \"']-p[\"']?([^\s\"'\0\\]{1,256})"
PASSWORD_OPTIONS = Pattern(
    SECRET,
    re.compile(rb"(?<![\w\-])(?:" + _PASSWORD_OPTION + rb"|" + _MYSQL + rb")"),
    overwrite_last_group,
    search_strings=(b"-p ", b"-p=", b'-p"', b"-p'", b"mysql", b"mariadb", b"sshpass"),
    confirm=re.compile(_PASSWORD_OPTION + rb"|" + _MYSQL).match,
)
"""Arguments of the option ``-p``. Numbers, such as ports, and paths are no passwords."""
CREDENTIALS = Pattern(
    SECRET,
    re.compile(rb"://(?:[^\s/@:\"'<>]{1,256}(?::[^\s/@\"'<>]{0,1024})?|:[^\s/@\"'<>]{1,1024})@"),
    lambda match, _: b"://" + overwrite_with_x(match[0][3:-1]) + b"@",
    prefilters=((b":", rb"//[^\s/@\"'<>]{1,1281}@"),),
)


# Paths: names of home folders and of private folders

_HOME_FOLDERS = (b"home", b"homes", b"users", *(b"home%d" % n for n in range(1, 10)))
_IN_HOME = rb"[/\\]{1,2}(?:home[1-9]?|homes|[Uu]sers)[/\\]{1,2}"
_MORE_WORDS = rb"(?: [A-Z\x80-\xff][\w.\-\x80-\xff]{0,63}){1,3}(?=/)"
"""Further words of a name with spaces, as in ``/Users/Alice Doe/``."""
_COMPONENT = rb"[^/\\\0-\x20:;,\"'<>|()\[\]{}=&?*$!`\x7f]+"
HOMES = Pattern(
    MENTION,
    re.compile(
        rb"("
        + _IN_HOME
        + rb")([^/\\\0-\x1f:;,\"'<>|*?\x7f]{1,255}(?=\\)|"
        + _COMPONENT
        + rb"(?:"
        + _MORE_WORDS
        + rb")?)"
        rb"|(?<![\w:)\]>])(~)([A-Za-z_][\w.\-]{0,63})(?=/)"
    ),
    lambda match, _: (
        match[1] + _overwrite_account_name(match[2]) if match[2] else match[3] + _overwrite_account_name(match[4])
    ),
    search_strings=tuple(a + name + b for name in _HOME_FOLDERS for a in (b"/", b"\\") for b in (b"/", b"\\")),
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
_MODULE_FOLDERS = frozenset((b"site-packages", b"dist-packages"))
"""Folders of Python modules, whose names stay."""
_BEFORE_LAST = 2


@functools.lru_cache(maxsize=1 << 12)
def overwrite_private_folders(path: bytes, separators: bytes = b"/") -> bytes:
    """Return a path in which each byte of the uncommon folder names is replaced with ``x``.

    The separators, the folders of Python modules, and the file name if the path has one, are unchanged.
    """
    parts = re.split(rb"([" + re.escape(separators) + rb"]+)", path)
    last = len(parts) - 1
    before = parts[last - 2].lower() if last >= _BEFORE_LAST else b""
    for at in range(0, len(parts), 2):
        if parts[at].lower() in _MODULE_FOLDERS:
            break
        is_file = at == last and (_FILE_NAME.fullmatch(parts[at]) or before in _PROGRAM_FOLDERS)
        if len(parts[at]) > 1 and not is_file and not is_known_folder(parts[at]):
            parts[at] = overwrite_with_x(parts[at])
    return b"".join(parts)


def _has_private_folders(data: bytes, start: int) -> bool:
    """Return whether a path that contains private folder names begins at an offset."""
    path = _PATH.match(data, start)
    return path is not None and overwrite_private_folders(path[0]) != path[0]


PATHS = Pattern(
    PATH,
    re.compile(rb"(?<![\w.~\-])" + _FROM_ROOT, re.IGNORECASE),
    lambda match, _: overwrite_private_folders(match[0]),
    search_strings=tuple(b"/" + root + b"/" for root in _ROOTS),
    confirm=_has_private_folders,
)
LIBRARIES = Pattern(
    PATH,
    re.compile(rb"\A/[^\0-\x20]{1,4096}\.(?:so|pyd|dylib|cubin)(?:\.\d{1,8}){0,6}(?: \(deleted\))?\Z"),
    lambda match, _: overwrite_private_folders(match[0]),
    search_strings=(b".so", b".pyd", b".dylib", b".cubin"),
)
_IN_WINDOWS = rb"[^\\/:*?\"<>|\0-\x1f]{1,255}"
WINDOWS_PATHS = Pattern(
    PATH,
    re.compile(
        rb"(?:(?<![0-9A-Za-z])[A-Za-z]:|(?<![\\\w:])\\(?=\\[\w.\-]{1,255}\\))"
        rb"(?:\\{1,2}" + _IN_WINDOWS + rb"(?=\\)){0,64}\\{1,2}[^\\/:*?\"<>|\0-\x20]{1,255}"
    ),
    lambda match, _: match[0][:2] + overwrite_private_folders(match[0][2:], b"\\"),
    prefilters=((b":", rb"\\{1,2}[\w.(]"), (b"\\", rb"\\[\w.\-]{1,255}\\")),
)


# Process environments

USUAL_VARIABLES = (
    rb"PATH|HOME|PWD|OLDPWD|USER|LOGNAME|USERNAME|USERPROFILE|SHELL|LANG|TERM|HOSTNAME|COMPUTERNAME|SHLVL|MAIL|EDITOR"
    rb"|DISPLAY|TMPDIR|LD_LIBRARY_PATH|LD_PRELOAD|PYTHONPATH|CUDA_HOME|SSH_CLIENT|SSH_CONNECTION|SSH_TTY|XDG_\w+"
    rb"|SLURM_\w+|KUBERNETES_\w+"
)
"""Regular expression for well-known names of variables."""
_SEARCHED_VARIABLES = (
    b"path home pwd user logname shell hostname shlvl username lang term lc_all lc_ctype lc_numeric lc_time lc_collate "
    b"lc_monetary lc_messages lc_paper lc_name lc_address lc_telephone lc_measurement lc_identification"
)
ENVIRONMENT_SEARCH_STRINGS = tuple(
    name + end for name in _SEARCHED_VARIABLES.split() for end in (b"=", b"'", b'"', b"\\'", b'\\"', b"%3d", b"\\u003d")
)
"""Lower-case strings to search for. A detected environment without NUL bytes contains at least one of them."""

VARIABLES_ALMOST_ALWAYS_SET = (b"PATH", b"HOME", b"PWD", b"USER")
"""Names of variables. In every complete environment, at least one of them is set."""

_VARIABLE = re.compile(rb"(?:^|[\0\n])[A-Za-z_][\w.%()]*=")
_WELL_KNOWN_ENTRY = re.compile(
    rb"(?:^|\n)(?:PATH|HOME|PWD|USER|LOGNAME|SHELL|LANG|LC_[A-Z]+|TERM|HOSTNAME|LD_LIBRARY_PATH)="
)
_EMBEDDED = re.compile(rb"(?<![\w$])['\"]?(" + USUAL_VARIABLES + rb")(?:=|['\"]\s*:\s*['\"])")
_QUOTED_VARIABLE = re.compile(rb"['\"]([A-Za-z_]\w*)['\"]\s*:\s*(?:'([^'\0]*)'|\"([^\"\0]*)\")")
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
    if b"\0" not in text and (quoted := _QUOTED_VARIABLE.findall(text)):
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


def _overwrite_environment(match: re.Match[bytes], _pseudonyms: Pseudonyms) -> bytes:
    """Overwrite all bytes of a match from the start of the process environment in it to the end of the match."""
    start = find_environment_start(match[0])
    return match[0] if start is None else match[0][:start] + overwrite_with_x(match[0][start:])


_ENVIRONMENTS = Pattern(
    ENVIRONMENT, re.compile(rb"(?s)\A.+\Z"), _overwrite_environment, search_strings=ENVIRONMENT_SEARCH_STRINGS
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
