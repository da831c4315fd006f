"""LLaMA-Factory recipes that are known to run, and the validator that keeps them true.

Where code, comments or manual pages cite a package and name no release, the one in data/seen.yaml is meant. A release
is named only where it is itself the fact.
"""

__version__ = "0.2.0"
