"""Flat buffers: where tensors lie, that views share memory, and in which order elements lie."""

import pytest
import torch

from fedmpi.methods.protocol import copy_into
from fedmpi.tensors import ALIGN_BYTES, Layout, Spec, first_mismatch, max_magnitudes, specs_of

SPECS = {
    "kernel": Spec((2, 3, 5, 5), channels_last=True),
    "bias": Spec((1,)),
    "empty": Spec((0, 4)),
    "number": Spec((), torch.float64),
    "mask": Spec((65,), torch.bool),
    "counts": Spec((8,), torch.int64),
    "half": Spec((3,), torch.bfloat16),
}


def test_offsets_by_hand() -> None:
    """150 floats are 600 bytes, so 10 lines of 64; then 1, 0, 1, 2, 1 and 1 lines: 16 lines in all."""
    layout = Layout.of(SPECS)
    lines = {"kernel": 0, "bias": 10, "empty": 11, "number": 11, "mask": 12, "counts": 14, "half": 15}
    assert layout.offsets == {name: 64 * line for name, line in lines.items()}
    assert layout.num_bytes == 64 * 16 and ALIGN_BYTES == 64


def test_views_share_the_buffer_and_do_not_overlap() -> None:
    """Each tensor is filled with 1 bits in turn: exactly its own bytes change, never its neighbours' or the padding."""
    layout = Layout.of(SPECS)
    for name, spec in SPECS.items():
        buffer = layout.new_buffer()
        assert buffer.shape == (1024,) and buffer.dtype == torch.uint8 and not buffer.any()
        view = layout.views(buffer)[name]
        assert (tuple(view.shape), view.dtype) == (spec.shape, spec.dtype)
        view.copy_(torch.ones(spec.shape, dtype=spec.dtype))
        touched = buffer.nonzero().flatten()
        start, stop = layout.offsets[name], layout.offsets[name] + spec.nbytes
        assert len(touched) >= spec.num_elements
        assert all(start <= byte < stop for byte in touched.tolist())
        assert not view.numel() or view.data_ptr() == buffer.data_ptr() + start
        assert torch.equal(layout.views(buffer)[name], torch.ones(spec.shape, dtype=spec.dtype))


def test_channels_last_lies_as_o_h_w_i() -> None:
    """Element (o, i, h, w) of a (2, 3, 5, 5) kernel is number ((o 5 + h) 5 + w) 3 + i of the buffer."""
    layout = Layout.of({"kernel": SPECS["kernel"]})
    buffer = layout.new_buffer()
    kernel = layout.views(buffer)["kernel"]
    flat = buffer[:600].view(torch.float32)
    flat.copy_(torch.arange(150.0))
    assert kernel[1, 2, 3, 4] == ((1 * 5 + 3) * 5 + 4) * 3 + 2 == 134
    assert kernel.is_contiguous(memory_format=torch.channels_last) and not kernel.is_contiguous()
    assert torch.equal(kernel, flat.view(2, 5, 5, 3).permute(0, 3, 1, 2))


def test_specs_of_a_net() -> None:
    named = [("conv", torch.zeros(2, 3, 1, 1)), ("fc", torch.zeros(4, 5, dtype=torch.float64))]
    for channels_last in (True, False):
        expected = {"conv": Spec((2, 3, 1, 1), torch.float32, channels_last), "fc": Spec((4, 5), torch.float64, False)}
        assert specs_of(named, channels_last=channels_last) == expected


def test_copy_goes_by_name_and_keeps_the_target_s_layout() -> None:
    """Sources in another order, dtype and memory format; what the target does not have is left out."""
    layout = Layout.of({"a": Spec((2, 2, 1, 2), channels_last=True), "b": Spec((2,))})
    target = layout.views(layout.new_buffer())
    pointers = {name: view.data_ptr() for name, view in target.items()}
    source = {"b": torch.tensor([1, 2]), "extra": torch.ones(3), "a": torch.arange(8.0).view(2, 2, 1, 2)}
    copy_into(target, source)
    assert torch.equal(target["a"], source["a"]) and target["b"].tolist() == [1.0, 2.0]
    assert {name: view.data_ptr() for name, view in target.items()} == pointers


@pytest.mark.parametrize("shape", [(1,), (1, 2), ()])
def test_a_copy_never_broadcasts(shape: tuple[int, ...]) -> None:
    target = {"a": torch.zeros(2)}
    with pytest.raises(ValueError, match=r"a .*\[2\]"):
        copy_into(target, {"a": torch.ones(shape)})
    with pytest.raises(KeyError, match="a"):
        copy_into(target, {"b": torch.zeros(2)})
    assert target["a"].tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("tensors", "odd"),
    [
        ({"a": torch.zeros(2, 3), "b": torch.zeros(0)}, ""),
        ({"b": torch.zeros(0), "a": torch.zeros(2, 3)}, ""),  # in any order
        ({"a": torch.zeros(2, 3)}, "b as nothing, expected float32 [0]"),
        ({"a": torch.zeros(2, 3), "b": torch.zeros(0), "c": torch.zeros(1)}, "c as float32 [1], expected nothing"),
        ({"a": torch.zeros(1, 3), "b": torch.zeros(0)}, "a as float32 [1, 3], expected float32 [2, 3]"),
        ({"a": torch.zeros(2, 3).double(), "b": torch.zeros(0)}, "a as float64 [2, 3], expected float32 [2, 3]"),
    ],
)
def test_a_tensor_that_does_not_fit_is_named(tensors: dict[str, torch.Tensor], odd: str) -> None:
    assert first_mismatch(tensors, {"a": Spec((2, 3)), "b": Spec((0,))}) == odd


def test_max_magnitudes() -> None:
    tensors = [torch.tensor([[1.0, -3.5], [2.0, 0.0]]), torch.zeros(0, 3), torch.tensor(-2.0)]
    assert max_magnitudes(tensors).tolist() == [3.5, 0.0, 2.0]
    assert max_magnitudes([]).tolist() == []
    # Divergence is found by comparing with a bound: a NaN must not hide behind a larger number.
    for bad in (float("nan"), float("inf"), float("-inf")):
        largest = max_magnitudes([torch.tensor([1.0, bad, 1e30]), torch.ones(2)])
        assert not torch.isfinite(largest[0]) and largest[1] == 1.0
