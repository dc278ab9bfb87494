"""Exporters, with one module or package per format. Each of them defines a constant ``EXPORTER``."""
