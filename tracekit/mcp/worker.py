"""The worker process, which answers questions that it reads from its standard input, one after another.

Each message is the number of its bytes, in four bytes, and a JSON object. The first message contains the settings.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import struct
import sys
import threading
from typing import TYPE_CHECKING, Any, BinaryIO

from tracekit.system.platform.processes import exit_with_group

if TYPE_CHECKING:
    from tracekit.mcp.questions import Questioner

HEADER = struct.Struct(">I")
MAX_MESSAGE = 64 << 20
"""Maximum number of bytes of a message."""
READY = {"ready": True}


def read_message(file: BinaryIO) -> Any:
    """Return the next message, or None at the end of the file."""
    header = file.read(HEADER.size)
    if len(header) < HEADER.size:
        return None
    (size,) = HEADER.unpack(header)
    data = file.read(size)
    return json.loads(data) if len(data) == size else None


def encode_message(value: Any) -> bytes:
    """Return the bytes of a message."""
    data = json.dumps(value, ensure_ascii=True, separators=(",", ":")).encode("ascii")
    return HEADER.pack(len(data)) + data


def main() -> None:
    """Answer questions until the standard input ends, and then end this process and its children."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    source, target = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    settings = read_message(source)
    if settings is None:
        return
    messages: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=_read_messages, args=(source, messages), daemon=True).start()
    questioner = _create_questioner(settings)
    _write(target, READY)
    while True:
        message = messages.get()
        _write(target, _answer(questioner, message))


def _read_messages(source: BinaryIO, messages: queue.SimpleQueue[Any]) -> None:
    """Put the messages into a queue. At the end of the input, the server has ended, so this process ends at once."""
    try:
        while (message := read_message(source)) is not None:
            messages.put(message)
    finally:
        exit_with_group()


def _write(target: BinaryIO, value: Any) -> None:
    data = encode_message(value)
    if len(data) > MAX_MESSAGE:
        data = encode_message({"error": "the answer is too large\nHint: ask for fewer rows"})
    target.write(data)
    target.flush()


def _create_questioner(settings: dict[str, Any]) -> Questioner:
    from tracekit.mcp.private_text import PrivateTextMask
    from tracekit.mcp.questions import Questioner, QuestionLimits
    from tracekit.mcp.roots import AllowedFolders

    folders = AllowedFolders(settings["roots"])
    mask = PrivateTextMask(folders, bytes.fromhex(settings["key"]), is_active=not settings["private"])
    return Questioner(folders, mask, QuestionLimits(settings["query_seconds"], settings["query_memory_bytes"]))


def _answer(questioner: Questioner, message: dict[str, Any]) -> dict[str, Any]:
    """Return the answer to a question, or the text of its error. Errors in tracekit do not end the worker."""
    from tracekit.errors import TracekitError

    try:
        return {"answer": questioner.answer(message["question"], message["arguments"])}
    except TracekitError as e:
        return {"error": questioner.mask_error(e)}
    except OSError as e:
        return {"error": f"the capture cannot be read: {e.strerror or type(e).__name__}"}
    except MemoryError:
        return {"error": "the answer needs more memory than there is\nHint: ask for less, such as a shorter time"}
    except BaseException as e:  # noqa: BLE001 - polars raises exceptions of Rust that are no Exception
        print(f"tracekit mcp: {type(e).__name__}", file=sys.stderr)  # noqa: T201
        return {"error": f"the question cannot be answered, because of an error in tracekit ({type(e).__name__})"}


if __name__ == "__main__":
    main()
