"""The next token from the scores of all: greedy, or drawn by temperature, top-k, top-p, min-p and a penalty
on what was said already. On the host, in float64, so that a seed gives the same tokens on every device."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from tinygrad.frozen import frozen

Scores: TypeAlias = np.ndarray[Any, np.dtype[Any]]
FIRST = 64
"""Tokens that are looked at first: they nearly always have the probability that is asked for."""


@frozen
class Sampling:
    """How tokens are chosen, and when to stop.

    `temperature` 0 takes the likeliest. `top_k` keeps the k likeliest (0: all), `top_p` the fewest that have
    this probability together, `min_p` those with this share of the likeliest's. `repetition_penalty` divides
    positive scores of tokens among the last `penalty_window` (multiplies negative ones: Keskar et al., 2019).
    `presence_penalty` is taken off the score of every token that the answer has, `frequency_penalty` once for
    each time that it has it; `logit_bias` adds to scores: pairs of a token and a number.
    `stop`: texts before which the answer ends. `tokens`: how many at most. Raises ValueError for settings
    that make no sense.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    penalty_window: int = 64
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int | None = None
    stop: tuple[str, ...] = ()
    tokens: int = 256
    ignore_ends: bool = False

    def __post_init__(self) -> None:
        for name, low, high in (("temperature", 0, 100), ("top_k", 0, 1 << 31), ("top_p", 0, 1),
                                ("min_p", 0, 1), ("presence_penalty", -2, 2), ("frequency_penalty", -2, 2),
                                ("penalty_window", 0, 1 << 31), ("tokens", 0, 1 << 31)):
            value = getattr(self, name)
            if not low <= value <= high:
                raise ValueError(f"{name} is a number from {low} to {high}, got {value}")
        if not 0 < self.repetition_penalty <= 100:
            raise ValueError("repetition_penalty is a number above 0 and up to 100, "
                             f"got {self.repetition_penalty}")
        if any(token < 0 or not -100 <= bias <= 100 for token, bias in self.logit_bias):
            raise ValueError("logit_bias gives tokens numbers from -100 to 100")
        if any(not text for text in self.stop):
            raise ValueError("a stop text has at least one character")

    @property
    def takes_likeliest(self) -> bool:
        """Whether the token of the highest score comes next, whatever came before."""
        return self.temperature == 0 and self.repetition_penalty == 1 and not (
            self.presence_penalty or self.frequency_penalty or self.logit_bias)

    def generator(self) -> np.random.Generator:
        return np.random.default_rng(None if self.seed is None else self.seed % (1 << 64))


def log_probabilities(scores: Scores) -> Scores:
    """The logarithms of the softmax, in float64."""
    shifted = scores.astype(np.float64) - float(scores.max())
    return np.asarray(shifted - np.log(np.exp(shifted).sum()))


@frozen
class Likelihood:
    """The natural logarithm of a token's probability, and those of the likeliest tokens in its place. A
    text's first token, which nothing comes before, has none."""

    token: int
    value: float | None
    best: tuple[tuple[int, float], ...]


def likelihood(scores: Scores, token: int, count: int) -> Likelihood:
    """How likely a token is by the scores of all (vocabulary,), and the `count` likeliest: fewer where a mask
    lets no more come. Raises ValueError for scores that are no numbers."""
    logarithms = log_probabilities(_checked(scores))
    best = likeliest(logarithms, min(count, len(logarithms))) if count else np.array((), int)
    return Likelihood(token, float(logarithms[token]), tuple((int(i), float(logarithms[i])) for i in best))


def _checked(scores: Scores) -> Scores:
    if not np.isfinite(scores.max()):
        raise ValueError("the model's scores of the next token are no numbers: its weights may be damaged")
    return scores


def penalised(scores: Scores, said: Sequence[int], penalty: float) -> Scores:
    """Scores in which what was said is less likely."""
    if penalty == 1 or not said:
        return scores
    changed, places = scores.copy(), np.unique(np.asarray(said))
    chosen = changed[places]
    changed[places] = np.where(chosen > 0, chosen / penalty, chosen * penalty)
    return changed


def biased(scores: Scores, answered: Sequence[int], sampling: Sampling) -> Scores:
    """Scores with what is added to those of tokens, and less what tokens of the answer are to lose."""
    if not (sampling.presence_penalty or sampling.frequency_penalty or sampling.logit_bias):
        return scores
    changed = scores.astype(np.float64)
    if answered:
        tokens, counts = np.unique(np.asarray(answered), return_counts=True)
        changed[tokens] -= sampling.presence_penalty + sampling.frequency_penalty * counts
    for token, bias in sampling.logit_bias:
        changed[token] += bias
    return changed


def likeliest(scores: Scores, count: int) -> Scores:
    """The tokens of the `count` highest scores, the highest first; fewer where no more can come (-inf)."""
    least = np.partition(scores, len(scores) - count)[len(scores) - count]
    tokens = np.flatnonzero((scores >= least) & (scores > -np.inf))
    return np.asarray(tokens[np.argsort(-scores[tokens], kind="stable")][:count])


def probabilities(scores: Scores, sampling: Sampling, share: float = 1.0) -> tuple[Scores, Scores]:
    """(tokens, their probabilities), the likeliest first, of those that the settings keep: all, or so many
    that they have this `share` together. To sort all tokens takes longer than to compute their scores."""
    most = min(sampling.top_k or len(scores), len(scores))
    with np.errstate(over="ignore"):  # a temperature near 0 leaves the likeliest alone
        weights = np.exp((scores.astype(np.float64) - float(scores.max())) / sampling.temperature)
    count = most if sampling.top_k else min(FIRST, most)
    while True:
        tokens = likeliest(scores, count)
        of_all = weights[tokens].sum() if sampling.top_k else weights.sum()
        shares = weights[tokens] / of_all
        summed = np.cumsum(shares)
        few = int(np.searchsorted(summed, sampling.top_p)) + 1 if sampling.top_p < 1 else len(tokens)
        few = min(few, len(tokens), int((shares >= sampling.min_p * shares[0]).sum()))
        if few < count or count == most:
            return tokens[:few], shares[:few] / summed[few - 1]
        if summed[-1] >= share and sampling.top_p >= 1 and sampling.min_p == 0:  # all are kept
            return tokens, shares
        count = min(8 * count, most)


def choose(scores: Scores, said: Sequence[int], sampling: Sampling, rng: np.random.Generator,
           answered: Sequence[int] = ()) -> int:
    """A token, by its score among all (vocabulary,). `said`: the tokens before, `answered`: those of them
    that are no prompt. Raises ValueError for scores that are no numbers."""
    scores = biased(_checked(scores), answered, sampling)
    window = said[-sampling.penalty_window:] if sampling.penalty_window else ()
    scores = penalised(scores, window, sampling.repetition_penalty)
    if sampling.temperature == 0:
        return int(scores.argmax())
    draw = rng.random()
    tokens, shares = probabilities(scores, sampling, draw)
    drawn = int(np.searchsorted(np.cumsum(shares), draw))
    return int(tokens[min(drawn, len(tokens) - 1)])
