"""Transactional messages: kept back until their producer says how the transaction ended; it is asked if it does not."""
