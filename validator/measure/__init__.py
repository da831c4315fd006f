"""A few real steps on this machine, timed, and what they correct from then on."""
