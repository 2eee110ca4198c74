"""What this machine does: kernels, slices of the trainer's own step and collectives, timed and kept as a hardware profile."""
