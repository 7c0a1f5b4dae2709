"""Running a schedule: `realize` gives nodes memory and runs the items, `jit` traces them, `replay` runs them
again."""
