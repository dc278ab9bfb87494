"""Pseudonyms for identifiers that rows or files refer to, such as UUIDs.

A pseudonym is a keyed hash of a value, written in the format of the value. A value has the same pseudonym wherever it
occurs, and programs can still parse it. Without the key, nobody can find the original value by hashing candidates.
Pseudonyms can be distinguished from original values, so that redacting a file again does not change them.
"""

from __future__ import annotations

import hashlib
import re
import secrets

MIN_KEY, MAX_KEY = 16, 1 << 16
"""Minimum and maximum size of a key in bytes. A shorter key could be guessed."""

_UUID_START = bytes(6)
_HOST_START = b"redacted-"
_HOST = re.compile(_HOST_START + rb"[0-9a-f]{12}")
_BUS = re.compile(rb"([0-9A-Fa-f]{4,8}):([0-9A-Fa-f]{2}):([0-9A-Fa-f]{2})\.([0-7])")
_UUID_BYTES = 16
_DEVICES = 1 << 13
"""Number of combinations of bus and device number in a PCI address."""


class Pseudonyms:
    """A generator of pseudonyms, all of which are derived from one key."""

    def __init__(self, key: bytes | None = None) -> None:
        """Create a generator with the given key. If ``key`` is None, a random key is used, which is not stored."""
        self._key = hashlib.blake2b(key).digest() if key else secrets.token_bytes(64)
        self._devices: dict[bytes, int] = {}

    def compute_host_pseudonym(self, name: bytes) -> bytes:
        """Return the pseudonym of a host name: ``redacted-`` and 12 hexadecimal digits.

        An empty name or a pseudonym is returned unchanged.
        """
        if not name or _HOST.fullmatch(name):
            return name
        return _HOST_START + self._compute_keyed_hash(b"host", name.lower())[:6].hex().encode()

    def compute_uuid_pseudonym(self, text: bytes) -> bytes:
        """Return the pseudonym of a UUID that is written with hyphens or underscores.

        The nil UUID, and a UUID that already is a pseudonym, are returned unchanged.
        """
        value = self.compute_binary_uuid_pseudonym(bytes.fromhex(re.sub(rb"[-_]", b"", text).decode()))
        digits = iter(value.hex())
        pseudonym = "".join(chr(c) if c in b"-_" else next(digits) for c in text).encode()
        return pseudonym.upper() if text.isupper() else pseudonym

    def compute_binary_uuid_pseudonym(self, value: bytes) -> bytes:
        """Return the pseudonym of a UUID of 16 bytes.

        The pseudonym is a UUID of version 8 that begins with six zero bytes. A value that already begins with six zero
        bytes or has another length is returned unchanged.
        """
        if len(value) != _UUID_BYTES or value.startswith(_UUID_START):
            return value
        pseudonym = bytearray(_UUID_START + self._compute_keyed_hash(b"uuid", value)[: _UUID_BYTES - len(_UUID_START)])
        pseudonym[6] = 0x80 | pseudonym[6] & 0x0F
        pseudonym[8] = 0x80 | pseudonym[8] & 0x3F
        return bytes(pseudonym)

    def compute_pci_address_pseudonym(self, address: bytes) -> bytes:
        """Return the pseudonym of a PCI address.

        All digits of the PCI domain become ``f``, and the bus and device become other numbers. The function number is
        unchanged. A pseudonym, or text that is not a PCI address, is returned unchanged.
        """
        parts = _BUS.fullmatch(address)
        if parts is None or not parts[1].strip(b"fF"):
            return address
        number = self._assign_device_number(b":".join((parts[1].lstrip(b"0"), *parts.group(2, 3))).lower())
        return b"%b:%02x:%02x.%b" % (b"f" * len(parts[1]), number >> 5, number & 31, parts[4])

    def _assign_device_number(self, device: bytes) -> int:
        """Return the number that replaces the bus and device of a PCI address. Each device gets a different number."""
        if device not in self._devices:
            number = int.from_bytes(self._compute_keyed_hash(b"bus", device)[:2], "big") % _DEVICES
            used = set(self._devices.values())
            while number in used and len(used) < _DEVICES:
                number = (number + 1) % _DEVICES
            self._devices[device] = number
        return self._devices[device]

    def _compute_keyed_hash(self, purpose: bytes, value: bytes) -> bytes:
        return hashlib.blake2b(value, key=self._key, person=purpose).digest()
