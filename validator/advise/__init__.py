"""Where every GiB goes, and the nearest changes that fit."""
