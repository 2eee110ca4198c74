"""Checks other people's numbers: computes the results of MLPerf logs again, and compares claims with arithmetic and measured runs."""
