"""What a host runs to get files from a hub by itself: sent by `transport.python`."""
