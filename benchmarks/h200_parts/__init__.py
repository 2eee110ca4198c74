"""The parts of `benchmarks/h200.py`: cases, children that measure, and tables."""
