"""What several test modules share: recorded machines, real programs to ask, recipes to start from."""
