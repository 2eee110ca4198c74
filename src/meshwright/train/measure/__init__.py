"""What this machine does: kernels, slices of the trainer's own step and collectives, timed and kept as a hardware profile."""

from meshwright.train.measure.machine import Asked, asked_of, measure

__all__ = ["Asked", "asked_of", "measure"]
