"""Files as they are written, with every position; no meaning of any key."""
