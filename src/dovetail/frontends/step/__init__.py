"""A whole training step: what it reaches in Python, and how its program is made and run."""
