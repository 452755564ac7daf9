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
    assert np.shares_memory(cut.data, tensor.data)


def test_rows_of_three_dimensions_keep_the_inner_shape() -> None:
    tensor = Tensor("w", (2, 3, 32), Q8_0, np.zeros((6, 34), dtype=np.uint8))
    assert tensor.rows == 6


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
