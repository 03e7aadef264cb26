"""`probe.self_check`: does this machine's torch and device do what probe_nb promises?

It travels in the package, because the machine that matters is the user's. What it holds numbers
against (`truth`) is numpy in float64 and shares nothing with the kernels.
"""
