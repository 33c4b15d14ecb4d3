"""The dashboard: a Dash app over the runs of a directory."""
