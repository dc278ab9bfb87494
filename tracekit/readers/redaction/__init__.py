"""Redact values that identify people and machines, for all readers that support redaction.

A reader replaces the values of fields that hold only private values, such as environments and host names. From these
values, the reader collects secrets and the names of hosts and users, and overwrites them wherever they occur in other
strings. Values in a format that only private values have, such as e-mail addresses, are also overwritten. Overwriting
does not change the length of a string. Identifiers that rows or files refer to, such as UUIDs, are replaced with
pseudonyms in the same format.
"""

from tracekit.readers.redaction.environments import find_environment_start, is_environment
from tracekit.readers.redaction.kinds import (
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
from tracekit.readers.redaction.names import (
    PrivateValueMatcher,
    TooManyCandidates,
    find_environment_candidate_offsets,
    is_text,
)
from tracekit.readers.redaction.pseudonyms import MAX_KEY, MIN_KEY, Pseudonyms
from tracekit.readers.redaction.state import MAX_NAMES, MAX_VALUES, Redaction, extract_program_name, is_local_device
from tracekit.readers.redaction.vocabulary import COMMON, TECHNICAL

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
    "PrivateValueMatcher",
    "Pseudonyms",
    "Redaction",
    "TooManyCandidates",
    "extract_program_name",
    "find_environment_candidate_offsets",
    "find_environment_start",
    "is_environment",
    "is_local_device",
    "is_text",
]
