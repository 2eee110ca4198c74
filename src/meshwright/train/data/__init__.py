"""Text to tokens, samples and a rank's share of a batch."""
