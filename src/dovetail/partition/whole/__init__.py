"""Which values one whole program keeps, and which it computes again, under a limit in bytes."""
