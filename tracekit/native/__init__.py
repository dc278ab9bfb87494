"""Loops in C, compiled to WebAssembly, that run in a sandbox.

Each program is a C file. A Python module, which may be in another package, copies arrays into the sandbox, calls it and
returns its results. The compiled program is part of the repository, so no compiler has to be installed.
"""
