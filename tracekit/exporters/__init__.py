"""Built-in exporters. The module or package of each format defines the constant ``EXPORTER``."""
