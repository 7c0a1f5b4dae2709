"""Checkpoints in parts (`nn.checkpoints`): what was saved on some devices is loaded on others, and a save
that fails at any write leaves the one before whole."""
from __future__ import annotations

import builtins
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from several_devices import memories as memories
from several_devices import numbers

from tinygrad import Tensor, dtypes, nn
from tinygrad.nn import checkpoints, optim, parallel, state

pytestmark = pytest.mark.usefixtures("on_cpu")
FOUR = tuple(f"CPU:{i}" for i in range(4))


def layouts(devices: tuple[str, ...], data: dict[str, Any]) -> dict[str, Tensor]:
    """The same values, cut along each axis, whole, on one device, transposed and not computed yet."""
    t = {name: Tensor(value) for name, value in data.items()}
    return {"rows": t["rows"].shard(devices, 0), "columns": t["columns"].shard(devices, 1),
            "whole": t["whole"].shard(devices), "one": t["one"], "number": t["number"],
            "half": t["half"].cast(dtypes.bfloat16).shard(devices, 0),
            "transposed": t["rows"].shard(devices, 0).realize().transpose(0, 1)}


def values() -> dict[str, Any]:
    return {"rows": numbers(7, 3), "columns": numbers(2, 9).astype(np.float32), "whole": np.arange(5),
            "one": numbers(4), "number": np.array(3.5), "half": np.arange(8.0)}


def check(found: dict[str, Tensor], data: dict[str, Any]) -> None:
    for name, value in {**data, "transposed": data["rows"].T}.items():
        np.testing.assert_array_equal(found[name].numpy().astype(value.dtype), value, err_msg=name)
    assert found["half"].dtype is dtypes.bfloat16


@pytest.mark.parametrize("count", [2, 3])
def test_every_layout_comes_back(tmp_path: Path, count: int) -> None:
    for _ in range(2):
        data = values()
        checkpoints.save(layouts(FOUR[:count], data), tmp_path / "new", {"step": 5})
        found, metadata = checkpoints.load(tmp_path / "new")
        assert metadata == {"step": 5}
        check(found, data)
    assert len(list((tmp_path / "new").iterdir())) == count + 1, "the files of the save before are gone"


def test_each_device_writes_its_parts_and_whole_tensors_once(tmp_path: Path) -> None:
    big = Tensor(numbers(8, 100)).shard(FOUR, 0)
    small = {f"bias{i}": Tensor(numbers(50)).shard(FOUR) for i in range(4)}
    checkpoints.save({"big": big, **small}, tmp_path)
    sizes = [p.stat().st_size for p in tmp_path.glob("*.safetensors")]
    assert len(sizes) == 4 and max(sizes) - min(sizes) < 100
    assert sum(sizes) < (800 + 200) * 8 + 4 * 400


def test_training_goes_on_on_another_number_of_devices(tmp_path: Path) -> None:
    def made(devices: tuple[str, ...]) -> tuple[nn.Linear, optim.LAMB, optim.Optimizer]:
        Tensor.manual_seed(1)
        model = parallel.replicate(nn.Linear(8, 4), devices)
        adam = optim.Adam(state.get_parameters(model), lr=0.1)
        return model, adam, parallel.ZeRO(adam, 3)

    def steps(model: nn.Linear, optimizer: optim.Optimizer, devices: tuple[str, ...], batches: Any) -> None:
        with Tensor.train():
            for x in batches:
                optimizer.zero_grad()
                model(Tensor(x).float().shard(devices, 0)).square().mean().backward()
                optimizer.step()

    batches = numbers(4, 8, 8)
    model, adam, zero = made(FOUR)
    steps(model, zero, FOUR, batches[:2])
    checkpoints.save(state.get_state_dict([model, adam]), tmp_path)
    steps(model, zero, FOUR, batches[2:])
    other, other_adam, other_zero = made(FOUR[:2])
    state.load_state_dict([other, other_adam], checkpoints.load(tmp_path)[0], verbose=False)
    steps(other, other_zero, FOUR[:2], batches[2:])
    np.testing.assert_allclose(other.weight.numpy(), model.weight.numpy(), rtol=1e-5, atol=1e-6)


class Failing:
    """The functions by which files are written; the one of a number fails, and all that come after it."""

    def __init__(self, patch: pytest.MonkeyPatch, number: int) -> None:
        self.calls = 0
        self.number = number
        self.open = builtins.open
        patch.setattr(builtins, "open", self.opened)
        for name in ("replace", "remove"):
            patch.setattr(os, name, self.counted(getattr(os, name)))

    def step(self) -> None:
        self.calls += 1
        if self.calls > self.number:
            raise OSError("no space left on device")

    def counted(self, function: Any) -> Any:
        def call(*arguments: Any) -> Any:
            self.step()
            return function(*arguments)
        return call

    def opened(self, *arguments: Any, **named: Any) -> Any:
        file = self.open(*arguments, **named)
        if "w" in str(arguments[1:2]):
            self.step()
            file = _File(file, self)
        return file


class _File:
    def __init__(self, file: Any, failing: Failing) -> None:
        self.file, self.failing = file, failing

    def write(self, data: bytes) -> int:
        self.file.write(data[:len(data) // 2])
        self.failing.step()
        return len(data) // 2 + int(self.file.write(data[len(data) // 2:]))

    def __enter__(self) -> _File:
        return self

    def __exit__(self, *error: object) -> None:
        self.file.close()


def test_a_save_that_fails_at_any_write_leaves_a_whole_checkpoint(tmp_path: Path) -> None:
    before, after = values(), values()
    checkpoints.save(layouts(FOUR[:2], before), tmp_path, {"step": 1})
    new = layouts(FOUR[:2], after)
    Tensor.realize(*new.values())
    failures = 0
    while True:
        with pytest.MonkeyPatch.context() as patch:
            Failing(patch, failures)
            try:
                checkpoints.save(new, tmp_path, {"step": 2})
                break
            except OSError:
                failures += 1
        found, metadata = checkpoints.load(tmp_path)
        check(found, after if metadata["step"] == 2 else before)
    assert failures > 20
    check(checkpoints.load(tmp_path)[0], after)
    assert len(list(tmp_path.iterdir())) == 3, "nothing is left of those that failed"


def test_what_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="has no checkpoint: there is no index.json in it"):
        checkpoints.load(tmp_path)
    checkpoints.save(layouts(FOUR[:2], values()), tmp_path)
    index = json.loads((tmp_path / "index.json").read_text())
    rows = index["tensors"]["rows"]
    for change, message in (({"format": "?"}, "not the index of a checkpoint that"),
                            ({"tensors": {"x": rows}}, "is not whole: .* has no 'x'"),
                            ({"tensors": {"rows": rows | {"shape": [1]}}}, "is not whole"),
                            ({"tensors": {"rows": rows | {"parts": [["../x", []]]}}}, "../x is missing"),
                            ({"tensors": {"rows": {"shape": [1]}}}, "index.json is damaged: KeyError"),
                            ({"tensors": {"rows": rows | {"parts": 1}}}, "index.json is damaged: TypeError"),
                            ({"tensors": [1]}, "index.json is damaged: AttributeError")):
        (tmp_path / "index.json").write_text(json.dumps(index | change))
        with pytest.raises(ValueError, match=message):
            checkpoints.load(tmp_path)
    del index["metadata"]
    (tmp_path / "index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match="index.json is damaged: it has no metadata"):
        checkpoints.load(tmp_path)
    (tmp_path / "index.json").write_text(json.dumps(index | {"metadata": {}}))
    next(tmp_path.glob("*.safetensors")).unlink()
    with pytest.raises(ValueError, match=r"is not whole: 1-0000.-of-00002.safetensors is missing"):
        checkpoints.load(tmp_path)


def test_parts_that_are_not_all_items_once_are_refused(tmp_path: Path) -> None:
    """Items that two parts had, or none, were an IndexError, or values in each other's place."""
    checkpoints.save({"rows": Tensor(numbers(7, 3)).shard(FOUR[:2], 0)}, tmp_path)
    index = json.loads((tmp_path / "index.json").read_text())
    rows = index["tensors"]["rows"]
    (first, _), (second, rest) = rows["parts"]
    upper, lower = [[0, 4], [0, 3]], [[4, 7], [0, 3]]
    assert rest == lower

    def loaded(*parts: Any, **others: Any) -> None:
        (tmp_path / "index.json").write_text(json.dumps(
            index | {"tensors": {"rows": rows | {"parts": parts}}} | others))
        checkpoints.load(tmp_path)

    loaded([first, upper], [second, lower])
    for parts, message in (
            ([[first, upper]], r"'rows' has parts with the items \[\(0, 4\)\] of 7 along axis 0"),
            ([[first, upper], [second, lower], [second, lower]], "'rows' has other parts than the index"),
            ([[first, upper], [second, upper]], r"has parts with the items \[\(0, 4\)\] of 7"),
            ([[first, upper], [second, [[3, 7], [0, 3]]]], r"has parts with the items .* of 7"),
            ([[first, [[0, 3], [0, 3]]], [second, [[3, 7], [0, 3]]]], "has other parts than the index says"),
            ([[first, upper], [second, lower[:1]]], "has a part of items"),
            ([], r"has parts with the items \[\] of 7")):
        with pytest.raises(ValueError, match=f"is not whole: .*{message}"):
            loaded(*parts)
    with pytest.raises(ValueError, match="index.json is damaged: the number of the save is None"):
        loaded(save=None)
