"""Fine-tuning: conversations to samples, and adapters."""
