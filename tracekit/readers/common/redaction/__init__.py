"""Redact values that identify people and machines, for all readers that support redaction.

A reader replaces the values of fields that hold only private values, such as environments and host names. From these
values it learns names of hosts and users, and secrets. Wherever a learned name occurs in another string, its letters
are overwritten. Values with a private format, such as addresses, are overwritten as well. Overwriting changes neither
the length nor the structure of a string. A value that links rows or files, such as a UUID, is replaced by a pseudonym
in the same format.
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
