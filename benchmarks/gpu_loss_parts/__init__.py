"""Parts of `benchmarks/gpu_loss.py`."""
