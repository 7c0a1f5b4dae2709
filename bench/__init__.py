"""Measurements beside the peers: `python -m bench`.

`workloads` is the table of what is measured, the code of each library side by side; `worker` runs one library
in a process and environment of its own; `peers` starts workers; `machine` measures what the hardware can do;
`__main__` takes turns between the peers and prints the table. `setup_peers.sh` makes the environments.
"""
