"""Entry points of other projects, with their signatures, working."""
