"""Exact placement by dynamic programming."""
