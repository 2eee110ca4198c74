"""What `benchmarks/nccl.py` does, part by part."""
