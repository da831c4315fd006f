"""Rules: what is wrong with a run, one function a rule, whose docstring is its manual page.

A rule takes a run, and what it is about (subjects), and yields places and messages. all_rules has the list of them
and their pages, rule the decorator, problems what counts against a run that is only proposed. Rules ask the run what
LLaMA-Factory makes of a recipe and do not read keys a second time. They know no line or column of a file and no option
of a command: check/ locates, suppresses and sorts what they find."""

from validator.rules import all_rules as all_rules  # importing the room declares every rule
