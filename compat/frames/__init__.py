"""Raw frames, good and bad, and what a broker does with them."""
