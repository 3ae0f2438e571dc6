"""The planners of other systems, on our tables, prices and supply."""
