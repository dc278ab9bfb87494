"""Decode the graphs in TensorFlow files into nodes and edges."""
