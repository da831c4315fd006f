"""What the data sets of a recipe hold, and what LLaMA-Factory makes of their rows.

Answers which entry of dataset_info.json rows need, what becomes of each row, how many tokens a run trains on and
what is wrong with its data; all of it without loading a model. It knows nothing of memory or devices, except for
the report, which asks the run for them. pyarrow is imported by arrow_rows alone, tokenizers by token_counting."""
