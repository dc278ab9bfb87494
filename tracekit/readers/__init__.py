"""Readers, with one module or package per format. Each of them defines ``READER = Reader(...)``."""
