"""Runs of one command under several conditions, interleaved, and the statistics over them."""
