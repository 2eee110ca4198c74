"""Other people's numbers on our scales: MLPerf logs recomputed, claims held against arithmetic and against what was measured."""
