"""A name becomes a model: the catalogue, Hub ids, config.json, and what hosts have of it."""
