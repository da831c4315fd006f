"""LLaMA-Factory recipes that are known to run, and the validator that keeps them true."""

__version__ = "0.1.0"
