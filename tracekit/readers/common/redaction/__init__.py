"""What identifies people and machines in a capture, and how it is taken out: shared by the readers that redact.

Some fields hold nothing else, environments and host names for example: a reader knows them and has them replaced. What
is replaced gives names away, of hosts and of users, and secrets. Where one of them stands in another text, and where
something identifies by its form alone, such as an address, its letters are overwritten. So no length changes there, and
no structure. Where a value links rows or files, as a UUID does, a pseudonym in the same format takes its place.
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
from tracekit.readers.common.redaction.ledger import MOST_NAMES, MOST_VALUES, Redaction, is_local, without_folder
from tracekit.readers.common.redaction.names import Names, TooManyPlaces, environment_candidates, is_text
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
    "MENTION",
    "MIN_KEY",
    "MOST_NAMES",
    "MOST_VALUES",
    "NETWORK",
    "OUTPUT",
    "PATH",
    "SECRET",
    "TECHNICAL",
    "USER",
    "Names",
    "Pseudonyms",
    "Redaction",
    "TooManyPlaces",
    "environment_candidates",
    "environment_start",
    "is_environment",
    "is_local",
    "is_text",
    "without_folder",
]
