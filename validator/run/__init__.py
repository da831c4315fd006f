"""What LLaMA-Factory would really do with a recipe: every setting with its default, the model, machine, data and
checkpoints that it names, and what the run then needs of memory, disk and time.

The room turns keys of a recipe into the terms of physics/ and predicts. It does not know rules or findings, and
it changes no recipe."""
