"""Running a schedule: `realize` gives nodes memory and runs the items, `immediate` at once those that are
short, `replay` again on other memory what was captured (`jit/`). `copying` says which queue makes a copy. In:
nodes to compute, or captured steps. Out: their values in memory, once the queues' commands are done."""
