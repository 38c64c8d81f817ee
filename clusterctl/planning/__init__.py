"""Does a model fit, in which layout, for how many requests at once: told before anything starts.

Start reading at `planner.plan`, the one answer that `fit` and `serve` give. Pure, apart from what
`measured` and `cluster_hardware` ask the head; docs/fit.md explains where the numbers come from.
"""
