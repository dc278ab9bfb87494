"""Only the package ``tracekit.system.platform`` uses what some operating systems lack."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

import pytest
from tests.conftest import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOM = "tracekit/system/platform/"
MODULES = {
    *(
        "fcntl",
        "resource",
        "pwd",
        "grp",
        "termios",
        "tty",
        "pty",
        "posix",
        "syslog",
        "crypt",
        "spwd",
        "nis",
        "readline",
    ),
    *("msvcrt", "nt", "winreg", "winsound", "_winapi", "ctypes", "platform"),
}
NAMES = {
    "os": {
        *("pread", "preadv", "pwrite", "pwritev", "readv", "writev", "sendfile", "copy_file_range", "splice"),
        *("posix_fallocate", "posix_fadvise", "posix_spawn", "lockf", "memfd_create", "eventfd", "pidfd_open", "sync"),
        *("fork", "forkpty", "register_at_fork", "kill", "killpg", "getpgrp", "getpgid", "setpgid", "setsid", "getsid"),
        *("wait", "wait3", "wait4", "waitid", "waitpid", "nice", "getpriority", "setpriority", "getloadavg"),
        *("getuid", "geteuid", "getgid", "getegid", "getgroups", "getlogin", "setuid", "chown", "fchown", "lchown"),
        *(
            "sched_getaffinity",
            "sched_setaffinity",
            "sched_yield",
            "sysconf",
            "uname",
        ),
        *(
            "statvfs",
            "fstatvfs",
            "mkfifo",
            "mknod",
            "link",
            "symlink",
            "readlink",
            "fchmod",
            "lchmod",
            "fchdir",
            "chroot",
        ),
        *(
            "pathconf",
            "confstr",
            "openpty",
            "ttyname",
            "ctermid",
            "tcgetpgrp",
            "startfile",
            "name",
            "pipe2",
            "login_tty",
        ),
        *("get_blocking", "set_blocking", "getxattr", "setxattr", "listxattr", "removexattr", "supports_dir_fd"),
        *("unshare", "setns", "fdatasync", "major", "minor", "makedev", "add_dll_directory"),
    },
    "signal": {
        *("SIGKILL", "SIGHUP", "SIGQUIT", "SIGALRM", "SIGPIPE", "SIGUSR1", "SIGUSR2", "SIGCHLD", "SIGSTOP", "SIGTSTP"),
        *("SIGCONT", "SIGBREAK", "CTRL_C_EVENT", "CTRL_BREAK_EVENT", "alarm", "setitimer", "pause", "pthread_kill"),
        *("pthread_sigmask", "sigwait", "siginterrupt", "SIGBUS", "SIGWINCH"),
    },
    "sys": {"platform", "getwindowsversion", "winver", "getfilesystemencoding"},
    "tempfile": {"TemporaryFile", "NamedTemporaryFile", "SpooledTemporaryFile"},
    "time": {"tzset", "clock_gettime", "CLOCK_MONOTONIC"},
    "socket": {"AF_UNIX"},
    "select": {"poll", "epoll", "kqueue"},
    "mmap": {"MADV_DONTNEED", "MAP_PRIVATE", "MAP_SHARED", "PROT_READ"},
}
METHODS = {"madvise", "as_uri", "symlink_to", "hardlink_to", "readlink", "is_mount", "lchmod"}
OPTIONS = {"start_new_session", "preexec_fn", "process_group", "creationflags", "startupinfo", "pass_fds", "dir_fd"}
FLAGS = re.compile(r"O_(?!RDONLY|WRONLY|RDWR|CREAT|EXCL|TRUNC|APPEND)[A-Z]+")
FOLDERS = re.compile(r"/(?:proc|sys|dev)(?:/|$)")
ALLOWED = {
    ("tracekit/native/sandbox.py", "ctypes"): "the address of the memory of a sandbox",
    ("tracekit/mcp/roots.py", "/dev"): "folders from which no capture is read",
    ("tracekit/mcp/roots.py", "/proc"): "folders from which no capture is read",
    ("tracekit/mcp/roots.py", "/sys"): "folders from which no capture is read",
}
SUSPECT = re.compile(
    r"\bos\.(?!path|environ|fspath|PathLike)|[(]os,|from os import|\bsignal\b|sys\.platform|getwindows|tempfile\."
    r"|/(?:proc|sys|dev)\b|mmap\.|"
    + "|".join(sorted(METHODS | OPTIONS))
    + r"|import (?:\w+, )*(?:"
    + "|".join(sorted(MODULES))
    + r")\b"
    r"|write_text|open.*[\"'][wax]t?[\"']|AF_UNIX|kqueue|epoll|clock_gettime|[\"']fork[\"']"
)
"""What occurs in every module that breaks the rule, so that only these modules are parsed."""


def find_special_uses(tree: ast.AST) -> Iterator[str]:
    """Yield what a module uses that only some systems have."""
    texts = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # docstrings
    for node in ast.walk(tree):
        yield from find_special_names(node)
        match node:
            case ast.Call(ast.Attribute(ast.Name("os"), "open"), [first, *_]) if ast.unparse(first) != "os.devnull":
                yield "open"  # in text mode on Windows
            case ast.Call(ast.Attribute(attr="get_context" | "set_start_method"), [ast.Constant("fork"), *_]):
                yield "fork"
            case ast.Call(ast.Name("open") | ast.Attribute(attr="open" | "write_text")) if writes_line_ends(node):
                yield "newline"  # Windows writes two characters
            case ast.keyword(arg=str(name)) if name in OPTIONS:
                yield name
            case ast.Constant(str(text)) if FOLDERS.match(text) and id(node) not in texts:
                yield text


def find_special_names(node: ast.AST) -> Iterator[str]:
    """Yield the modules, functions and constants that a node names and that only some systems have."""
    match node:
        case ast.Import(names):
            yield from MODULES & {name.name.partition(".")[0] for name in names}
        case ast.ImportFrom(module=str(module), names=names, level=0):
            yield from MODULES & {module.partition(".")[0]}
            yield from (name.name for name in names if is_special(module, name.name))
        case ast.Attribute(ast.Name(owner), name) if is_special(owner, name):
            yield name
        case ast.Attribute(attr=name) if name in METHODS:
            yield name
        case ast.Call(ast.Name("getattr" | "hasattr"), [ast.Name(owner), ast.Constant(str(name)), *_]):
            yield from [name] if is_special(owner, name) else []


def writes_line_ends(call: ast.Call) -> bool:
    """Return whether a call writes text with the line ends of the system."""
    modes = [a.value for a in [*call.args, *(k.value for k in call.keywords)] if isinstance(a, ast.Constant)]
    opens_text = any(isinstance(m, str) and re.fullmatch("[wax]t?[+]?", m) for m in modes)
    is_write = isinstance(call.func, ast.Attribute) and call.func.attr == "write_text"
    return (opens_text or is_write) and not any(k.arg == "newline" for k in call.keywords)


def is_special(module: str, name: str) -> bool:
    return name in NAMES.get(module, ()) or (module == "os" and FLAGS.fullmatch(name) is not None)


@pytest.mark.parametrize(
    ("code", "use"),
    [
        ("import fcntl", "fcntl"),
        ("from os import pread", "pread"),
        ("os.geteuid()", "geteuid"),
        ("hasattr(os, 'fork')", "fork"),
        ("getattr(os, 'O_NOFOLLOW', 0)", "O_NOFOLLOW"),
        ("os.O_CLOEXEC", "O_CLOEXEC"),
        ("os.open(path, os.O_RDONLY)", "open"),
        ("process.send_signal(signal.SIGKILL)", "SIGKILL"),
        ("subprocess.Popen([], start_new_session=True)", "start_new_session"),
        ("Path('/proc/self')", "/proc/self"),
        ("tempfile.TemporaryFile()", "TemporaryFile"),
        ("path.as_uri()", "as_uri"),
        ("multiprocessing.get_context('fork')", "fork"),
        ("sys.platform == 'linux'", "platform"),
        ("path.write_text(text, 'utf-8')", "newline"),
        ("path.open('w', encoding='utf-8')", "newline"),
    ],
)
def test_the_search_works(code: str, use: str) -> None:
    assert [*find_special_uses(ast.parse(code))] == [use]
    assert SUSPECT.search(code)


def test_what_every_system_has_may_be_used() -> None:
    code = "'''In /proc.'''\nos.open(os.devnull, os.O_RDWR); os.fsync(1); signal.SIGINT; os.path.exists('/process')"
    code += "; path.write_text(text, 'utf-8', newline='\\n'); path.open('wb'); open(path)"
    assert [*find_special_uses(ast.parse(code))] == []


def test_only_one_package_uses_what_some_systems_lack() -> None:
    uses = set()
    compiler = ROOT / "tracekit" / "native" / "compile.py"  # not in the wheel
    for path in sorted({*(ROOT / "tracekit").rglob("*.py")} - {compiler}):
        name = path.relative_to(ROOT).as_posix()
        if not name.startswith(ROOM) and SUSPECT.search(text := path.read_text("utf-8")):
            uses.update((name, use) for use in find_special_uses(ast.parse(text)))
    assert uses == set(ALLOWED)
