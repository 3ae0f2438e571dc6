"""Request traces: files, statistics, operations on them."""
