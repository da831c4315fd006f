"""Rules by family. A rule is a function of a Job; check.py lists the families."""
