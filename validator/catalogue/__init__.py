"""The recipes and DeepSpeed files that come with the package: list them, look one up, copy it, compare it.

This room answers which recipes there are, which file a name on the command line stands for, what a copy has to
bring with it, and what a copy changed. It computes no memory or time itself: it asks the run. It prints nothing."""
