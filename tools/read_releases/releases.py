"""The releases the tables are made from."""

# LLaMA-Factory release -> transformers releases it admits (extras/misc.py check_dependencies), newest first: the newest
# one admitted, and each older one at which a key came, went or changed.
TRANSFORMERS = {
    "0.9.5": ("5.6.0", "5.2.0", "5.0.0", "4.57.1"),
    "0.9.4": ("4.57.1", "4.52.4"),
    "0.9.3": ("4.52.4",),
}
# LLaMA-Factory release -> the oldest transformers release it admits, from the same place.
OLDEST = {"0.9.5": "4.55.0", "0.9.4": "4.51.0", "0.9.3": "4.45.0"}
NEWEST = next(iter(TRANSFORMERS))
DEEPSPEED = "0.18.4"


def pair(release: str, transformers: str) -> str:
    """Name of a LLaMA-Factory release together with a transformers release."""
    return f"{release}/{transformers}"
