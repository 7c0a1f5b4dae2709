"""Optimizers: objects that change parameters by their gradients.

`optimizer.py` has what all share, and `OptimizerGroup`; `descent.py` SGD and what else goes by the gradient
itself, `adam.py` Adam and its kin, `adaptive.py` rules with a rate for each item, `lbfgs.py` the one that
asks for the loss at several places.
"""
from tinygrad.nn.optim.adam import LAMB, Adam, Adamax, AdamW, NAdam, RAdam
from tinygrad.nn.optim.adaptive import Adadelta, Adafactor, Adagrad, RMSprop
from tinygrad.nn.optim.descent import ASGD, LARS, SGD, Muon, Rprop, orthogonalize
from tinygrad.nn.optim.lbfgs import LBFGS
from tinygrad.nn.optim.optimizer import Optimizer, OptimizerGroup

__all__ = [
    "ASGD",
    "LAMB",
    "LARS",
    "LBFGS",
    "SGD",
    "Adadelta",
    "Adafactor",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "Muon",
    "NAdam",
    "Optimizer",
    "OptimizerGroup",
    "RAdam",
    "RMSprop",
    "Rprop",
    "orthogonalize",
]
