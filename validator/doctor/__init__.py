"""Whether this machine is fit for a run: one line for each thing looked at, none of which changes anything."""
