"""Freezing: models as inference programs with their weights inside."""
