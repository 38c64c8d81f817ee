"""A registry client: the operator's machine needs no container engine.

Protocol: OCI distribution specification 1.1; tokens as Docker's registry documents them.
"""
