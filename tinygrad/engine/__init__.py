"""Running a schedule: `realize` gives nodes memory and runs the items, `immediate` at once those that are
short, `replay` again on other memory what was captured (`jit/`)."""
