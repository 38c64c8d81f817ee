"""Model weights as directories: what is in them, who has it, where it comes from."""
