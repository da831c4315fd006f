"""Results as text, JSON, GitHub annotations, SARIF or an HTML page.

Each module turns the result of one command, or of one format, into a string; what the strings say is decided in
the rooms that computed the results. This room knows no recipe key and no rule."""
