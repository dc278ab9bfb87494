"""Decoders of TensorFlow graphs into nodes and edges, shared by the readers of graph files and event files."""
