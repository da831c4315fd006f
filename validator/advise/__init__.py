"""Advice on one run: where every GiB and second goes, the nearest changes that fit, and what free memory would buy.

changes has what levers/ finds, judged by the same formulas and rules as any other run; explanation is the answer of
`explain`. This room has no formula and no rule of its own."""
