"""Every promise about speed, measured beside the peer that it is made against: `python -m bench`."""
