"""Formats of other software: Hugging Face folders."""
