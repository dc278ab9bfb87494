"""Pseudonyms: what stands in place of values that link rows or files.

A pseudonym is a keyed hash of the value in the format of the value, so the same value has the same pseudonym wherever
it stands, and programs that parse the field still can. Without the key it cannot be turned back by trying out values.
Every pseudonym can be told from a real value, so that redacting a file again leaves it alone.
"""

from __future__ import annotations

import hashlib
import re
import secrets

MIN_KEY, MAX_KEY = 16, 1 << 16
"""Bytes that a key has at least: a shorter one could be guessed."""

_UUID_START = bytes(6)
_HOST_START = b"redacted-"
_HOST = re.compile(_HOST_START + rb"[0-9a-f]{12}")
_BUS = re.compile(rb"([0-9A-Fa-f]{4,8}):([0-9A-Fa-f]{2}):([0-9A-Fa-f]{2})\.([0-7])")
_UUID_BYTES = 16
_DEVICES = 1 << 13
"""Numbers of bus and device of a PCI address together."""


class Pseudonyms:
    """Pseudonyms made with one key."""

    def __init__(self, key: bytes | None = None) -> None:
        """Use a key, or a random one that nobody keeps."""
        self._key = hashlib.blake2b(key).digest() if key else secrets.token_bytes(64)
        self._devices: dict[bytes, int] = {}

    def host(self, name: bytes) -> bytes:
        """Return the pseudonym of a host name: ``redacted-`` and 12 hexadecimal digits."""
        if not name or _HOST.fullmatch(name):
            return name
        return _HOST_START + self._hash(b"host", name.lower())[:6].hex().encode()

    def uuid(self, text: bytes) -> bytes:
        """Return the pseudonym of a UUID written with hyphens or underscores; the nil UUID stays."""
        value = self.uuid_bytes(bytes.fromhex(re.sub(rb"[-_]", b"", text).decode()))
        digits = iter(value.hex())
        kept = "".join(chr(c) if c in b"-_" else next(digits) for c in text).encode()
        return kept.upper() if text.isupper() else kept

    def uuid_bytes(self, value: bytes) -> bytes:
        """Return the pseudonym of the 16 bytes of a UUID: one of version 8 that begins with six zero bytes."""
        if len(value) != _UUID_BYTES or value.startswith(_UUID_START):
            return value
        made = bytearray(_UUID_START + self._hash(b"uuid", value)[: _UUID_BYTES - len(_UUID_START)])
        made[6] = 0x80 | made[6] & 0x0F
        made[8] = 0x80 | made[8] & 0x3F
        return bytes(made)

    def bus(self, location: bytes) -> bytes:
        """Return the pseudonym of a PCI address: one whose domain is all ``f``; the function of the device stays."""
        parts = _BUS.fullmatch(location)
        if parts is None or not parts[1].strip(b"fF"):
            return location
        number = self._device(b":".join((parts[1].lstrip(b"0"), *parts.group(2, 3))).lower())
        return b"%b:%02x:%02x.%b" % (b"f" * len(parts[1]), number >> 5, number & 31, parts[4])

    def _device(self, location: bytes) -> int:
        """Return the number of a PCI device; two devices of a capture never have the same one."""
        if location not in self._devices:
            number = int.from_bytes(self._hash(b"bus", location)[:2], "big") % _DEVICES
            taken = set(self._devices.values())
            while number in taken and len(taken) < _DEVICES:
                number = (number + 1) % _DEVICES
            self._devices[location] = number
        return self._devices[location]

    def _hash(self, purpose: bytes, value: bytes) -> bytes:
        return hashlib.blake2b(value, key=self._key, person=purpose).digest()
