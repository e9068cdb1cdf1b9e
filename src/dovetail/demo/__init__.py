"""A two-minute demonstration: train a small GPT eagerly and compiled, and compare time, memory and results."""

from dovetail.demo.run import DemoConfig, DemoResult, run_demo

__all__ = ["DemoConfig", "DemoResult", "run_demo"]
