"""Running a schedule: `realize` gives every node its memory and runs the items, `jit` captures and replays."""
