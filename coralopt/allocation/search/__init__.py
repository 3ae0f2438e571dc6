"""The search for an allocation with a proven gap."""
