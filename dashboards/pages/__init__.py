"""The pages of the dashboard. The list of them is in `registry`."""
