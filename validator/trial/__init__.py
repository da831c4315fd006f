"""A job whose live memory is simulated: for models that no formula knows, and beside the formulas for the others.

What is asked is a `Cell` of the room `simulate`, answered by a process of its own, in which torch is imported and
changed; answers are kept in the user's cache folder. Nothing here is imported but on request.
"""
