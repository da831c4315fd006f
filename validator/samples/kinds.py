"""What rows are for: the kinds by their usual stage."""

# Stages that rows of a form can be trained in; the first is the usual one.
STAGES = {"sft": ("sft", "ppo", "pt"), "dpo": ("dpo", "rm"), "kto": ("kto",), "pt": ("pt",)}
# What messages call them.
KINDS = {"sft": "prompts with one answer", "dpo": "preference pairs", "kto": "answers with a label", "pt": "plain text"}
