"""Balances a pole on a cart, learned by policy gradient from nothing but how long it stood.

    python3 examples/cartpole.py [--rounds N] [--games N] [--seed N] [--out cartpole.png]

A small network says for where cart and pole are, and how fast, how likely it pushes left or right. In each
round it plays some games of gymnasium's CartPole-v1 (at most 500 steps each), then each choice becomes more
likely the longer the pole stood after it, compared with the other games at that step (REINFORCE, Williams
1992, with a baseline of each step). The picture shows how long the games of each round were.
"""
from __future__ import annotations

import argparse
from typing import Any, TypeAlias

import numpy as np
from options import parse

from tinygrad import Tensor, TinyJit, nn
from tinygrad.helpers import tqdm
from tinygrad.nn import optim, state

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
LONGEST = 500
SOLVED = 475
"""steps on average that gymnasium asks of CartPole-v1"""
"""steps of a game"""
DISCOUNT = 0.99
"""what a step is worth less than the one before it"""


class Policy:
    """Observations (..., 4) to the logarithms (..., 2) of how likely each push is."""

    def __init__(self, width: int = 64) -> None:
        self.hidden, self.last = nn.Linear(4, width), nn.Linear(width, 2)

    def __call__(self, observations: Tensor) -> Tensor:
        return self.last(self.hidden(observations).tanh()).log_softmax()


class Learner:
    """Plays with a policy, and makes it better."""

    def __init__(self, games: int, seed: int) -> None:
        import gymnasium

        self.games, self.rng = games, np.random.default_rng(seed)
        Tensor.manual_seed(seed)
        self.policy = Policy()
        self.optimizer = optim.Adam(state.get_parameters(self.policy), lr=1e-2)
        self.worlds = gymnasium.make_vec("CartPole-v1", num_envs=games, vectorization_mode="sync")
        self.seed = seed

    @TinyJit
    def likelihoods(self, observations: Tensor) -> Tensor:
        return self.policy(observations).exp().realize()

    def play(self) -> tuple[Array, Array, Array]:
        """One game in each world: what was seen (LONGEST, games, 4), which pushes were made, and which steps
        are part of a game (LONGEST, games)."""
        seen = np.zeros((LONGEST, self.games, 4), np.float32)
        pushes = np.zeros((LONGEST, self.games), np.int32)
        plays = np.zeros((LONGEST, self.games), bool)
        self.seed += self.games
        observations, _ = self.worlds.reset(seed=self.seed)
        going = np.ones(self.games, bool)
        for step in range(LONGEST):
            likely = self.likelihoods(Tensor(np.asarray(observations, np.float32))).numpy()
            seen[step], plays[step] = observations, going
            pushes[step] = self.rng.random(self.games) < likely[:, 1]
            observations, _, fell, ended, _ = self.worlds.step(pushes[step])
            going = going & ~fell & ~ended
            if not going.any():
                break
        return seen, pushes, plays

    @TinyJit
    @Tensor.train()
    def improve(self, seen: Tensor, pushes: Tensor, advantages: Tensor) -> Tensor:
        """A step along the policy gradient: of the logarithms of choices, weighted by their advantages."""
        self.optimizer.zero_grad()
        chosen = self.policy(seen).gather(-1, pushes.unsqueeze(-1)).squeeze(-1)
        loss = -(chosen * advantages).sum()
        loss.backward()
        return loss.realize(*self.optimizer.schedule_step())

    def learn(self) -> Array:
        """Play a round, learn from it, and return how long its games were."""
        seen, pushes, plays = self.play()
        self.improve(Tensor(seen), Tensor(pushes), Tensor(advantages(plays)))
        return np.asarray(plays.sum(0))


def advantages(plays: Array) -> Array:
    """How much longer than the average of the games each one stood from each step on, discounted, in units
    of the standard deviation and as shares of all steps; 0 where no game is."""
    returns = np.zeros(plays.shape, np.float32)
    rest = np.zeros(plays.shape[1], np.float32)
    for step in reversed(range(len(plays))):
        rest = returns[step] = (1 + DISCOUNT * rest) * plays[step]
    better = (returns - returns.mean(1, keepdims=True)) * plays
    spread = float(np.sqrt((better ** 2).sum() / plays.sum())) + 1e-6
    return np.asarray(better / spread / plays.sum(), np.float32)


def draw(path: str, lengths: list[Array]) -> None:
    """The lengths of all games, and the average of each round."""
    from matplotlib import pyplot as plt

    figure, place = plt.subplots(figsize=(8, 4.5), layout="constrained")
    for number, games in enumerate(lengths):
        place.scatter([number] * len(games), games, s=5, color="tab:gray", alpha=0.4)
    place.plot([games.mean() for games in lengths], color="tab:blue", label="average of the round")
    place.axhline(SOLVED, linestyle="--", color="tab:green", label="solved")
    place.set(xlabel="round", ylabel="steps that the pole stood", ylim=(0, LONGEST * 1.03))
    place.legend(loc="upper left")
    figure.savefig(path, dpi=100)


def main() -> None:
    parser = argparse.ArgumentParser(description="Balances a pole, learned by policy gradient.")
    parser.add_argument("--rounds", type=int, default=80, help="default: 80")
    parser.add_argument("--games", type=int, default=16, help="games of a round (default: 16)")
    parser.add_argument("--seed", type=int, default=0, help="of weights and games (default: 0)")
    parser.add_argument("--out", default="cartpole.png", help="the picture to save (default: cartpole.png)")
    args = parse(parser, needs=["gymnasium", "matplotlib"], rounds=1, games=2)
    learner, lengths = Learner(args.games, args.seed), []
    with tqdm(total=args.rounds, desc="learning", unit="round") as bar:
        for _ in range(args.rounds):
            lengths.append(learner.learn())
            bar.set_postfix(steps=f"{lengths[-1].mean():.0f}")
            bar.update()
    first, last = (float(np.mean(part)) for part in (lengths[:5], lengths[-5:]))
    print(f"the pole stood {first:.0f} steps in the first rounds, {last:.0f} in the last")
    draw(args.out, lengths)
    print(f"saved {args.out}")


if __name__ == "__main__":
    main()
