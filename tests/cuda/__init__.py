"""Tests that need a GPU: skipped where there is none.

`DOVETAIL_TEST_DEVICE=cpu` runs their code on the CPU, which shows mistakes in the tests themselves.
"""
