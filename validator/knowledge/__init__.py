"""Rows of facts: models, families, devices, networks, releases, chat templates, published guidance, and what nodes
need beside a recipe. data/ holds the rows; the modules look them up by the names that people write.

The room answers what is known of a thing with a name. It does not know any recipe's settings or what a run does."""
