"""Pure arithmetic: numbers in, numbers out. These modules read no files and know no layouts."""
