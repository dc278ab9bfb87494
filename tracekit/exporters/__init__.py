"""Exporters: one module or folder per format, each of which defines ``EXPORTER = Exporter(...)``."""
