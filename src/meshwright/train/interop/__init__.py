"""Other people's formats: Hugging Face folders."""
