"""Pure arithmetic: numbers in, numbers out, no knowledge of files or layouts."""
