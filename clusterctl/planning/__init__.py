"""Forecast whether a model fits, in which layout, and for how many concurrent requests.

Start reading at `planner.plan`, which both `fit` and `serve` use. Pure, except where
`reported` and `cluster_hardware` contact the head; docs/fit.md gives the sources of the numbers.
"""
