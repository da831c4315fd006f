"""The program that runs a job on its nodes, the lock of an output folder, and the test of a checkpoint's completeness.

`lmf-recipes submit` copies this folder to where the nodes see it, and jobs start it by `python3 FOLDER`. It imports
only itself and Python's standard library, from release 3.6 on, which RHEL 8 has."""
