"""Noise: load on CPUs, memory, disks and networks with a dose, beside a program or alone."""
