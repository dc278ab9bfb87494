"""Loops in C, compiled to WebAssembly, that run in a sandbox.

Each program is a C file, and a Python module with the same name copies arrays into the sandbox, calls the program and
returns its results. The compiled program is part of the repository, so no compiler has to be installed.
"""
