"""Benchmarks: dovetail side by side with eager and with other compilers, measured in one run."""
