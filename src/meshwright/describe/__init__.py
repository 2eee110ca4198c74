"""What exists, as frozen values: accelerators, links, clusters, models, workloads, prices."""
