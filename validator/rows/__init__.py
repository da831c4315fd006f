"""What LLaMA-Factory makes of one row of a data set: what its entry in dataset_info.json means, the turns that the
row becomes, whether it is trained, dropped or ends the run, its images, videos and audios, and the entry that
rows without one would need.

Also the readers of JSON, CSV and text, which `check` asks for the first rows of a file and `data` for all of them.

No compiled package is needed, so that `check`, `plan` and `copy` can ask. This room opens no data file: it reads
streams; and it knows no recipe."""
