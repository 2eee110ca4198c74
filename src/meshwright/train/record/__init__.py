"""What a run writes: its folder, the MLPerf log, times and energy."""
