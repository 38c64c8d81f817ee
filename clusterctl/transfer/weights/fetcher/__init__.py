"""What a host runs to get files from a hub by itself. Python 3.6, standard library only."""
