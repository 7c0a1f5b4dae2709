"""Measurements beside the peers: `python -m bench` (`__main__` lists the commands).

`workloads` says what is measured, the code of each library side by side; `worker` runs one library in a
process and environment of its own; `peers` starts workers; `measure` takes turns between them; `results`
makes ratios and tables of the times; `kernels` looks at our own kernels; `roofline` draws. `setup_peers.sh`
makes the environments. What the hardware can do is measured by `tinygrad.runtime.limits`.
"""
