"""`python -m validator` is `lmf-recipes`."""

from validator.cli import main

main()
