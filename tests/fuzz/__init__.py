"""Structure-aware fuzzing of everything that lmf-recipes reads: CONTRIBUTING.md says how it is used."""
