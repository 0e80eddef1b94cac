"""Reviews: reading them, and what each way to read their words makes of them. No network."""

import io
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
import torch
from matplotlib import pyplot as plt
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from examples import reviews
from examples import reviews_data as data
from examples.look import Look
from examples.reviews import TFIDF, main, tfidf, verdict
from examples.reviews_data import Corpus, Reviews, Vocabulary
from examples.reviews_pictures import draw_words
from examples.reviews_readers import MEAN, READERS, Attentive, Reader
from examples.training import Run

_ATTENTIVE = [name for name in READERS if name != MEAN]


def _tar(path: Path, files: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def test_sentences_are_read_from_an_archive_in_an_archive(tmp_path: Path) -> None:
    rows = "1\t0.5\tCliché, and yet fine\r\n2\t-0.49\tUndecided\r\n3\t-3.2\tDull.\r\n"
    inner = _tar(tmp_path / "inner", {data._FILE: rows.encode()})
    outer = _tar(tmp_path / "outer", {"a/LICENSE": b"", f"a/b/{data._INNER}": inner.read_bytes()})
    assert data.read_snippets(outer) == Corpus(["Cliché, and yet fine", "Dull."], [1, 0])
    with pytest.raises(ValueError, match="archive must contain hutto"):
        data.read_snippets(inner)


def test_the_archive_is_fetched_once_and_by_its_hash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def pip(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        calls.append(command)
        wanted = Path(command[command.index("-r") + 1]).read_text()
        assert "vaderSentiment==3.2.1" in wanted and "--hash=sha256:" in wanted
        if len(calls) == 1:
            return subprocess.CompletedProcess(command, 1, "", "no network")
        (Path(command[command.index("--dest") + 1]) / data._ARCHIVE).touch()
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(data.subprocess, "run", pip)
    with pytest.raises(RuntimeError, match="--snippets. no network"):
        data.fetch(tmp_path / "new")
    found = [data.fetch(tmp_path / "new") for _ in range(2)]
    assert found[0] == found[1] and found[0].is_file()
    assert len(calls) == 2 and calls[0][:4] == [sys.executable, "-m", "pip", "download"]


def _write_imdb(folder: Path, parts: dict[str, list[str]]) -> Path:
    for part, texts in parts.items():
        (folder / part).mkdir(parents=True)
        for k, text in enumerate(texts):
            (folder / part / f"{k}_7.txt").write_text(text, encoding="utf-8")
    return folder


def test_the_imdb_folder(tmp_path: Path) -> None:
    parts = {"train/pos": ["Good.<br /><br />Très bon!"], "train/neg": ["Bad", "Worse"]}
    folder = _write_imdb(tmp_path, parts | {"test/pos": ["Fine"], "test/unsup": ["What?"]})
    with pytest.raises(ValueError, match=r"aclImdb.*test.neg"):
        data.read_imdb(folder)
    _write_imdb(folder, {"test/neg": ["Poor"]})
    fit, test = data.read_imdb(folder)
    assert fit == Corpus(["Bad", "Worse", "Good.  Très bon!"], [0, 0, 1])
    assert test == Corpus(["Poor", "Fine"], [0, 1])


def test_a_split_is_a_partition_and_each_seed_has_its_own() -> None:
    corpus = Corpus([str(k) for k in range(50)], [k % 2 for k in range(50)])
    splits = [data.split(corpus, 20, seed) for seed in (0, 0, 1)]
    fit, test = splits[0]
    assert len(test.texts) == 20 and sorted(fit.texts + test.texts) == sorted(corpus.texts)
    assert all(int(text) % 2 == label for text, label in zip(fit.texts, fit.labels, strict=True))
    assert splits[0] == splits[1] != splits[2]


def test_words_are_numbered_and_padded() -> None:
    vocabulary = Vocabulary(["It's good, good!", "It's bad", "Once!"], longest=4)
    assert data.words_of("It's GOOD, 'so' good!?") == ["it's", "good", "so", "good", "!", "?"]
    assert len(vocabulary) == 2 + 3
    texts = ["good it's", "once bad ! ! good", "..."]
    reviews = vocabulary.encode(Corpus(texts, [1, 0, 1]))
    good, its, mark = 3, 4, 2
    assert reviews.tokens.tolist() == [[good, its, 0, 0], [1, 1, mark, mark], [1, 0, 0, 0]]
    assert reviews.labels.tolist() == [1, 0, 1] and reviews.lengths.tolist() == [2, 4, 1]
    some = reviews[torch.tensor([2, 0])]
    assert some.tokens.tolist() == [[1, 0], [good, its]] and some.labels.tolist() == [1, 1]
    torch.testing.assert_close(some.positions[1], torch.tensor([0.25, 0.75]))
    assert some.positions[0, 0] == 0.5


def _reviews(*lengths: int) -> Reviews:
    tokens = torch.zeros(len(lengths), max(lengths), dtype=torch.long)
    for row, length in zip(tokens, lengths, strict=True):
        row[:length] = torch.randint(1, 40, (length,))
    return Reviews(tokens, torch.arange(len(lengths)) % 2)


def _reader(name: str) -> Reader:
    """As after training: with a query, and states that differ."""
    model = READERS[name](40).eval()
    if isinstance(model, Attentive):
        nn.init.normal_(model.query, std=3.0)
    nn.init.normal_(model.embedding.weight, std=2.0)
    return model


@torch.no_grad()
def test_states_are_those_of_packed_sequences() -> None:
    model, reviews = READERS[MEAN](40), _reviews(9, 1, 4)
    both = nn.LSTM(64, 48, batch_first=True, bidirectional=True)
    for lstm, end in ((model.ahead, ""), (model.back, "_reverse")):
        for name, parameter in lstm.named_parameters():
            getattr(both, name + end).copy_(parameter)
    words = model.embedding(reviews.tokens)
    packed = pack_padded_sequence(words, reviews.lengths, batch_first=True, enforce_sorted=False)
    expected = pad_packed_sequence(both(packed)[0], batch_first=True)[0]
    found = model.states(reviews)[reviews.mask]
    torch.testing.assert_close(found, expected[reviews.mask], rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", READERS)
def test_a_review_is_read_as_if_it_were_alone(name: str) -> None:
    model, reviews = _reader(name), _reviews(5, 17, 1, 9)
    with torch.no_grad():
        together = model(reviews)
        alone = torch.cat([model(reviews[torch.tensor([k])]) for k in range(4)])
    torch.testing.assert_close(together, alone, rtol=0, atol=2e-5)
    assert together.std(0).min() > 1e-3


@pytest.mark.parametrize("name", _ATTENTIVE)
def test_shares_are_derivatives_of_what_is_read(name: str) -> None:
    """The context is a sum of values, each times its share: autograd on the values knows them."""
    model: Any = _reader(name)
    reviews = _reviews(7, 12)
    states = model.states(reviews).detach()
    offsets = torch.zeros(2, 12, requires_grad=True)
    model.layer.v_proj.register_forward_hook(lambda _, __, values: values + offsets.unsqueeze(-1))
    model.layer.out_proj = nn.Identity()
    context = model.read(states, reviews)
    (expected,) = torch.autograd.grad(context[:, 0].sum(), offsets)
    shares = model.shares(reviews)
    torch.testing.assert_close(shares, expected, rtol=0, atol=2e-5)
    assert (shares * ~reviews.mask).abs().max() == 0 and expected.abs().max() > 0.05


@pytest.mark.parametrize("name", _ATTENTIVE)
def test_what_is_touched_has_weight_or_density(name: str) -> None:
    model: Any = _reader(name)
    reviews = _reviews(7, 12)
    with torch.no_grad():
        model.query *= 10  # sparsemax is then at a word or two
        states, expected = model.states(reviews), torch.zeros(2, 12, dtype=torch.bool)
        weights, density = model.weigh(states, reviews), model.density(states, reviews)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2))
    if model.discrete:
        expected |= weights > 0
    if model.continuous:
        positions = reviews.positions[:, None, None]
        expected |= density.log_prob(positions.movedim(-1, 0)).movedim(0, -1)[:, 0, 0].isfinite()
    assert torch.equal(model.touched(reviews), expected & reviews.mask)
    assert model.share_read(reviews) == expected[reviews.mask].float().mean()
    assert ("softmax" in name) == bool(expected[reviews.mask].all())


def test_readers_start_as_the_mean() -> None:
    """With a query of zeros all weights are alike, so that no word is out of sight."""
    reviews = _reviews(6, 11)
    with torch.no_grad():
        for name in _ATTENTIVE:
            model: Any = READERS[name](40)
            weights = model.weigh(model.states(reviews), reviews)
            expected: Tensor = reviews.mask / reviews.lengths.unsqueeze(-1)
            torch.testing.assert_close(weights, expected)


_FILL = "the film has a story and some people in it"


def _texts(word: str, count: int) -> list[str]:
    fill = _FILL.split()
    return [" ".join([*fill[: k % 9], word, *fill[k % 9 :]]) for k in range(count)]


def test_all_methods_learn_what_one_word_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reviews, "_SHOWN", Corpus(["A wonderful film"], [1]))
    folder = _write_imdb(
        tmp_path / "aclImdb",
        {
            f"{part}/{label}": _texts(word, count)
            for part, count in (("train", 48), ("test", 9))
            for label, word in (("pos", "wonderful"), ("neg", "dreadful"))
        },
    )
    main(["--imdb", str(folder), "--seeds", "1", "--epochs", "4", "--out", str(tmp_path / "out")])
    printed = capsys.readouterr().out
    assert "96 reviews to train, 18 to test" in printed
    for name in (TFIDF, *READERS):
        (row,) = (line for line in printed.splitlines() if line.strip().startswith(name))
        assert float(row.removeprefix(f"  {name}").split()[0]) > 85
    assert (tmp_path / "out" / "reviews.png").read_bytes().startswith(b"\x89PNG")


def test_the_picture_colours_words_by_their_shares() -> None:
    texts = Corpus(["The film has a story"], [1])
    vocabulary = Vocabulary(texts.texts * 2, 10)
    models: Any = {"d": READERS["discrete sparsemax"](len(vocabulary))}
    models["c"] = READERS["continuous sparsemax"](len(vocabulary))
    nn.init.normal_(models["d"].query, std=100.0)
    figure = draw_words(Look(), models, vocabulary, texts)
    (ax, _) = figure.axes
    boxes, words = ax.patches, [text.get_text() for text in ax.texts]
    assert words[:5] == texts.texts[0].lower().split() == words[6:11]
    with torch.no_grad():
        shares = models["d"].shares(vocabulary.encode(texts))[0]
    assert (shares == 0).any() and (shares > 0).any()
    blank = [box.get_facecolor() == (1, 1, 1, 1) for box in boxes[:5]]
    assert blank == (shares == 0).tolist()
    assert [box.get_width() for box in boxes[:5]] == [4, 5, 4, 2, 6]
    plt.close(figure)


@pytest.mark.parametrize("name", ["--seeds", "--epochs"])
def test_bad_arguments(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([name, "0"])
    assert f"{name} must be at least 1, got 0" in capsys.readouterr().err


def _runs(mean: float, **others: float) -> dict[str, list[Run]]:
    means = {TFIDF: 0.7, MEAN: mean} | {name.replace("_", " "): x for name, x in others.items()}
    return {name: [Run(x, 1.0, 1)] * 3 for name, x in means.items()}


def test_the_verdict_knows_chance() -> None:
    # 2 sqrt(0.8 * 0.2 / 3000) is 1.5 points.
    tie = verdict(_runs(0.8, one=0.79, other=0.81), 1000)
    assert tie.startswith("No attention differs") and "79.0 (one) to 81.0 % (other)" in tie
    apart = verdict(_runs(0.8, one=0.78, other=0.81), 1000)
    assert apart.startswith("Attentions differ from mean pooling by -2.0 to +1.0")
    assert verdict(_runs(0.8, one=0.78, other=0.81), 100).startswith("No attention differs")


def test_logistic_regression_on_words() -> None:
    fit = Corpus(_texts("wonderful", 9) + _texts("dreadful", 9), [1] * 9 + [0] * 9)
    found = tfidf(fit, Corpus(["a wonderful story", "dreadful", "wonderful"], [1, 0, 0]))
    assert found.accuracy == pytest.approx(2 / 3)
    assert found.parameters == len(set(_FILL.split()) - {"a"}) + 2 + 1
