"""Plan, predict, simulate, run and prove the training of large language models."""
