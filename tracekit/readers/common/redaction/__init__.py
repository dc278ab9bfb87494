"""Redaction of values that identify people and machines, shared by all readers that redact.

Some fields hold only private values, for example environments and host names: the reader replaces them. The replaced
values reveal names of hosts and users, and secrets. Where one of these occurs in another string, and where a value is
private by its form alone, such as an address, its letters are overwritten, so that no length and no structure changes.
A value that links rows or files, such as a UUID, is replaced by a pseudonym in the same format.
"""

from tracekit.readers.common.redaction.environments import environment_start, is_environment
from tracekit.readers.common.redaction.kinds import (
    ADDRESS,
    BUS,
    COMMAND,
    EMAIL,
    ENVIRONMENT,
    HOST,
    IDENTIFIER,
    KINDS,
    MENTION,
    NETWORK,
    OUTPUT,
    PATH,
    SECRET,
    USER,
)
from tracekit.readers.common.redaction.ledger import MAX_NAMES, MAX_VALUES, Redaction, is_local, program_name
from tracekit.readers.common.redaction.names import Names, TooManyCandidates, environment_candidates, is_text
from tracekit.readers.common.redaction.pseudonyms import MAX_KEY, MIN_KEY, Pseudonyms
from tracekit.readers.common.redaction.vocabulary import COMMON, TECHNICAL

__all__ = [
    "ADDRESS",
    "BUS",
    "COMMAND",
    "COMMON",
    "EMAIL",
    "ENVIRONMENT",
    "HOST",
    "IDENTIFIER",
    "KINDS",
    "MAX_KEY",
    "MAX_NAMES",
    "MAX_VALUES",
    "MENTION",
    "MIN_KEY",
    "NETWORK",
    "OUTPUT",
    "PATH",
    "SECRET",
    "TECHNICAL",
    "USER",
    "Names",
    "Pseudonyms",
    "Redaction",
    "TooManyCandidates",
    "environment_candidates",
    "environment_start",
    "is_environment",
    "is_local",
    "is_text",
    "program_name",
]
