"""Tables by epoch: demand and availability."""
