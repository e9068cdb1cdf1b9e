"""Which Python state a recorded call read."""
