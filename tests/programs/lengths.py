"""Sequences of other lengths: packed batches for taggers, classifiers, speech and pairs of sentences."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence

from tests.programs.harness import Made, Wrap, program, some

WORDS, WIDTH, TIME = 12, 6, 7
DOORS, EVERY = ("step", "compile", "backend"), ("step", "compile", "backend", "freeze")


def _lengths(batch: int = 3, least: int = 2) -> Tensor:
    lengths = torch.randint(least, TIME + 1, (batch,))
    lengths[0] = TIME
    return lengths


def _sentences() -> tuple[Tensor, Tensor, Tensor]:
    return torch.randint(1, WORDS, (3, TIME)), _lengths(), torch.randint(0, 3, (3, TIME))


def _made(model: nn.Module, wrap: Wrap, loss_of: object, batches: object, frozen: int = 0) -> Made:
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    net = wrap(model)

    def step(*batch: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(net, *batch)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.detach()

    calls = [batch[:frozen] for batch in batches]
    return Made(step, batches, {"model": model, "optimizer": optimizer}, (model, calls) if frozen else None)


class Tagger(nn.Module):
    """Tags for the words of sentences."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH, padding_idx=0)
        self.rnn = nn.LSTM(WIDTH, WIDTH, 2, batch_first=True, bidirectional=True, dropout=0.2)
        self.head = nn.Linear(2 * WIDTH, 3)

    def forward(self, words: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(self.embed(words), lengths, batch_first=True, enforce_sorted=False)
        out, _ = pad_packed_sequence(self.rnn(packed)[0], batch_first=True, total_length=words.shape[1])
        return self.head(out)


@program(*EVERY)
def tags_of_words(wrap: Wrap) -> Made:
    def loss_of(net: nn.Module, words: Tensor, lengths: Tensor, tags: Tensor) -> Tensor:
        known = torch.arange(TIME) < lengths[:, None]
        return F.cross_entropy(net(words, lengths)[known], tags[known])

    return _made(Tagger(), wrap, loss_of, some(_sentences), 2)


class Classifier(nn.Module):
    """A class for a sentence, from the last state of a network."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.rnn = nn.Embedding(WORDS, WIDTH), nn.GRU(WIDTH, WIDTH, bidirectional=True)
        self.head = nn.Sequential(nn.Dropout(0.1), nn.Linear(2 * WIDTH, 3))

    def forward(self, words: Tensor, lengths: Tensor) -> Tensor:
        order = lengths.argsort(descending=True)
        packed = pack_padded_sequence(self.embed(words[order]).transpose(0, 1), lengths[order])
        _, last = self.rnn(packed)
        return self.head(torch.cat([last[-2], last[-1]], 1))[order.argsort()]


@program(*EVERY)
def classes_of_sentences(wrap: Wrap) -> Made:
    def loss_of(net: nn.Module, words: Tensor, lengths: Tensor, tags: Tensor) -> Tensor:
        return F.cross_entropy(net(words, lengths), tags[:, 0])

    return _made(Classifier(), wrap, loss_of, some(_sentences), 2)


class Speech(nn.Module):
    """Frames to letters, for CTC."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(WIDTH, WIDTH, 3, padding=1)
        self.rnn = nn.GRU(WIDTH, WIDTH, 2, batch_first=True)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, frames: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        out = F.relu(self.conv(frames.transpose(1, 2))).transpose(1, 2)
        packed = pack_padded_sequence(out, lengths, batch_first=True, enforce_sorted=False)
        out, lengths = pad_packed_sequence(self.rnn(packed)[0], batch_first=True)
        return self.head(out).log_softmax(-1), lengths


@program("step", "compile")
def letters_by_ctc(wrap: Wrap) -> Made:
    def loss_of(net: nn.Module, frames: Tensor, lengths: Tensor, letters: Tensor) -> Tensor:
        out, counts = net(frames, lengths)
        return F.ctc_loss(out.transpose(0, 1), letters, counts, torch.full((3,), 2))

    def batch() -> tuple[Tensor, Tensor, Tensor]:
        return torch.randn(3, TIME, WIDTH), _lengths(least=4), torch.randint(1, WORDS, (3, 2))

    return _made(Speech(), wrap, loss_of, some(batch))


class Pairs(nn.Module):
    """One encoder for both sentences of a pair."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.rnn = nn.Embedding(WORDS, WIDTH), nn.LSTM(WIDTH, WIDTH, batch_first=True)

    def encoded(self, words: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(self.embed(words), lengths, batch_first=True, enforce_sorted=False)
        return self.rnn(packed)[1][0][-1]

    def forward(self, one: Tensor, of_one: Tensor, other: Tensor, of_other: Tensor) -> Tensor:
        return -(self.encoded(one, of_one) - self.encoded(other, of_other)).abs().sum(1)


@program(*EVERY)
def likeness_of_pairs(wrap: Wrap) -> Made:
    def loss_of(net: nn.Module, *batch: Tensor) -> Tensor:
        return F.mse_loss(net(*batch[:4]).exp(), batch[4])

    def batch() -> tuple[Tensor, ...]:
        (one, lengths, _), (other, others, _) = _sentences(), _sentences()
        return one, lengths, other, others, torch.rand(3)

    return _made(Pairs(), wrap, loss_of, some(batch), 4)


class Translator(nn.Module):
    """A packed encoder, and a decoder that attends to what lies within the lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.encoder, self.decoder = nn.GRU(WIDTH, WIDTH, batch_first=True), nn.GRUCell(WIDTH, WIDTH)
        self.head = nn.Linear(2 * WIDTH, WORDS)

    def forward(self, source: Tensor, lengths: Tensor, target: Tensor) -> Tensor:
        packed = pack_padded_sequence(self.embed(source), lengths, batch_first=True, enforce_sorted=False)
        out, last = self.encoder(packed)
        memory, _ = pad_packed_sequence(out, batch_first=True, total_length=source.shape[1])
        outside = torch.arange(source.shape[1]) >= lengths[:, None]
        state, made = last[-1], []
        for word in target.unbind(1):
            state = self.decoder(self.embed(word), state)
            scores = (memory @ state[:, :, None])[:, :, 0].masked_fill(outside, float("-inf"))
            seen = (scores.softmax(1)[:, :, None] * memory).sum(1)
            made.append(self.head(torch.cat([state, seen], 1)))
        return torch.stack(made, 1)


@program("step", "compile", "backend")
def words_by_attention_within_lengths(wrap: Wrap) -> Made:
    def loss_of(net: nn.Module, source: Tensor, lengths: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(net(source, lengths, target[:, :-1]).flatten(0, 1), target[:, 1:].flatten())

    return _made(Translator(), wrap, loss_of, some(_sentences))


class Rows(nn.Module):
    """Lists of rows, padded here; the lengths are a list of numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.head = nn.RNN(WIDTH, WIDTH, batch_first=True), nn.Linear(WIDTH, 1)

    def forward(self, rows: list[Tensor]) -> Tensor:
        lengths = [len(row) for row in rows]
        packed = pack_padded_sequence(pad_sequence(rows, True), lengths, batch_first=True, enforce_sorted=False)
        return self.head(self.rnn(packed)[0].data).mean()


@program("step", "compile", captures=5)
def rows_of_lists(wrap: Wrap) -> Made:
    def batch() -> tuple[list[Tensor]]:
        return ([torch.randn(int(length), WIDTH) for length in _lengths()],)

    return _made(Rows(), wrap, lambda net, rows: net(rows).square(), some(batch))
