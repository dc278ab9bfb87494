"""What readers of TensorFlow's files share: graphs, taken apart into nodes and edges."""
