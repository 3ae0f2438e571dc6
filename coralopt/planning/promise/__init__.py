"""Plans that hold their SLOs for a share of the requests, at least cost over a family of plans."""
