"""Sequences: recurrent language models, translation with attention, alignment, tagging, encoders with masks."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.programs.harness import Made, Wrap, program, some

WORDS, WIDTH = 15, 8
DOORS, EVERY = ("step", "backend", "compile"), ("step", "backend", "compile", "freeze")


class Recurrent(nn.Module):
    """An embedding, a recurrent network of some kind, and a head, perhaps with the embedding's weight."""

    def __init__(self, kind: str, tied: bool = False) -> None:
        super().__init__()
        self.drop, self.embed = nn.Dropout(0.2), nn.Embedding(WORDS, WIDTH)
        self.rnn = getattr(nn, kind)(WIDTH, WIDTH, 2, dropout=0.2)
        self.head = nn.Linear(WIDTH, WORDS)
        nn.init.uniform_(self.embed.weight, -0.1, 0.1)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, x: Tensor, hidden: tuple[Tensor, Tensor] | Tensor) -> tuple[Tensor, object]:
        out, hidden = self.rnn(self.drop(self.embed(x)), hidden)
        return F.log_softmax(self.head(self.drop(out)).view(-1, WORDS), dim=1), hidden


def _words() -> tuple[Tensor, Tensor]:
    text = torch.randint(0, WORDS, (5, 3))
    return text[:-1], text[1:].reshape(-1)


@program("step", "compile", captures=4)
def words_with_hidden_state(wrap: Wrap) -> Made:
    model = Recurrent("LSTM")
    hidden = (torch.zeros(2, 3, WIDTH), torch.zeros(2, 3, WIDTH))
    rate = {"lr": 1.0}
    net = wrap(model)

    def step(x: Tensor, y: Tensor) -> float:
        model.zero_grad()
        out, later = net(x, tuple(h.detach() for h in hidden))
        loss = F.nll_loss(out, y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        for p in model.parameters():
            p.data.add_(p.grad, alpha=-rate["lr"])
        for kept, new in zip(hidden, later, strict=True):
            kept.copy_(new.detach())
        return loss.item()

    return Made(step, some(_words), {"model": model, "hidden": hidden, "rate": rate})


@program("step", "compile")
def tied_words(wrap: Wrap) -> Made:
    model = Recurrent("GRU", tied=True)
    optimizer = torch.optim.SGD(model.parameters(), 1.0)
    net = wrap(model)

    def step(x: Tensor, y: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        optimizer.zero_grad()
        out, later = net(x, hidden)
        loss = F.nll_loss(out, y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()
        return loss.detach(), later.detach()

    batches = [(*batch, torch.randn(2, 3, WIDTH)) for batch in some(_words)]
    return Made(step, batches, {"model": model, "optimizer": optimizer})


class Places(nn.Module):
    """Adds waves for positions."""

    def __init__(self) -> None:
        super().__init__()
        place = torch.arange(12).unsqueeze(1)
        rate = torch.exp(torch.arange(0, WIDTH, 2) * (-math.log(10000.0) / WIDTH))
        table = torch.zeros(12, 1, WIDTH)
        table[:, 0, 0::2], table[:, 0, 1::2] = torch.sin(place * rate), torch.cos(place * rate)
        self.drop = nn.Dropout(0.1)
        self.register_buffer("table", table)

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(x + self.table[: x.size(0)])


class Masked(nn.Module):
    """Encoder layers with a causal mask that is made at the first call and kept."""

    def __init__(self) -> None:
        super().__init__()
        self.mask: Tensor | None = None
        self.embed, self.places, self.head = nn.Embedding(WORDS, WIDTH), Places(), nn.Linear(WIDTH, WORDS)
        self.layers = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(WIDTH, 2, 16, 0.1), 2, enable_nested_tensor=False
        )

    def forward(self, x: Tensor) -> Tensor:
        if self.mask is None or self.mask.size(0) != len(x):
            self.mask = nn.Transformer.generate_square_subsequent_mask(len(x))
        x = self.places(self.embed(x) * math.sqrt(WIDTH))
        return F.log_softmax(self.head(self.layers(x, mask=self.mask)), dim=-1)


@program("step", "backend", captures=4)
def mask_made_when_first_needed(wrap: Wrap) -> Made:
    model = Masked()
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    net = wrap(model)

    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.nll_loss(net(x).view(-1, WORDS), y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        return loss.detach()

    return Made(step, some(_words), {"model": model, "optimizer": optimizer})


class Translate(nn.Module):
    """An encoder, and a decoder that attends to it, word by word."""

    def __init__(self) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(WORDS, WIDTH), nn.Embedding(WORDS, WIDTH)
        self.encoder, self.decoder = nn.GRU(WIDTH, WIDTH, batch_first=True), nn.GRUCell(2 * WIDTH, WIDTH)
        self.query, self.key, self.score = (nn.Linear(WIDTH, n) for n in (WIDTH, WIDTH, 1))
        self.out = nn.Linear(WIDTH, WORDS)

    def forward(self, x: Tensor, y: Tensor, force: bool) -> tuple[Tensor, Tensor]:
        keys, hidden = self.encoder(self.source(x))
        hidden = hidden.squeeze(0)
        word, logits, seen = torch.zeros(x.size(0), dtype=torch.long), [], []
        for place in range(y.size(1)):
            score = self.score(torch.tanh(self.query(hidden).unsqueeze(1) + self.key(keys)))
            weight = F.softmax(score.transpose(1, 2), dim=-1)
            context = torch.bmm(weight, keys).squeeze(1)
            hidden = self.decoder(torch.cat([self.target(word), context], 1), hidden)
            logits.append(self.out(hidden))
            seen.append(weight)
            word = y[:, place] if force else logits[-1].topk(1)[1].squeeze(-1).detach()
        return torch.stack(logits, 1), torch.cat(seen, 1)


@program("step", "compile", captures=6)
def translate_with_attention(wrap: Wrap) -> Made:
    model = Translate()
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    net = wrap(model)

    def step(x: Tensor, y: Tensor, force: bool) -> tuple[Tensor, Tensor]:
        optimizer.zero_grad()
        logits, weights = net(x, y, force)
        loss = F.cross_entropy(logits.flatten(0, 1), y.flatten(), ignore_index=0)
        loss.backward()
        optimizer.step()
        return loss.detach(), weights.detach()

    force = iter((True, False, True))
    batches = some(lambda: (torch.randint(0, WORDS, (3, 4)), torch.randint(0, WORDS, (3, 4)), next(force)))
    return Made(step, batches, {"model": model, "optimizer": optimizer})


@program("step", "compile")
def both_halves_of_a_transformer(wrap: Wrap) -> Made:
    embed, head = nn.Embedding(WORDS, WIDTH, padding_idx=0), nn.Linear(WIDTH, WORDS)
    model = nn.Transformer(WIDTH, 2, 1, 1, 16, 0.1, batch_first=True)
    optimizer = torch.optim.Adam([*embed.parameters(), *head.parameters(), *model.parameters()], 1e-3, (0.9, 0.98))
    net = wrap(model)

    def step(x: Tensor, y: Tensor) -> Tensor:
        before, after = y[:, :-1], y[:, 1:]
        mask = torch.triu(torch.full((4, 4), float("-inf")), diagonal=1)
        hidden = torch.zeros(x.shape).masked_fill(x == 0, float("-inf"))
        out = net(embed(x), embed(before), tgt_mask=mask, src_key_padding_mask=hidden, memory_key_padding_mask=hidden)
        optimizer.zero_grad()
        loss = F.cross_entropy(head(out).transpose(1, 2), after, ignore_index=0, label_smoothing=0.1)
        loss.backward()
        optimizer.step()
        return loss.detach()

    def batch() -> tuple[Tensor, Tensor]:
        x = torch.randint(1, WORDS, (3, 5))
        x[1, 3:] = 0
        return x, torch.randint(1, WORDS, (3, 5))

    state = {"embed": embed, "head": head, "model": model, "optimizer": optimizer}
    return Made(step, some(batch), state)


class Sounds(nn.Module):
    """Convolutions over time and a recurrent layer in both directions."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv1d(6, WIDTH, 3, stride=2, padding=1), nn.BatchNorm1d(WIDTH)
        self.rnn, self.out = nn.GRU(WIDTH, 6, bidirectional=True, batch_first=True), nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.hardtanh(self.norm(self.conv(x)), 0, 20).transpose(1, 2)
        return self.out(self.rnn(x)[0]).log_softmax(-1).transpose(0, 1)


@program("step", "compile", "freeze")
def sounds_to_letters(wrap: Wrap) -> Made:
    model = Sounds()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    net = wrap(model)

    def step(x: Tensor, letters: Tensor) -> Tensor:
        logs = net(x)
        lengths, wanted = torch.full((3,), logs.shape[0]), torch.tensor([3, 2, 3])
        loss = F.ctc_loss(logs, letters, lengths, wanted, blank=0, zero_infinity=True)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    batches = some(lambda: (torch.randn(3, 6, 16), torch.randint(1, 5, (3, 3))))
    return Made(step, batches, {"model": model, "optimizer": optimizer}, (model, [(x,) for x, _ in batches]))


class Tags(nn.Module):
    """Scores of tags from an LSTM, and of changes between them."""

    def __init__(self, tags: int = 4) -> None:
        super().__init__()
        self.embed, self.rnn = nn.Embedding(WORDS, WIDTH), nn.LSTM(WIDTH, 4, batch_first=True, bidirectional=True)
        self.out, self.change = nn.Linear(8, tags), nn.Parameter(torch.randn(tags, tags))

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        scores = self.out(self.rnn(self.embed(x))[0])
        total, best, back = scores[:, 0], scores[:, 0], []
        right = scores[:, 0].gather(1, y[:, :1]).squeeze(1)
        for t in range(1, x.size(1)):
            total = torch.logsumexp(total.unsqueeze(2) + self.change, dim=1) + scores[:, t]
            right = right + self.change[y[:, t - 1], y[:, t]] + scores[:, t].gather(1, y[:, t : t + 1]).squeeze(1)
            best, before = (best.unsqueeze(2) + self.change).max(1)
            best = best + scores[:, t]
            back.append(before)
        path = [best.argmax(1)]
        for before in reversed(back):
            path.insert(0, before.gather(1, path[0].unsqueeze(1)).squeeze(1))
        return (torch.logsumexp(total, 1) - right).mean(), torch.stack(path, 1)


@program("step", "compile")
def tags_with_changes(wrap: Wrap) -> Made:
    model = Tags()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, weight_decay=1e-4)
    net = wrap(model)

    def step(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        optimizer.zero_grad()
        loss, path = net(x, y)
        loss.backward()
        optimizer.step()
        return loss.detach(), path

    batches = some(lambda: (torch.randint(0, WORDS, (3, 5)), torch.randint(0, 4, (3, 5))))
    return Made(step, batches, {"model": model, "optimizer": optimizer})


class Dilated(nn.Module):
    """Convolutions that look back only, ever farther, with weight norm."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        make = torch.nn.utils.parametrizations.weight_norm
        self.convs = nn.ModuleList(make(nn.Conv1d(1 if k == 0 else width, width, 2, dilation=2**k)) for k in range(3))
        self.shorts, self.out = nn.ModuleList([nn.Conv1d(1, width, 1)]), nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        for number, conv in enumerate(self.convs):
            y = F.dropout(F.relu(conv(F.pad(x, (2**number, 0)))), 0.1, self.training)
            x = F.relu(y + (self.shorts[0](x) if number == 0 else x))
        return self.out(x[:, :, -1])


@program(*EVERY)
def convolutions_that_look_back(wrap: Wrap) -> Made:
    model = Dilated()
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    net = wrap(model)

    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.mse_loss(net(x), x.sum(-1))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.2)
        optimizer.step()
        return loss.detach()

    batches = some(lambda: torch.rand(3, 1, 10))
    return Made(step, batches, {"model": model, "optimizer": optimizer}, (model, batches))


class Scan(nn.Module):
    """A state that decays by input-dependent rates, step by step."""

    def __init__(self, states: int = 4) -> None:
        super().__init__()
        self.enter, self.rates, self.out = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 3)
        self.log = nn.Parameter(torch.log(torch.arange(1, states + 1).float()).repeat(WIDTH, 1))
        self.write, self.read = nn.Linear(WIDTH, states), nn.Linear(WIDTH, states)

    def forward(self, x: Tensor) -> Tensor:
        x, gate = self.enter(x).chunk(2, -1)
        rate, b, c = F.softplus(self.rates(x)), self.write(x), self.read(x)
        decay = torch.exp(-torch.einsum("btd,dn->btdn", rate, self.log.exp()))
        drive = torch.einsum("btd,btn,btd->btdn", rate, b, x)
        state, seen = torch.zeros_like(drive[:, 0]), []
        for t in range(x.shape[1]):
            state = decay[:, t] * state + drive[:, t]
            seen.append(torch.einsum("bdn,bn->bd", state, c[:, t]))
        return self.out((torch.stack(seen, 1) * F.silu(gate)).mean(1))


@program(*EVERY)
def state_that_decays(wrap: Wrap) -> Made:
    model = Scan()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    net = wrap(model)

    def step(x: Tensor, y: Tensor) -> Tensor:
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    batches = some(lambda: (torch.randn(3, 6, WIDTH), torch.randint(0, 3, (3,))))
    return Made(step, batches, {"model": model, "optimizer": optimizer}, (model, [(x,) for x, _ in batches]))
