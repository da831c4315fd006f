"""What LLaMA-Factory makes of one row of a data set: what its entry in dataset_info.json means, the turns that the
row becomes, whether it is trained, dropped or ends the run, its images, videos and audios, and the entry that
rows without one would need.

Standard library only, so that `check`, `plan` and `copy` can ask. This room opens no data file and knows no recipe."""
