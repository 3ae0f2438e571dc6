"""Every name of a valid scenario document replaced by facts."""
