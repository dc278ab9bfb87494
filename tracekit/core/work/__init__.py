"""Derive the work of ops from the shapes of their inputs: floating-point operations and bytes."""
