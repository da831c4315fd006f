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
# LLaMA-Factory releases before those, newest first, of which the templates alone are read.
EARLIER = ("0.9.2", "0.9.1", "0.9.0")
DEEPSPEED = "0.18.4"
# Older releases, newest first: each at which a key of a strict block came, and the oldest that is compared.
OLDER_DEEPSPEED = (
    *("0.18.3", "0.18.0", "0.17.6", "0.17.5", "0.17.2", "0.16.6", "0.16.4", "0.16.2", "0.16.0", "0.14.3", "0.14.0"),
)
# The transformers releases that model_classes.json is read from, oldest first: the first of every minor version, and
# a later one in which a model type came. Add newer ones at the end: those before are not read again.
MODEL_CLASSES = (
    *(f"4.{minor}.0" for minor in range(37, 46)), "4.46.1", "4.47.0", "4.48.0", "4.49.0", "4.50.0", "4.51.0", "4.51.3",
    "4.52.1", "4.53.0", "4.54.0", "4.55.0", "4.56.0", "4.57.1", *(f"5.{minor}.0" for minor in range(10)), "5.10.1",
    *(f"5.{minor}.0" for minor in range(11, 25)),
)  # fmt: skip


def pair(release: str, transformers: str) -> str:
    """Name of a LLaMA-Factory release together with a transformers release."""
    return f"{release}/{transformers}"
