"""What LLaMA-Factory makes of the rows of a data set, and the form that rows have."""
