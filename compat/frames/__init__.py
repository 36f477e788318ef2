"""Raw frames, valid and invalid, and the reaction of a broker."""
