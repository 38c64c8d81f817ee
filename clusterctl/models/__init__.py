"""Resolve a name to a model: the catalogue, Hub ids, config.json, and files found on hosts."""
