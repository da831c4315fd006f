"""What a run needs on its node: the lock of its output folder, checkpoints that are whole, and the program of a job.

`lmf-recipes submit` copies this folder to where the nodes see it, and jobs start it by `python3 FOLDER`. It imports
only itself and Python's standard library, from release 3.6 on, which RHEL 8 has."""
