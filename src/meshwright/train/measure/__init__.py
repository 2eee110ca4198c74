"""Measuring this machine: kernels, slices of the trainer's own step and collectives are timed and kept as a hardware profile."""
