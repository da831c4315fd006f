"""A recipe resolved: what LLaMA-Factory would really run, on which machine, and what that needs."""
