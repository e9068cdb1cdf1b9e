"""Offsets for all storages of a program in one arena: problem, solvers, check."""
