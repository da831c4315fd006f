"""A file as text: YAML as OmegaConf reads it, the header block, the place of every value, edits that keep all other
bytes, and writing a file whole or not at all. Also where files lie: the catalogue, the repository, the user's
folders.

The room answers what a file says and where it says so. It does not know what any key means, which models or
devices there are, or what LLaMA-Factory makes of a value."""
