"""Runs of pointwise operators as machine code, with eager's bits: see docs/native.md."""
