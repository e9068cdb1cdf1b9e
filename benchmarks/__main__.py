"""`python -m benchmarks`: see `benchmarks/run.py`."""

from benchmarks.run import app

if __name__ == "__main__":
    app()
