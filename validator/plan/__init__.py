"""What fits a machine, and a recipe of it."""
