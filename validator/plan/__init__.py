"""Plans: how to train a model on a machine, which model to take, which machine would suffice.

answer has the two questions, search the runs that are tried, plan_json the answer as JSON keys. A plan is a new
recipe: memory, time and rules judge it like a recipe that somebody wrote. How it is printed is known to output/."""
