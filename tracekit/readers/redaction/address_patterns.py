"""Patterns of addresses of people, networks and devices, and of unique ids."""

from __future__ import annotations

import ipaddress
import re
from typing import TYPE_CHECKING

from tracekit.readers.redaction.kinds import ADDRESS, BUS, EMAIL, IDENTIFIER, NETWORK
from tracekit.readers.redaction.pattern import FILL, Pattern, overwrite_last_group, overwrite_words

if TYPE_CHECKING:
    from tracekit.readers.redaction.pseudonyms import Pseudonyms

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
