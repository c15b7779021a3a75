"""Nets of a user's whose export is special."""

import torch
from torch import nn


class Plain(nn.Module):
    """Layers that a script without fedmpi makes, too."""

    def __init__(self, num_classes, example_shape, hidden: int = 12):
        super().__init__()
        self.conv, self.bn = nn.Conv2d(example_shape[0], 6, 3, padding=1), nn.BatchNorm2d(6)
        self.fc1, self.fc2 = nn.Linear(6, hidden), nn.Linear(hidden, num_classes)

    def forward(self, x):
        return self.fc2(self.fc1(self.bn(self.conv(x)).relu().mean((2, 3))).relu())


class Branching(Plain):
    """Its Python asks for values."""

    def forward(self, x):
        return super().forward(x if x.sum() > -1e9 else -x)


class Tied(nn.Module):
    """One weight under two names, and a GRU."""

    def __init__(self, num_classes, vocabulary_size):
        super().__init__()
        self.embedding, self.gru = nn.Embedding(vocabulary_size, 6), nn.GRU(6, 6, batch_first=True)
        self.back = nn.Linear(6, vocabulary_size, bias=False)
        self.back.weight = self.embedding.weight
        self.fc = nn.Linear(vocabulary_size, num_classes)

    def forward(self, x):
        return self.fc(torch.tanh(self.back(self.gru(self.embedding(x))[0][:, -1])))


class Projected(nn.Module):
    """An LSTM that torch's ONNX exporter writes as a file that no runtime loads."""

    def __init__(self, num_classes, example_shape):
        super().__init__()
        self.lstm, self.fc = nn.LSTM(example_shape[-1], 8, proj_size=4, batch_first=True), nn.Linear(4, num_classes)

    def forward(self, x):
        return self.fc(self.lstm(x[:, 0])[0][:, -1])
