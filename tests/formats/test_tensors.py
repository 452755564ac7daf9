"""Taking rows of a tensor: bytes move whole, nothing is decoded."""

from __future__ import annotations

import numpy as np
import pytest

from ridgeline.encodings import BF16, F32, Q8_0
from ridgeline.formats.tensors import Tensor
from ridgeline.quant.decode import decode

ORDER = np.array([2, 0, 1])


def test_rows_of_a_matrix() -> None:
    tensor = Tensor("w", (3, 64), Q8_0, np.random.default_rng(0).integers(0, 100, (3, 68), dtype=np.uint8))
    taken, cut = tensor.take_rows(ORDER), tensor.take_rows(slice(1, 3))
    np.testing.assert_array_equal(decode(taken), decode(tensor)[ORDER])
    assert (taken.shape, cut.shape, cut.nbytes) == ((3, 64), (2, 64), 136)
    assert np.shares_memory(cut.data, tensor.data) and np.shares_memory(taken.stored, tensor.stored)  # copied when they are read
    again = taken.take_rows(slice(1, 3))
    assert (again.shape, again.rows, again.nbytes) == ((2, 64), 2, 136)
    np.testing.assert_array_equal(decode(again), decode(tensor)[ORDER][1:])
    np.testing.assert_array_equal(taken.bytes_of(1, 2), tensor.data[ORDER][1:2])
    again.check()


@pytest.mark.parametrize("shape", [(3, 2, 32), (3, 1, 64), (3, 2, 5, 32)])
def test_parts_along_the_first_of_more_dimensions(shape: tuple[int, ...]) -> None:
    """Experts of a stacked tensor: whole parts move, the inner shape stays."""
    rows, blocks = int(np.prod(shape[:-1])), shape[-1] // 32
    tensor = Tensor("w", shape, Q8_0, np.random.default_rng(0).integers(0, 100, (rows, 34 * blocks), dtype=np.uint8))
    whole = decode(tensor).reshape(shape)
    for index in (ORDER, slice(1, 3), np.array([2]), slice(0, 0)):
        taken = tensor.take_rows(index)
        assert taken.shape == whole[index].shape and taken.rows == int(np.prod(taken.shape[:-1]))
        np.testing.assert_array_equal(decode(taken).reshape(taken.shape), whole[index])
    assert np.shares_memory(tensor.take_rows(slice(1, 3)).data, tensor.data)


def test_elements_of_a_vector() -> None:
    values = np.arange(3, dtype=np.float32)
    tensor = Tensor("b", (3,), F32, values.view(np.uint8).reshape(1, -1))
    np.testing.assert_array_equal(decode(tensor.take_rows(ORDER)), [values[ORDER]])
    assert tensor.take_rows(slice(0, 2)).shape == (2,)
    half = Tensor("b", (3,), BF16, np.arange(6, dtype=np.uint8).reshape(1, -1))
    assert half.take_rows(ORDER).data.tolist() == [[4, 5, 0, 1, 2, 3]]


def test_elements_of_a_packed_vector_cannot_move() -> None:
    with pytest.raises(ValueError, match="cannot be reordered"):
        Tensor("b", (32,), Q8_0, np.zeros((1, 34), dtype=np.uint8)).take_rows(ORDER)
