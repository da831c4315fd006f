# A node that dies ends the training long before SLURM knows of it
if [ "$code" -ne 0 ] && [ "$(newest)" != "$before" ]; then again "the training ended with exit code $code"; fi
