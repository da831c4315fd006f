"""The run that LLaMA-Factory would make of a recipe: every setting with its default, the model, machine, data and
checkpoints that the recipe names, and the memory, disk and time that the run needs.

The room turns keys of a recipe into the terms of physics/ and predicts. It does not know rules or findings, and it
changes no recipe."""
