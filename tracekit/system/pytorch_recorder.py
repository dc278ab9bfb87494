"""Run a Python program under the PyTorch profiler, and write its trace.

This file is not imported by tracekit. The Python of the program executes it, in which tracekit need not be installed::

    python pytorch_recorder.py OUT MODE TARGET [ARGUMENT...]

``MODE`` is ``file``, ``module`` or ``code``, and ``TARGET`` is the path, the name of the module or the code. The exit
status is ``NO_TORCH`` if PyTorch cannot be imported. Otherwise, it is that of the program, whose trace is also written
if the program fails or is interrupted.
"""

import sys

FOLDER = sys.path.pop(0)  # the folder of this file, which the program must not see

import os  # noqa: E402
import runpy  # noqa: E402

NO_TORCH = 86


def run(mode: str, target: str) -> None:
    """Run the program as Python would: with the same first entry of the path, and as the module ``__main__``."""
    if mode == "file":
        sys.path.insert(0, os.path.dirname(os.path.abspath(target)))  # noqa: PTH100, PTH120 - as Python does
        runpy.run_path(target, run_name="__main__")
    elif mode == "module":
        sys.path.insert(0, os.getcwd())  # noqa: PTH109 - as Python does
        runpy.run_module(target, run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, "")
        exec(compile(target, "<string>", "exec"), {"__name__": "__main__"})  # noqa: S102 - the program of the user


def main() -> None:
    """Record the program, and write the trace."""
    out, mode, target, *arguments = sys.argv[1:]
    try:
        from torch import profiler  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        sys.exit(NO_TORCH)
    sys.argv = [target if mode == "file" else "-m" if mode == "module" else "-c", *arguments]
    recording = profiler.profile(activities=profiler.supported_activities(), record_shapes=True)
    recording.start()
    try:
        run(mode, target)
    finally:
        recording.stop()
        recording.export_chrome_trace(out)


if __name__ == "__main__":
    main()
