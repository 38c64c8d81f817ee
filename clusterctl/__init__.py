"""Bare Linux GPU hosts become a Ray cluster that serves models with vLLM, over SSH."""

__version__ = "0.2.0"
