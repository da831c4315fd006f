"""From a checked recipe to llamafactory-cli."""
