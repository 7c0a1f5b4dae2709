"""PyTorch's MNIST example (`main.py` of pytorch/examples/mnist), written as its user would, with one line
more: the name of the backend. It reaches the accuracy that it has in eager."""
from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the backend of torch.compile takes PyTorch")
import torch.nn as nn  # noqa: E402
import torch.nn.functional as F  # noqa: E402
import torch.optim as optim  # noqa: E402
from torch.optim.lr_scheduler import StepLR  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

from tinygrad.nn.datasets import mnist  # noqa: E402
from tinygrad.torch import backend  # noqa: E402


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3, 1)
        self.conv2 = nn.Conv2d(32, 64, 3, 1)
        self.dropout1 = nn.Dropout(0.25)
        self.dropout2 = nn.Dropout(0.5)
        self.fc1 = nn.Linear(9216, 128)
        self.fc2 = nn.Linear(128, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.conv1(x))
        x = F.relu(self.conv2(x))
        x = F.max_pool2d(x, 2)
        x = self.dropout1(x)
        x = torch.flatten(x, 1)
        x = F.relu(self.fc1(x))
        x = self.dropout2(x)
        x = self.fc2(x)
        return F.log_softmax(x, dim=1)


def train(model: Any, loader: DataLoader[Any], optimizer: optim.Optimizer) -> None:
    model.train()
    for data, target in loader:
        optimizer.zero_grad()
        output = model(data)
        loss = F.nll_loss(output, target)
        loss.backward()
        optimizer.step()


def test(model: Any, loader: DataLoader[Any]) -> float:
    model.eval()
    correct = 0
    with torch.no_grad():
        for data, target in loader:
            output = model(data)
            correct += int((output.argmax(dim=1) == target).sum())
    return correct / len(loader.dataset)  # type: ignore[arg-type]


test.__test__ = False  # type: ignore[attr-defined]  # it is the example's, not ours


def accuracy(compiles: bool, images: int, epochs: int) -> float:
    try:
        x_train, y_train, x_test, y_test = (t.numpy() for t in mnist())
    except RuntimeError as error:
        pytest.skip(str(error))
    torch.manual_seed(1)
    sets = [TensorDataset((torch.from_numpy(x).float() / 255 - 0.1307).reshape(-1, 1, 28, 28) / 0.3081,
                          torch.from_numpy(y).long())
            for x, y in ((x_train[:images], y_train[:images]), (x_test, y_test))]
    train_loader = DataLoader(sets[0], batch_size=64, shuffle=True)
    test_loader = DataLoader(sets[1], batch_size=1000)
    model: Any = Net()
    if compiles:
        torch._dynamo.reset()
        model = torch.compile(model, backend=backend)
    optimizer = optim.Adadelta(model.parameters(), lr=1.0)
    scheduler = StepLR(optimizer, step_size=1, gamma=0.7)
    for _ in range(epochs):
        train(model, train_loader, optimizer)
        scheduler.step()
    return test(model, test_loader)


@pytest.mark.slow
def test_the_example_reaches_the_accuracy_of_eager() -> None:
    """Two epochs of the images there are: 98 to 99 % of those that were not seen, with 9,000."""
    eager, ours = accuracy(False, 60_000, 2), accuracy(True, 60_000, 2)
    assert eager > 0.96
    assert abs(ours - eager) < 0.01


def test_a_few_images_are_learnt_as_in_eager() -> None:
    """The last minibatch of an epoch is a smaller one. Dropout draws other numbers: with six seeds eager
    reached 62 to 76 %, compiled 63 to 75 %."""
    eager, ours = accuracy(False, 300, 3), accuracy(True, 300, 3)
    assert eager > 0.6
    assert ours > eager - 0.1


@pytest.mark.slow
def test_a_thousand_images_are_learnt_as_in_eager() -> None:
    eager, ours = accuracy(False, 1000, 1), accuracy(True, 1000, 1)
    assert eager > 0.6
    assert ours > eager - 0.08
