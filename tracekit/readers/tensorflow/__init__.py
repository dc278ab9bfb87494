"""Decode the graphs in files of TensorFlow into nodes and edges."""
