"""What identifies people and machines in a capture, and how it is taken out: shared by the readers that redact.

Some fields hold nothing else, environments and host names for example: a reader knows them and has them emptied. What
is emptied gives names away, of hosts and of users. Where one of them stands in another text as a whole word, and where
a path leads into the home folder of a user, its letters are overwritten. So no length changes there, and no structure.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from typing import TYPE_CHECKING

from tracekit.errors import CorruptTraceError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

ENVIRONMENT = "environment"
COMMAND = "command line"
HOST = "host name"
USER = "user name"
OUTPUT = "program output"
ADDRESS = "hardware address"
MENTION = "name in another text"
KINDS = (ENVIRONMENT, COMMAND, HOST, USER, OUTPUT, ADDRESS, MENTION)

FILL = b"x"
LONG = 5
"""Among numbers only names of so many bytes are looked for: shorter ones turn up there by chance."""

MOST_NAMES = 1 << 12

_SHORTEST, _LONGEST = 2, 255
_MANY = (
    b"root user users admin administrator guest nobody default public shared system local localhost localdomain "
    b"localhost.localdomain host ubuntu debian centos fedora ec2-user vagrant docker jovyan vscode runner jenkins "
    b"build builder conda linuxbrew git nvidia cuda gpu cpu python torch train test main work workspace home data "
    b"project projects opt usr tmp daemon bin mail lp gdm sddm lightdm dbus messagebus syslog systemd sshd avahi "
    b"colord rtkit cups munge slurm mysql postgres redis nginx www-data polkitd geoclue whoopsie kernoops chrony "
    b"ntp rpc rpcuser statd libvirt-qemu"
)
COMMON = frozenset(_MANY.split())
"""Names that so many accounts and machines have that they say nothing; all else has them too."""

_VARIABLE = re.compile(rb"(?:^|[\0\n])[A-Za-z_][\w.%()]*=")
_USUAL = re.compile(rb"(?:^|\n)(?:PATH|HOME|PWD|USER|LOGNAME|SHELL|LANG|LC_[A-Z]+|TERM|HOSTNAME|LD_LIBRARY_PATH)=")
_TELLING = re.compile(
    rb'(?:^|[\0\n;])(?:(HOSTNAME|COMPUTERNAME|SLURMD_NODENAME|SLURM_SUBMIT_HOST|PBS_O_HOST)|(HOME|USERPROFILE)'
    rb'|USER|LOGNAME|USERNAME|SUDO_USER|SLURM_JOB_USER|PBS_O_LOGNAME)="?([^\0\n;"]+)'
)  # fmt: skip
_NAME = re.compile(rb"(?=.*[A-Za-z\x80-\xff]|.{5})[\w.\-+ \x80-\xff]+")
_IN_HOME = rb"[/\\]{1,2}(?:home|[Uu]sers)[/\\]{1,2}"
_COMPONENT = rb"[^/\\\0-\x20:;,\"'<>|()\[\]{}=&?*$!`\x7f]+"
_HOME = re.compile(rb"(" + _IN_HOME + rb")([^/\\\0-\x1f:;,\"'<>|*?\x7f]+(?=\\)|" + _COMPONENT + rb")")
_HOME_IN_BINARY = re.compile(rb"(" + _IN_HOME + rb")([\w.\-+@]+)(?=[/\\\0]|\Z)")
_HOME_MARKS = (b"home/", b"home\\", b"sers/", b"sers\\")
_CONTROL = re.compile(rb"[\0-\x08\x0b\x0c\x0e-\x1f\x7f]")


class Redaction:
    """What is taken out of one capture, and the names that it gave away.

    Attributes:
        counts: Values emptied, by kind; and of ``MENTION`` the texts in which something was overwritten.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.counts: Counter[str] = Counter(dict.fromkeys(KINDS, 0))
        self._names: set[bytes] = set()

    def take(self, kind: str, value: bytes) -> bytes:
        """Empty a value of a kind, and learn the names in it."""
        self.learn(kind, value)
        self.counts[kind] += bool(value)
        return b""

    def learn(self, kind: str, value: bytes) -> None:
        """Learn the names that a value of a kind gives away."""
        if kind == HOST:
            self._learn_host(value)
        elif kind == USER:
            self._learn_user(value)
        elif kind == ENVIRONMENT:
            self._learn_environment(value)
        elif kind == COMMAND:
            for _, name in _HOME.findall(value):
                self._learn(name)

    def names(self) -> Names:
        """Return the names learned so far."""
        return Names(self._names)

    def overwrite(self, names: Names, text: bytes) -> bytes:
        """Overwrite names in a text, or in bytes that are none, and count it if there were some."""
        made = names.overwritten(text) if is_text(text) else names.overwritten_in_binary(text)
        self.counts[MENTION] += made != text
        return made

    def _learn_environment(self, value: bytes) -> None:
        for host, home, found in _TELLING.findall(value):
            if host:
                self._learn_host(found)
            elif not home:
                self._learn_user(found)
            elif len(parts := re.split(rb"[/\\]+", found.strip(b"/\\"))) > 1:
                self._learn(parts[-1])

    def _learn_host(self, value: bytes) -> None:
        self._learn(value)
        self._learn(value.partition(b".")[0])

    def _learn_user(self, value: bytes) -> None:
        for part in re.split(rb"[\\@]", value):
            self._learn(part)

    def _learn(self, name: bytes) -> None:
        name = name.strip()
        if _SHORTEST <= len(name) <= _LONGEST and name.lower() not in COMMON and _NAME.fullmatch(name):
            self._names |= {name, name.lower(), name.upper()}
        if len(self._names) > MOST_NAMES:
            raise CorruptTraceError(f"tells more than {MOST_NAMES} names of hosts and users", path=self.path)


class Names:
    """Names of hosts and users, to be found in texts.

    Attributes:
        marks: Where none of these stands, there is nothing to overwrite.
    """

    def __init__(self, names: Iterable[bytes]) -> None:
        self._names = sorted(names, key=lambda n: (-len(n), n))
        self.marks = (*self._names, *_HOME_MARKS)

    def marked(self, text: bytes) -> bool:
        """Whether there may be something to overwrite."""
        return any(mark in text for mark in self.marks)

    def places(self, text: bytes) -> Iterator[tuple[int, int]]:
        """Yield where marks begin and end."""
        for mark in self.marks:
            at = text.find(mark)
            while at >= 0:
                yield at, at + len(mark)
                at = text.find(mark, at + 1)

    def overwritten(self, text: bytes) -> bytes:
        """Overwrite the names in a text that are whole words, and home folders."""
        return _HOME.sub(_filled_home, _filled(self._words, text))

    def overwritten_in_binary(self, data: bytes) -> bytes:
        """Overwrite what stands among numbers and surely is a name."""
        return _HOME_IN_BINARY.sub(_filled_home, _filled(self._long_words, data))

    @functools.cached_property
    def _words(self) -> re.Pattern[bytes] | None:
        return _whole_words(self._names)

    @functools.cached_property
    def _long_words(self) -> re.Pattern[bytes] | None:
        return _whole_words([n for n in self._names if len(n) >= LONG])


def is_text(value: bytes) -> bool:
    """Whether bytes are printable UTF-8."""
    if _CONTROL.search(value):
        return False
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def is_environment(text: bytes) -> bool:
    """Whether a text is the environment of a process: ``NAME=value`` joined by NUL, or by newline where SQLite got it.

    A NUL stands in no name. Without one, a text counts if most of its lines are variables and one is of the usual ones.
    """
    if b"\0" in text:
        return bool(_VARIABLE.search(text))
    return bool(_USUAL.search(text)) and len(_VARIABLE.findall(text)) * 2 > text.rstrip(b"\n").count(b"\n") + 1


def without_folder(path: bytes) -> bytes:
    """Return the name of a program without the folder before it."""
    return re.sub(rb"(?s)^(?:[/.~]|[A-Za-z]:[\\/]|\\\\).*[/\\]", b"", path)


def is_local(device: bytes) -> bool:
    """Whether a device is named for being the machine itself, and not by its host name."""
    return device.startswith(b"Local") or not device


def _whole_words(names: list[bytes]) -> re.Pattern[bytes] | None:
    return re.compile(rb"(?<!\w)(?:" + b"|".join(map(re.escape, names)) + rb")(?!\w)") if names else None


def _filled(names: re.Pattern[bytes] | None, text: bytes) -> bytes:
    return text if names is None else names.sub(lambda found: FILL * len(found[0]), text)


def _filled_home(found: re.Match[bytes]) -> bytes:
    name = found[2]
    return found[1] + (name if name.lower() in COMMON else FILL * len(name))
