"""Pure functions from a data frame to a Plotly figure."""
