"""Exporters: one module or folder a format, each ending in ``EXPORTER = Exporter(...)``."""
