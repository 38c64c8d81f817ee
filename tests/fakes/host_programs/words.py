"""The first of two modules that tests send to a host."""

KEY = "echo"
