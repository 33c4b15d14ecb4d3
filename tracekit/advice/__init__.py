"""From findings to settings with a value, a gain and a reason."""
