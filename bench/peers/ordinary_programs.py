"""Training programs of the kind that tutorials contain: the peer of bench/compile/bench_ordinary.cpp, with the same
sizes. `prepare NAME TOOL DTYPE SEED` creates a program. It answers with the seconds until the program is ready and with
the losses of the first five steps, or with -1 if the program is not written here. Tools are eager and compile,
dtypes fp32 and bf16. Modules and data are created in the order of the C++ programs, so equal seeds give equal values."""

import contextlib
import math
import time

import torch
import torch.nn.functional as F
from torch import nn

from protocol import compile_from_nothing, serve

WORDS = 2000


def four_batches(make):
    return [make() for _ in range(4)]


def regression():
    model = nn.Linear(4, 1)
    weight = torch.randn(4, 1)

    def batch():
        x = torch.randn(32, 4)
        return x, x.mm(weight) + 0.1 * torch.randn(32, 1)

    return model, torch.optim.SGD(model.parameters(), 1e-2), four_batches(batch), lambda net, x, y: F.mse_loss(net(x), y)


def mlp():
    model = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Dropout(0.2), nn.Linear(512, 512), nn.ReLU(), nn.Dropout(0.2), nn.Linear(512, 10))
    batches = four_batches(lambda: (torch.rand(64, 784), torch.randint(0, 10, (64,))))
    return model, torch.optim.SGD(model.parameters(), 1e-2, 0.9), batches, lambda net, x, y: F.cross_entropy(net(x), y)


class Factorization(nn.Module):
    def __init__(self, users, items, factors):
        super().__init__()
        self.user, self.item = nn.Embedding(users, factors), nn.Embedding(items, factors)
        self.user_bias, self.item_bias = nn.Embedding(users, 1), nn.Embedding(items, 1)

    def forward(self, users, items):
        fit = (self.user(users) * self.item(items)).sum(1)
        return fit + self.user_bias(users).squeeze(1) + self.item_bias(items).squeeze(1)


def factorization():
    model = Factorization(943, 1682, 32)
    batches = four_batches(lambda: (torch.randint(0, 943, (512,)), torch.randint(0, 1682, (512,)), 1 + 4 * torch.rand(512)))
    return model, torch.optim.Adam(model.parameters()), batches, lambda net, u, i, y: F.mse_loss(net(u, i).float(), y)


def digits(batch):
    return four_batches(lambda: (torch.rand(batch, 1, 28, 28), torch.randint(0, 10, (batch,))))


def digit_network():
    model = nn.Sequential(
        nn.Conv2d(1, 10, 5), nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(10, 20, 5), nn.Dropout2d(0.5), nn.MaxPool2d(2), nn.ReLU(),
        nn.Flatten(), nn.Linear(320, 50), nn.ReLU(), nn.Dropout(0.5), nn.Linear(50, 10))
    optimizer = torch.optim.SGD(model.parameters(), 1e-2, 0.5)
    return model, optimizer, digits(64), lambda net, x, y: F.nll_loss(F.log_softmax(net(x), 1), y)


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden, self.mean, self.log_variance = nn.Linear(784, 400), nn.Linear(400, 20), nn.Linear(400, 20)
        self.wide, self.pixels = nn.Linear(20, 400), nn.Linear(400, 784)

    def forward(self, x):
        code = torch.relu(self.hidden(x))
        mu, log_var = self.mean(code), self.log_variance(code)
        z = mu + torch.randn_like(mu, dtype=torch.float) * torch.exp(0.5 * log_var)
        fit = F.binary_cross_entropy_with_logits(self.pixels(torch.relu(self.wide(z))), x, reduction="sum")
        return fit - 0.5 * torch.sum(1 + log_var - mu.pow(2) - log_var.exp())


def vae():
    model = Autoencoder()
    return model, torch.optim.Adam(model.parameters()), four_batches(lambda: (torch.rand(128, 784),)), lambda net, x: net(x)


def two_convs(i, o):
    return nn.Sequential(nn.Conv2d(i, o, 3, 1, 1), nn.BatchNorm2d(o), nn.ReLU(), nn.Conv2d(o, o, 3, 1, 1), nn.BatchNorm2d(o), nn.ReLU())


class Segmenter(nn.Module):
    def __init__(self):
        super().__init__()
        self.fine, self.middle, self.coarse = two_convs(3, 16), two_convs(16, 32), two_convs(32, 64)
        self.up_middle, self.merged_middle = nn.ConvTranspose2d(64, 32, 2, 2), two_convs(64, 32)
        self.up_fine, self.merged_fine = nn.ConvTranspose2d(32, 16, 2, 2), two_convs(32, 16)
        self.classes = nn.Conv2d(16, 2, 1)

    def forward(self, x):
        a = self.fine(x)
        b = self.middle(F.max_pool2d(a, 2))
        c = self.coarse(F.max_pool2d(b, 2))
        d = self.merged_middle(torch.cat([self.up_middle(c), b], 1))
        return self.classes(self.merged_fine(torch.cat([self.up_fine(d), a], 1)))


def segmentation():
    model = Segmenter()
    batches = four_batches(lambda: (torch.rand(4, 3, 96, 96), torch.randint(0, 2, (4, 96, 96))))
    return model, torch.optim.Adam(model.parameters()), batches, lambda net, x, y: F.cross_entropy(net(x), y)


def super_resolution():
    model = nn.Sequential(
        nn.Conv2d(1, 64, 5, 1, 2), nn.ReLU(), nn.Conv2d(64, 64, 3, 1, 1), nn.ReLU(), nn.Conv2d(64, 32, 3, 1, 1), nn.ReLU(),
        nn.Conv2d(32, 9, 3, 1, 1), nn.PixelShuffle(3))
    batches = four_batches(lambda: (torch.rand(4, 1, 64, 64), torch.rand(4, 1, 192, 192)))
    return model, torch.optim.Adam(model.parameters()), batches, lambda net, x, y: F.mse_loss(net(x).float(), y)


def triplet():
    model = nn.Sequential(
        nn.Conv2d(1, 32, 5), nn.PReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 5), nn.PReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(1024, 256), nn.PReLU(), nn.Linear(256, 64))
    batches = four_batches(lambda: tuple(torch.rand(32, 1, 28, 28) for _ in range(3)))
    return model, torch.optim.Adam(model.parameters()), batches, lambda net, *images: F.triplet_margin_loss(*(net(x).float() for x in images))


def texts(length, batch):
    def make():
        text = torch.randint(0, WORDS, (length + 1, batch))
        return text[:length].contiguous(), text[1:].reshape(-1).clone()

    return four_batches(make)


class WordLstm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.embedding, self.lstm = nn.Embedding(WORDS, width), nn.LSTM(width, width, 2, dropout=0.2)
        self.dropout, self.decoder = nn.Dropout(0.2), nn.Linear(width, WORDS)

    def forward(self, text, state):
        output, state = self.lstm(self.dropout(self.embedding(text)), state)
        return self.decoder(self.dropout(output)).view(-1, WORDS), state


def lstm():
    model = WordLstm(200)
    batches = texts(35, 20)
    kept = [(torch.zeros(2, 20, 200), torch.zeros(2, 20, 200))]

    def loss(net, text, target):
        output, state = net(text, kept[0])
        kept[0] = tuple(each.detach().float() for each in state)
        return F.cross_entropy(output.float(), target)

    return model, torch.optim.SGD(model.parameters(), 1), batches, loss, 0.25


class GruClassifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.gru = nn.Embedding(WORDS, 64), nn.GRU(64, 128, batch_first=True)
        self.classes = nn.Linear(128, 2)

    def forward(self, text):
        return self.classes(self.gru(self.embedding(text))[1][0])


def classified_texts(batch, length, classes):
    return four_batches(lambda: (torch.randint(0, WORDS, (batch, length)), torch.randint(0, classes, (batch,))))


def classification(net, x, y):
    return F.cross_entropy(net(x).float(), y)


def gru():
    model = GruClassifier()
    return model, torch.optim.Adam(model.parameters()), classified_texts(32, 50, 2), classification


class HandLstm(nn.Module):
    def __init__(self, i, width):
        super().__init__()
        self.from_input, self.from_hidden = nn.Linear(i, 4 * width), nn.Linear(width, 4 * width)

    def forward(self, x, hidden, cell):
        gates = (self.from_input(x) + self.from_hidden(hidden)).chunk(4, 1)
        cell = torch.sigmoid(gates[1]) * cell + torch.sigmoid(gates[0]) * torch.tanh(gates[2])
        return torch.sigmoid(gates[3]) * torch.tanh(cell), cell


class SineWaves(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.width, self.first, self.second, self.output = width, HandLstm(1, width), HandLstm(width, width), nn.Linear(width, 1)

    def forward(self, waves):
        h = c = h2 = c2 = torch.zeros(waves.size(0), self.width, dtype=waves.dtype)
        predicted = []
        for x in waves.split(1, 1):
            h, c = self.first(x, h, c)
            h2, c2 = self.second(h, h2, c2)
            predicted.append(self.output(h2))
        return torch.cat(predicted, 1)


def lstm_double():
    model = SineWaves(51).double()

    def batch():
        wave = torch.sin((torch.arange(101, dtype=torch.double) + torch.randint(-80, 80, (32, 1)).double()) / 20)
        return wave[:, :-1].contiguous(), wave[:, 1:].contiguous()

    return model, torch.optim.Adam(model.parameters()), four_batches(batch), lambda net, x, y: F.mse_loss(net(x), y)


class HandAttention(nn.Module):
    def __init__(self, width, heads, drop):
        super().__init__()
        self.heads, self.qkv, self.output, self.dropout = heads, nn.Linear(width, 3 * width), nn.Linear(width, width), nn.Dropout(drop)

    def forward(self, x, mask):
        batch, length, width = x.shape
        head = width // self.heads
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, head).permute(2, 0, 3, 1, 4).unbind(0)
        scores = torch.matmul(q, k.transpose(2, 3)) / math.sqrt(head)
        if mask is not None:
            scores = scores + mask
        weights = self.dropout(torch.softmax(scores, -1))
        return self.output(torch.matmul(weights, v).transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    def __init__(self, width, heads, inner, drop, norm_first):
        super().__init__()
        self.norm_first, self.attention = norm_first, HandAttention(width, heads, drop)
        self.feed_forward = nn.Sequential(nn.Linear(width, inner), nn.GELU(), nn.Dropout(drop), nn.Linear(inner, width))
        self.norm1, self.norm2, self.dropout = nn.LayerNorm(width), nn.LayerNorm(width), nn.Dropout(drop)

    def forward(self, x, mask):
        if self.norm_first:
            x = x + self.dropout(self.attention(self.norm1(x), mask))
            return x + self.dropout(self.feed_forward(self.norm2(x)))
        x = self.norm1(x + self.dropout(self.attention(x, mask)))
        return self.norm2(x + self.dropout(self.feed_forward(x)))


class VisionTransformer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, 4)
        self.first, self.positions = nn.Parameter(torch.randn(1, 1, width)), nn.Parameter(torch.randn(1, 65, width))
        self.norm, self.dropout, self.classes = nn.LayerNorm(width), nn.Dropout(0.1), nn.Linear(width, 10)
        self.blocks = nn.ModuleList(Block(width, 8, 2 * width, 0.1, True) for _ in range(4))

    def forward(self, images):
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = self.dropout(torch.cat([self.first.expand(x.size(0), -1, -1), x], 1) + self.positions)
        for block in self.blocks:
            x = block(x, None)
        return self.classes(self.norm(x[:, 0]))


def vit():
    model = VisionTransformer(64)
    batches = four_batches(lambda: (torch.rand(32, 3, 32, 32), torch.randint(0, 10, (32,))))
    return model, torch.optim.Adam(model.parameters()), batches, classification


class TextEncoder(nn.Module):
    def __init__(self, length, width):
        super().__init__()
        self.embedding, self.positions = nn.Embedding(WORDS, width), nn.Embedding(length, width)
        self.norm, self.dropout, self.classes = nn.LayerNorm(width), nn.Dropout(0.1), nn.Linear(width, 2)
        self.blocks = nn.ModuleList(Block(width, 4, 4 * width, 0.1, False) for _ in range(4))

    def forward(self, text):
        mask = text.eq(0).float().mul(-1e9).unsqueeze(1).unsqueeze(1)
        x = self.dropout(self.norm(self.embedding(text) + self.positions(torch.arange(text.size(1)))))
        for block in self.blocks:
            x = block(x, mask)
        return self.classes(x[:, 0])


def bert():
    model = TextEncoder(64, 256)
    batches = classified_texts(16, 64, 2)
    for text, _ in batches:
        text[:, -8:] = 0
    return model, torch.optim.AdamW(model.parameters(), 1e-4), batches, classification


PROGRAMS = {
    "regression": regression, "mlp": mlp, "factorization": factorization, "digits": digit_network, "vae": vae, "segmentation": segmentation,
    "super-resolution": super_resolution, "triplet": triplet, "lstm": lstm, "gru": gru, "lstm-double": lstm_double, "vit": vit, "bert": bert,
}


def step_of(name, tool, dtype):
    """Returns the training step. With compile, the model and the optimizer's step are compiled."""
    model, optimizer, batches, loss_of, *max_norm = PROGRAMS[name]()
    net = torch.compile(model) if tool == "compile" else model
    update = torch.compile(optimizer.step) if tool == "compile" else optimizer.step
    turn = 0

    def step():
        nonlocal turn
        batch = batches[turn % len(batches)]
        turn += 1
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16) if dtype == "bf16" else contextlib.nullcontext():
            loss = loss_of(net, *batch)
        loss.backward()
        if max_norm:
            nn.utils.clip_grad_norm_(model.parameters(), max_norm[0])
        update()
        return loss.detach()

    return step


def main():
    own = compile_from_nothing("torch._inductor", "torch._dynamo")  # until the peer ends
    chosen = []

    def prepare(name, tool, dtype, seed):
        if name not in PROGRAMS:
            return [-1]
        torch.manual_seed(int(seed))
        step = step_of(name, tool, dtype)
        torch.manual_seed(int(seed) + 1)
        start = time.perf_counter()
        losses = [step().item()]
        seconds = time.perf_counter() - start
        losses += [step().item() for _ in range(4)]
        chosen[:] = [step]
        return [seconds, *losses]

    def run(count):
        for _ in range(count):
            chosen[0]()

    serve(run, {"prepare": prepare})


if __name__ == "__main__":
    main()
