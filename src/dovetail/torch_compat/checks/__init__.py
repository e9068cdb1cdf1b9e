"""The self-checks: one file for each file of `torch_compat`, one function for each wrapper in it."""
