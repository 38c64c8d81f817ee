"""Model weights as directories: their files, which hosts have them, and the hubs they come from."""
