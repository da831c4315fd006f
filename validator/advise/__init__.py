"""Advice on one run: where every GiB and second goes, the nearest changes that fit, and what free memory would buy.

levers has what can be decided about a run, changes and spare_memory try it, explanation is the answer of
`explain`. A change is judged by the same formulas and rules as any other run; this room has none of its own."""
