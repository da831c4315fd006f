"""What a recipe's data sets hold and what LLaMA-Factory makes of them: the `data` command."""
