"""Decode the graphs in TensorFlow's files into nodes and edges."""
