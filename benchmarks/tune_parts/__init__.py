"""Parts of `benchmarks/tune.py`: what is measured, and the processes that measure it."""
