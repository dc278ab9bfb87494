"""Names of the kinds of private values. Redacted values are counted and reported by kind."""

from __future__ import annotations

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
