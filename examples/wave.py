"""Waves in a square pool with a wall that has two gaps: the wave equation, stepped on a grid and animated.

    python3 examples/wave.py [--size N] [--frames N] [--substeps N] [--standing] [--out FILE | --terminal]

The height u follows d2u/dt2 = c2 (d2u/dx2 + d2u/dy2). With central differences in space and time a step is
u_next = 2 u - u_before + r2 * laplacian(u), stable up to r2 = c2 dt2 / dx2 = 1/2. One drop falls on the
left; what passes the two gaps interferes on the right. Edges and wall reflect: u is 0 there. A jitted call
makes all steps of a frame. With --standing the pool has no wall and a wave whose exact height is known, and
the error is printed.
"""
from __future__ import annotations

import argparse
import time
from typing import Any, TypeAlias

import numpy as np
from options import parse

from tinygrad import Tensor, TinyJit
from tinygrad.helpers import tqdm

Array: TypeAlias = np.ndarray[Any, np.dtype[np.float32]]
RATE = 0.25
"""r2 = c2 dt2 / dx2: the wave goes half a cell a step."""
SHADES = " .:-=+*#%@"


def laplacian(u: Tensor) -> Tensor:
    """The sum of the four neighbours of each cell less four times the cell; 0 outside."""
    around = u.pad(((1, 1), (1, 1)))
    return around[2:, 1:-1] + around[:-2, 1:-1] + around[1:-1, 2:] + around[1:-1, :-2] - 4 * u


def wall_with_gaps(size: int) -> Array:
    """1 where water is, 0 in a wall two cells thick right of the middle, which has two gaps."""
    water = np.ones((size, size), np.float32)
    thick, gap, apart = max(2, size // 64), max(2, size // 20), size // 8
    water[:, size // 2:size // 2 + thick] = 0
    for centre in (size // 2 - apart, size // 2 + apart):
        water[centre - gap // 2:centre + (gap + 1) // 2, size // 2:size // 2 + thick] = 1
    return water


def drop(size: int) -> Array:
    """A round hump on the left, as wide as a sixteenth of the pool."""
    y, x = np.mgrid[:size, :size] / size
    hump: Array = np.exp(-((x - 0.2) ** 2 + (y - 0.5) ** 2) / (2 * 0.03 ** 2)).astype(np.float32)
    return hump


def standing(size: int, step: int = 0) -> Array:
    """The slowest standing wave of the grid, after `step` steps: exact for the difference equation too."""
    along = np.sin(np.pi * np.arange(1, size + 1) / (size + 1))
    quarter = np.sin(np.pi / (2 * (size + 1))) ** 2
    angle = 2 * np.arcsin(np.sqrt(2 * RATE * quarter))  # of the wave's phase, in one step
    height: Array = (np.outer(along, along) * np.cos(angle * step)).astype(np.float32)
    return height


def simulate(u: Array, before: Array, water: Array, frames: int, substeps: int) -> list[Array]:
    """The heights after each frame, of `substeps` steps each."""
    inside = Tensor(water)

    @TinyJit
    def frame(now: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
        for _ in range(substeps):
            now, before = ((2 * now - before + RATE * laplacian(now)) * inside).contiguous(), now
        return now.realize(before), before

    now, previous = Tensor(u).realize(), Tensor(before).realize()
    kept: list[Array] = []
    with tqdm(total=frames, desc="waves", unit="frame") as bar:
        for _ in range(frames):
            now, previous = (t.clone().realize() for t in frame(now, previous))
            kept.append(now.numpy())
            bar.set_postfix(highest=f"{np.abs(kept[-1]).max():.3f}")
            bar.update()
    return kept


def save_gif(path: str, frames: list[Array], water: Array) -> None:
    """Red above, blue below the water's rest, black walls; 25 pictures a second."""
    import matplotlib
    from PIL import Image

    colours = matplotlib.colormaps["RdBu_r"]
    scale = max(1, 320 // len(water))
    pictures = []
    for u in frames:
        pixels = (colours(0.5 + 4 * u)[..., :3] * 255).astype(np.uint8) * (water[..., None] > 0)
        pictures.append(Image.fromarray(np.kron(pixels, np.ones((scale, scale, 1), np.uint8))))
    pictures[0].save(path, save_all=True, append_images=pictures[1:], duration=40, loop=0)


def show(frames: list[Array], water: Array, width: int = 64) -> None:
    """Each frame as characters, over the last one."""
    every = max(1, len(water) // width)
    for number, u in enumerate(frames):
        level = np.clip((np.abs(u) * 4 * len(SHADES)).astype(int), 0, len(SHADES) - 1)
        text = np.where(water > 0, np.array(list(SHADES))[level], "|")[::2 * every, ::every]
        up = f"\033[{len(text)}A" if number else ""
        print(up + "\n".join("".join(row) for row in text), flush=True)
        time.sleep(0.04)


def main() -> None:
    parser = argparse.ArgumentParser(description="The wave equation, animated.")
    parser.add_argument("--size", type=int, default=160, help="cells each way (default: 160)")
    parser.add_argument("--frames", type=int, default=120, help="default: 120")
    parser.add_argument("--substeps", type=int, default=6, help="steps of a frame (default: 6)")
    parser.add_argument("--standing", action="store_true", help="a standing wave and no wall, with its error")
    parser.add_argument("--terminal", action="store_true", help="show it as characters instead of saving it")
    parser.add_argument("--out", default="wave.gif", help="the animation to save (default: wave.gif)")
    args = parse(parser, size=16, frames=1, substeps=1)
    if not args.terminal:
        parse(parser, needs=["matplotlib", "PIL"])

    if args.standing:
        water, u, before = np.ones((args.size,) * 2, np.float32), standing(args.size), standing(args.size, -1)
    else:
        water = wall_with_gaps(args.size)
        u = before = drop(args.size)
    start = time.perf_counter()
    frames = simulate(u, before, water, args.frames, args.substeps)
    steps, seconds = args.frames * args.substeps, time.perf_counter() - start
    print(f"{steps} steps of {args.size} x {args.size} cells in {seconds:.1f} s")
    if args.standing:
        error = np.abs(frames[-1] - standing(args.size, steps)).max()
        print(f"largest error beside the exact standing wave: {error:.1e}")
    if args.terminal:
        show(frames, water)
    else:
        save_gif(args.out, frames, water)
        print(f"saved {args.out}")


if __name__ == "__main__":
    main()
