"""What looking up names costs a host and its node container, and what is wrong with it."""
