"""Frames to predictions, pure: thread plans and the guidelines that can be read off them."""
