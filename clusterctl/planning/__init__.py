"""Does a model fit, how many requests at once, on which GPUs: computed before anything starts.

Pure: a model description, hardware and options go in, a plan comes out. Only `config_files` reads
from disk. Start reading at `plan.fit`; docs/fit.md explains where the numbers come from.
"""
