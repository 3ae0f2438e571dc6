"""Requests drawn at random: arrivals, lengths, generators fitted to traces."""
