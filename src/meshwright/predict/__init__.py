"""A job and its layouts priced: columns for a search, a forecast for a person."""
