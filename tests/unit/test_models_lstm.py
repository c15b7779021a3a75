"""PriSM's LSTM: size, its mathematics, two classes as one output, and life in a flat buffer."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedmpi import costs
from fedmpi.config.schema import Train
from fedmpi.data.dataset import DataInfo
from fedmpi.learning.flat import Buffers, FlatNet, net_layout
from fedmpi.models import create
from fedmpi.models.nets.lstm import Lstm, LstmChar, LstmImdb

SMALL = LstmImdb(width=0.03)  # 2 and 8 units
ON_A_GPU = pytest.param("cuda", marks=pytest.mark.gpu("cuDNN would move the weights out of the buffer"))


def texts(num_classes: int = 2, vocabulary_size: int = 11, length: int = 5) -> DataInfo:
    return DataInfo("tokens", (length,), num_classes, 1, 1, vocabulary_size=vocabulary_size)


def tokens(seed: int = 0, length: int = 5) -> Tensor:
    return torch.randint(0, 11, (3, length), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    ("options", "num_classes", "expected"),
    [(LstmImdb(), 2, 920_385), (LstmImdb(), 4, 921_156), (LstmImdb(width=0.5), 2, 247_201)],
)
def test_sizes(options: LstmImdb, num_classes: int, expected: int) -> None:
    """1001 * 64 + 4 * 256 * (64 + 256 + 2) + 4 * 256 * (2 * 256 + 2) + 257; four classes: 3 * 257 more.

    Half: 1001 * 32 + 4 * 128 * (32 + 128 + 2) + 4 * 128 * (2 * 128 + 2) + 129.
    """
    net = create.skeleton(options, texts(num_classes, 1001))
    assert sum(parameter.numel() for parameter in net.parameters()) == expected


@pytest.mark.parametrize(("num_symbols", "expected"), [(80, 819_920), (90, 822_570), (258, 867_090)])
def test_sizes_of_the_character_lstm(num_symbols: int, expected: int) -> None:
    """8 V + 4 * 256 * (8 + 256 + 2) + 4 * 256 * (2 * 256 + 2) + 257 V.

    With one bias for each gate 2 * 4 * 256 less: 820,522 at 90 symbols; McMahan et al. print 866,578, which is that
    at 258 symbols and 3 * 256 peepholes in each layer.
    """
    net = create.skeleton(LstmChar(), texts(num_symbols, num_symbols, 80))
    assert sum(parameter.numel() for parameter in net.parameters()) == expected
    assert expected == 265 * num_symbols + 272_384 + 526_336
    assert 265 * 90 + 271_360 + 525_312 == 820_522
    assert 265 * 258 + 271_360 + 525_312 + 2 * 3 * 256 == 866_578


def by_steps(net: nn.Module, words: Tensor) -> Tensor:
    """The last output of the upper layer: i, f, o = sigmoid, g = tanh, c = f c + i g, h = o tanh(c)."""
    inputs = net.embedding(words).unbind(1)
    for layer in range(2):
        h = c = torch.zeros(len(words), net.lstm.hidden_size)
        outputs = []
        for x in inputs:
            from_x, from_h, bias_x, bias_h = (
                getattr(net.lstm, f"{name}_l{layer}") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
            )
            i, f, g, o = (x @ from_x.T + bias_x + h @ from_h.T + bias_h).chunk(4, 1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            outputs.append(h)
        inputs = outputs
    return inputs[-1]


@pytest.mark.parametrize("num_classes", [2, 3])
def test_the_net_step_by_step(num_classes: int) -> None:
    net = create.build(SMALL, texts(num_classes), 0)
    logits = net(tokens())
    expected = net.fc(by_steps(net, tokens()))
    if num_classes == 2:
        assert logits[:, 0].tolist() == [0, 0, 0]
        logits = logits[:, 1:]
    assert torch.allclose(logits, expected, atol=1e-6)


@pytest.mark.parametrize("device", ["cpu", ON_A_GPU])
def test_trains_in_a_flat_buffer(device: str) -> None:
    """Two steps of SGD on the flat vectors equal two on a plain copy; the net computes with what the buffer holds."""
    plain = create.build(SMALL, texts(), 0)
    layout = net_layout(plain.named_parameters(), (), channels_last=True)
    flat = FlatNet(copy.deepcopy(plain), layout, Buffers(layout.num_bytes, device))
    for name, parameter in plain.named_parameters():
        flat.params[name].copy_(parameter.detach())
    sgd = flat.optimizer(Train(momentum=0, weight_decay=0), ())
    labels = torch.tensor([0, 1, 1])
    for step in range(2):
        flat.gradient.zero_()
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            F.cross_entropy(flat.module(tokens(step).to(device)), labels.to(device)).backward()
        sgd(1.0)
        plain.zero_grad()
        F.cross_entropy(plain(tokens(step)), labels).backward()
        for parameter in plain.parameters():
            parameter.data -= parameter.grad
    for name, parameter in plain.named_parameters():
        assert torch.allclose(flat.params[name].cpu(), parameter, atol=1e-5)
    flat.parameter.zero_()
    assert not flat.module(tokens().to(device)).any()


def test_costs_are_those_of_torchs_own_lstm() -> None:
    """On the meta device ours computes all steps at once; torch takes them one by one, and both are counted.

    A token: 4 * 8 * (2 + 8) and 4 * 8 * (8 + 8) MACs; five of them, twice the embedding's values and
    2 layers * 6 * 8 of the LSTM; two weight matrices and two biases in each layer.
    """
    ours, theirs = (nn.Sequential(kind(2, 8, 2, batch_first=True, device="meta")) for kind in (Lstm, nn.LSTM))
    assert costs.measure(ours, (5, 2)) == costs.measure(theirs, (5, 2))
    macs = 5 * 4 * 8 * (10 + 16)
    params = 4 * 8 * (10 + 16) + 2 * 2 * 32
    assert costs.measure(ours, (5, 2)) == costs.Costs(params, macs, macs, 4 * 5 * 2 * 6 * 8)
