"""The benchmarks of MLPerf, and our own, that a run may be logged as."""
