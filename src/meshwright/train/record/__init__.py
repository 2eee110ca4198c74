"""What a run writes down: its folder, MLPerf's log, times and energy."""
